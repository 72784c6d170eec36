# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The compiled interest: patterns become tries, clauses a list of wants for each op (see `_interest.pxd`)."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint32_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from natsproxy.wire._interest cimport Edge, Node, Want, need_of, trie_slot
from natsproxy.wire.frames import Need
from natsproxy.wire.ops import OPS

cdef object _NEEDS = tuple(Need)


cdef inline uint32_t token_hash(const unsigned char *token, Py_ssize_t length) noexcept nogil:
    cdef uint32_t value = 2166136261u
    cdef Py_ssize_t i
    for i in range(length):
        value = (value ^ token[i]) * 16777619u
    return value


cdef class Patterns:
    """Patterns as a trie."""

    def __cinit__(self, patterns):
        self.trie.node_room = 16
        self.trie.edge_room = 32
        self.trie.nodes = <Node *>calloc(self.trie.node_room, sizeof(Node))
        self.trie.edges = <Edge *>calloc(self.trie.edge_room, sizeof(Edge))
        if self.trie.nodes == NULL or self.trie.edges == NULL:
            raise MemoryError
        self.trie.node_count = 2  # 0 is nothing, 1 is the root
        for pattern in patterns:
            self.add(pattern)

    def __dealloc__(self):
        cdef uint32_t i
        if self.trie.edges != NULL:
            for i in range(self.trie.edge_room):
                free(self.trie.edges[i].token)
        free(self.trie.edges)
        free(self.trie.nodes)

    cdef uint32_t _node(self) except 0:
        cdef Trie *trie = &self.trie
        cdef Node *grown
        if trie.node_count == trie.node_room:
            grown = <Node *>realloc(trie.nodes, 2 * trie.node_room * sizeof(Node))
            if grown == NULL:
                raise MemoryError
            trie.nodes = grown
            trie.node_room *= 2
        memset(&trie.nodes[trie.node_count], 0, sizeof(Node))
        trie.node_count += 1
        return trie.node_count - 1

    cdef int _grow(self) except -1:
        cdef Trie *trie = &self.trie
        cdef Edge *old = trie.edges
        cdef uint32_t room = trie.edge_room, i
        trie.edges = <Edge *>calloc(2 * room, sizeof(Edge))
        if trie.edges == NULL:
            trie.edges = old
            raise MemoryError
        trie.edge_room = 2 * room
        for i in range(room):
            if old[i].child:
                trie.edges[trie_slot(trie, old[i].node, old[i].hash, old[i].token, old[i].length)] = old[i]
        free(old)
        return 0

    def add(self, bytes pattern):
        """Add a pattern."""
        cdef Trie *trie = &self.trie
        cdef uint32_t node = 1, hashed, at, child
        cdef list tokens = pattern.split(b".")
        cdef Py_ssize_t index, length
        cdef bytes token
        cdef char *copy
        for index in range(len(tokens)):
            token = tokens[index]
            length = PyBytes_GET_SIZE(token)
            if token == b">" and index == len(tokens) - 1:
                trie.nodes[node].tail = True
                return
            if token == b"*":
                if trie.nodes[node].star == 0:
                    child = self._node()
                    trie.nodes[node].star = child
                node = trie.nodes[node].star
                continue
            if 2 * trie.edge_count >= trie.edge_room:
                self._grow()
            hashed = token_hash(<const unsigned char *>PyBytes_AS_STRING(token), length)
            at = trie_slot(trie, node, hashed, PyBytes_AS_STRING(token), length)
            if trie.edges[at].child == 0:
                child = self._node()
                copy = <char *>malloc(length + 1)
                if copy == NULL:
                    raise MemoryError
                memcpy(copy, PyBytes_AS_STRING(token), length)
                trie.edges[at].node = node
                trie.edges[at].hash = hashed
                trie.edges[at].length = <uint32_t>length
                trie.edges[at].token = copy
                trie.edges[at].child = child
                trie.edge_count += 1
            node = trie.edges[at].child
        trie.nodes[node].end = True


cdef class Interest:
    """Compiled clauses (see `wire/interest.py`)."""

    def __init__(self, clauses=()):
        self.clauses = tuple(clauses)
        self._patterns = []
        by_op = [[] for _ in OPS]
        joined = {}
        for clause in self.clauses:
            if clause.match is not None and not clause.unless:
                joined.setdefault((clause.ops, int(clause.need)), []).extend(clause.match)
        wants = [(ops, need, Patterns(patterns), None) for (ops, need), patterns in joined.items()]
        for clause in self.clauses:
            if clause.match is None or clause.unless:
                match = None if clause.match is None else Patterns(clause.match)
                wants.append((clause.ops, int(clause.need), match, Patterns(clause.unless) if clause.unless else None))
        for ops, need, match, unless in wants:
            for spec in OPS:
                if ops >> spec.op & 1:
                    subject_free = "subject" not in next(iter(spec.forms.values()))
                    by_op[spec.op].append((need, None, None) if subject_free else (need, match, unless))
        for op, group in enumerate(by_op):
            group.sort(key=_need, reverse=True)
            self._fill(op, group)

    cdef int _fill(self, int op, list group) except -1:
        cdef Want *want
        cdef Patterns patterns
        self.by_op[op].items = <Want *>calloc(len(group) or 1, sizeof(Want))
        if self.by_op[op].items == NULL:
            raise MemoryError
        for need, match, unless in group:
            want = &self.by_op[op].items[self.by_op[op].count]
            want.need = need
            if match is not None:
                patterns = match
                want.match = &patterns.trie
            if unless is not None:
                patterns = unless
                want.unless = &patterns.trie
            self._patterns += (match, unless)  # keeps the tries alive
            self.by_op[op].count += 1
        return 0

    def __dealloc__(self):
        cdef int op
        for op in range(OPS_ROOM):
            free(self.by_op[op].items)

    def wants(self, int op):
        """Return whether any clause wants any frame of `op`."""
        return self.by_op[op].count > 0

    def need(self, int op, bytes subject=b""):
        """Return how much of a frame of `op` on `subject` is wanted."""
        return _NEEDS[need_of(&self.by_op[op], <const unsigned char *>PyBytes_AS_STRING(subject), PyBytes_GET_SIZE(subject))]


def _need(group):
    return group[0]
