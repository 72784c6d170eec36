# cython: language_level=3
"""The interest of `wire/interest.py` as C tables, which are asked without the interpreter lock.

One trie per clause group holds all its patterns: nodes are numbers, edges stand in one open-addressing hash
table keyed by (node, token).  Nothing is cached per subject: subjects are hostile.
"""

from libc.stdint cimport uint32_t
from libc.string cimport memcmp

from natsproxy.wire._line cimport OPS_ROOM


cdef struct Edge:
    uint32_t node
    uint32_t hash
    uint32_t child      # 0: the slot is free
    uint32_t length
    char *token


cdef struct Node:
    uint32_t star
    bint tail
    bint end


cdef struct Trie:
    Node *nodes
    uint32_t node_count
    uint32_t node_room
    Edge *edges
    uint32_t edge_count
    uint32_t edge_room  # a power of two


cdef struct Want:
    int need
    const Trie *match   # NULL: any subject
    const Trie *unless  # NULL: none is left out


cdef struct Wants:
    Want *items         # the highest need first
    int count


cdef inline bint same(const char *p, const char *q, Py_ssize_t length) noexcept nogil:
    """Compare tokens: most are so short that a call of memcmp costs more than the look."""
    cdef Py_ssize_t i
    for i in range(length):
        if p[i] != q[i]:
            return False
    return True


cdef inline uint32_t trie_slot(const Trie *trie, uint32_t node, uint32_t hashed, const char *token, Py_ssize_t length) noexcept nogil:
    cdef uint32_t mask = trie.edge_room - 1
    cdef uint32_t at = (hashed ^ (node * 2654435769u)) & mask
    cdef Edge *edge
    while True:
        edge = &trie.edges[at]
        if edge.child == 0:
            return at
        if edge.node == node and edge.hash == hashed and edge.length == length and same(edge.token, token, length):
            return at
        at = (at + 1) & mask


cdef inline bint trie_matches(const Trie *trie, uint32_t node, const unsigned char *subject, Py_ssize_t at, Py_ssize_t length) noexcept nogil:
    """True if a subject without empty tokens matches, from its byte `at` on; at > length: it is used up.

    node: 1 for the root.
    """
    cdef Py_ssize_t end
    cdef uint32_t hashed, child, star
    while at <= length:
        if trie.nodes[node].tail:
            return True
        hashed = 2166136261u
        end = at
        while end < length and subject[end] != 46:
            hashed = (hashed ^ subject[end]) * 16777619u
            end += 1
        child = trie.edges[trie_slot(trie, node, hashed, <const char *>&subject[at], end - at)].child
        star = trie.nodes[node].star
        at = end + 1
        if child == 0:
            if star == 0:
                return False
            node = star
        elif star == 0:
            node = child
        elif trie_matches(trie, child, subject, at, length):
            return True
        else:
            node = star
    return trie.nodes[node].end


cdef inline bint has_empty_token(const unsigned char *subject, Py_ssize_t length) noexcept nogil:
    cdef Py_ssize_t i
    cdef bint before = True
    for i in range(length):
        if subject[i] == 46:
            if before:
                return True
            before = True
        else:
            before = False
    return before


cdef inline bint matches(const Trie *trie, const unsigned char *subject, Py_ssize_t length) noexcept nogil:
    """True if a subject matches; one with empty tokens does not."""
    # The trie first: it knows most subjects by their first tokens.
    return trie_matches(trie, 1, subject, 0, length) and not has_empty_token(subject, length)


cdef inline int need_of(const Wants *wants, const unsigned char *subject, Py_ssize_t length) noexcept nogil:
    """Return how much of a frame on a subject is wanted; wants: those of its op."""
    cdef int i
    cdef const Want *want
    for i in range(wants.count):
        want = &wants.items[i]
        if want.match != NULL and not matches(want.match, subject, length):
            continue
        if want.unless != NULL and matches(want.unless, subject, length):
            continue
        return want.need
    return 0


cdef class Patterns:
    cdef Trie trie
    cdef uint32_t _node(self) except 0
    cdef int _grow(self) except -1


cdef class Interest:
    cdef readonly tuple clauses
    cdef list _patterns
    cdef Wants[OPS_ROOM] by_op
    cdef int _fill(self, int op, list group) except -1
