# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The compiled twin: the same scanner with its hot path in C.

What is compiled is what happens per frame under load: passing over whole ordinary message frames (PUB, HPUB,
MSG, HMSG, +OK), asking the interest about their subjects, and building the `Frame` of a wanted one.
Everything else, errors and unfinished input above all, is the pure twin's code, so that both give the same
answers by construction.

The interest is one trie per clause group over all its patterns: nodes are numbers, edges stand in one
open-addressing hash table keyed by (node, token).  Nothing is cached per subject: subjects are hostile.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy

from natsproxy.wire import _scanner_py, awaited as _awaited
from natsproxy.wire._line cimport (
    HMSG, HPUB, MSG, OK, OPS_ROOM, PING, PONG, PUB, SUB, UNSUB, Line, message_op, number, read_line,
)
from natsproxy.wire.frames import Frame, Need
from natsproxy.wire.ops import OPS, Op

OP_NUMBERS = {
    "PUB": PUB, "HPUB": HPUB, "SUB": SUB, "UNSUB": UNSUB, "MSG": MSG, "HMSG": HMSG, "PING": PING, "PONG": PONG, "OK": OK,
}
"""The op numbers that the compiled code was built with; `tests/wire/test_scanner.py` compares them with the table."""

cdef int OPS_COUNT = len(OPS)
assert OPS_COUNT <= OPS_ROOM
cdef object _OPS = tuple(Op)
cdef object _NEEDS = tuple(Need)
cdef object _new = tuple.__new__
cdef object _Frame = Frame
cdef Py_ssize_t AWAITED_MOST = _awaited.MOST, AWAITED_LONGEST = _awaited.LONGEST

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


cdef inline uint32_t token_hash(const unsigned char *token, Py_ssize_t length) noexcept nogil:
    cdef uint32_t value = 2166136261u
    cdef Py_ssize_t i
    for i in range(length):
        value = (value ^ token[i]) * 16777619u
    return value


cdef class Trie:
    """Patterns as a trie; `matches` asks about one subject."""

    cdef Node *nodes
    cdef uint32_t node_count
    cdef uint32_t node_room
    cdef Edge *edges
    cdef uint32_t edge_count
    cdef uint32_t edge_room   # a power of two

    def __cinit__(self):
        self.node_room = 16
        self.edge_room = 32
        self.nodes = <Node *>calloc(self.node_room, sizeof(Node))
        self.edges = <Edge *>calloc(self.edge_room, sizeof(Edge))
        if self.nodes == NULL or self.edges == NULL:
            raise MemoryError
        self.node_count = 2       # 0 is nothing, 1 is the root

    def __dealloc__(self):
        cdef uint32_t i
        if self.edges != NULL:
            for i in range(self.edge_room):
                free(self.edges[i].token)
        free(self.edges)
        free(self.nodes)

    cdef uint32_t _node(self) except 0:
        cdef Node *grown
        if self.node_count == self.node_room:
            grown = <Node *>realloc(self.nodes, 2 * self.node_room * sizeof(Node))
            if grown == NULL:
                raise MemoryError
            self.nodes = grown
            self.node_room *= 2
        self.nodes[self.node_count].star = 0
        self.nodes[self.node_count].tail = False
        self.nodes[self.node_count].end = False
        self.node_count += 1
        return self.node_count - 1

    cdef inline uint32_t _slot(self, uint32_t node, uint32_t hashed, const char *token, Py_ssize_t length) noexcept nogil:
        cdef uint32_t mask = self.edge_room - 1
        cdef uint32_t at = (hashed ^ (node * 2654435769u)) & mask
        cdef Edge *edge
        while True:
            edge = &self.edges[at]
            if edge.child == 0:
                return at
            if edge.node == node and edge.hash == hashed and edge.length == length and memcmp(edge.token, token, length) == 0:
                return at
            at = (at + 1) & mask

    cdef int _grow(self) except -1:
        cdef Edge *old = self.edges
        cdef uint32_t room = self.edge_room, i
        self.edges = <Edge *>calloc(2 * room, sizeof(Edge))
        if self.edges == NULL:
            self.edges = old
            raise MemoryError
        self.edge_room = 2 * room
        for i in range(room):
            if old[i].child:
                self.edges[self._slot(old[i].node, old[i].hash, old[i].token, old[i].length)] = old[i]
        free(old)
        return 0

    def add(self, bytes pattern):
        """Add a pattern."""
        cdef uint32_t node = 1, hashed, at, child
        cdef list tokens = pattern.split(b".")
        cdef Py_ssize_t index
        cdef bytes token
        cdef char *copy
        for index in range(len(tokens)):
            token = tokens[index]
            if token == b">" and index == len(tokens) - 1:
                self.nodes[node].tail = True
                return
            if token == b"*":
                if self.nodes[node].star == 0:
                    child = self._node()
                    self.nodes[node].star = child
                node = self.nodes[node].star
                continue
            if 2 * self.edge_count >= self.edge_room:
                self._grow()
            hashed = token_hash(<const unsigned char *>PyBytes_AS_STRING(token), PyBytes_GET_SIZE(token))
            at = self._slot(node, hashed, PyBytes_AS_STRING(token), PyBytes_GET_SIZE(token))
            if self.edges[at].child == 0:
                child = self._node()
                copy = <char *>malloc(PyBytes_GET_SIZE(token) + 1)
                if copy == NULL:
                    raise MemoryError
                memcpy(copy, PyBytes_AS_STRING(token), PyBytes_GET_SIZE(token))
                self.edges[at].node = node
                self.edges[at].hash = hashed
                self.edges[at].length = <uint32_t>PyBytes_GET_SIZE(token)
                self.edges[at].token = copy
                self.edges[at].child = child
                self.edge_count += 1
            node = self.edges[at].child
        self.nodes[node].end = True

    cdef bint matches(self, uint32_t node, const unsigned char *subject, Py_ssize_t at, Py_ssize_t length) noexcept nogil:
        """True if a subject without empty tokens matches, from its byte `at` on; at > length: it is used up."""
        cdef Py_ssize_t end
        cdef uint32_t hashed, child, star
        while at <= length:
            if self.nodes[node].tail:
                return True
            hashed = 2166136261u
            end = at
            while end < length and subject[end] != 46:
                hashed = (hashed ^ subject[end]) * 16777619u
                end += 1
            child = self.edges[self._slot(node, hashed, <const char *>&subject[at], end - at)].child
            star = self.nodes[node].star
            at = end + 1
            if child == 0:
                if star == 0:
                    return False
                node = star
            elif star == 0:
                node = child
            elif self.matches(child, subject, at, length):
                return True
            else:
                node = star
        return self.nodes[node].end


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


cdef class Want:
    """One need and the subjects that have it."""

    cdef int need
    cdef Trie match
    cdef Trie unless

    def __init__(self, need, match, unless):
        self.need = need
        self.match = match
        self.unless = unless


cdef Trie _trie(patterns):
    cdef Trie trie = Trie()
    for pattern in patterns:
        trie.add(pattern)
    return trie


cdef class Interest:
    """Compiled clauses (see `wire/interest.py`)."""

    cdef readonly tuple clauses
    cdef list by_op

    def __init__(self, clauses=()):
        self.clauses = tuple(clauses)
        self.by_op = [[] for _ in range(OPS_COUNT)]
        joined = {}
        for clause in self.clauses:
            if clause.match is not None and not clause.unless:
                joined.setdefault((clause.ops, int(clause.need)), []).extend(clause.match)
        wants = [(ops, Want(need, _trie(patterns), None)) for (ops, need), patterns in joined.items()]
        for clause in self.clauses:
            if clause.match is None or clause.unless:
                match = None if clause.match is None else _trie(clause.match)
                wants.append((clause.ops, Want(clause.need, match, _trie(clause.unless) if clause.unless else None)))
        for ops, want in wants:
            for spec in OPS:
                if ops >> spec.op & 1:
                    subject_free = "subject" not in next(iter(spec.forms.values()))
                    self.by_op[spec.op].append(Want((<Want>want).need, None, None) if subject_free else want)
        for group in self.by_op:
            group.sort(key=_need_of, reverse=True)

    def wants(self, int op):
        """Return whether any clause wants any frame of `op`."""
        return bool(self.by_op[op])

    def need(self, int op, bytes subject=b""):
        """Return how much of a frame of `op` on `subject` is wanted."""
        return _NEEDS[self._need(op, <const unsigned char *>PyBytes_AS_STRING(subject), PyBytes_GET_SIZE(subject))]

    cdef int _need(self, int op, const unsigned char *subject, Py_ssize_t length):
        cdef list wants = <list>self.by_op[op]
        cdef Want want
        cdef bint whole
        if not wants:
            return 0
        whole = not has_empty_token(subject, length)
        for item in wants:
            want = <Want>item
            if want.match is not None and not (whole and want.match.matches(1, subject, 0, length)):
                continue
            if want.unless is not None and whole and want.unless.matches(1, subject, 0, length):
                continue
            return want.need
        return 0


def _need_of(Want want):
    return want.need


cdef inline bytes piece(const unsigned char *p, Py_ssize_t start, Py_ssize_t stop):
    return PyBytes_FromStringAndSize(<const char *>&p[start], stop - start)


cdef inline bytes again(bytes last, const unsigned char *p, Py_ssize_t start, Py_ssize_t stop):
    """Return a piece: the last one itself where that is the same."""
    if PyBytes_GET_SIZE(last) == stop - start and memcmp(PyBytes_AS_STRING(last), &p[start], stop - start) == 0:
        return last
    return piece(p, start, stop)


cdef int note(dict awaited, const unsigned char *subject, Py_ssize_t length, const unsigned char *reply, Py_ssize_t size) except -1:
    """Note the reply subject of a request: `awaited.note`."""
    cdef Py_ssize_t i
    cdef bytes noted
    if size > AWAITED_LONGEST or (length >= 8 and memcmp(subject, b"$JS.ACK.", 8) == 0):
        return 0
    for i in range(length - 18):
        if subject[i] == 46 and memcmp(&subject[i], b".CONSUMER.MSG.NEXT.", 19) == 0:
            return 0
    noted = piece(reply, 0, size)
    if len(awaited) >= AWAITED_MOST and noted not in awaited:
        _awaited.forget(awaited)
    awaited[noted] = None
    return 0


class Scanner(_scanner_py.Scanner):
    """The scanner of one direction of one connection."""

    def _fast(self, Py_ssize_t at, Py_ssize_t most):
        return _walk(self, at, None, most)

    def _wanted(self, Py_ssize_t at, list into, Py_ssize_t most):
        return _walk(self, at, into, most)[0]


cdef tuple _walk(self, Py_ssize_t at, list into, Py_ssize_t most):
    """Pass over `most` frames that nobody wants; with `into`: over frames that are wanted, and put them there."""
    cdef bytes buf = self._buf
    cdef const unsigned char *p = <const unsigned char *>PyBytes_AS_STRING(buf)
    cdef Py_ssize_t length = PyBytes_GET_SIZE(buf), limit = self._limit, end, size, head, frames = 0
    cdef bint s2c = self.direction
    cdef Interest interest = self.interest
    cdef dict sids = self.watch_sids, subjects = self.watch_subjects, tallies = self.tallies
    cdef dict awaited = self.awaited
    cdef bint noting = awaited is not None and not s2c, awaiting = s2c and bool(awaited)
    cdef bint by_sid = s2c and bool(sids), by_subject = bool(subjects), tallied = s2c and bool(tallies), want, odd = False
    cdef int watch_ops = self.watch_ops, found, op, first_size, ops = 0, fields
    cdef Py_ssize_t[OPS_ROOM] counted
    cdef Line line
    cdef bytes subject = b"", sid = b""
    for op in range(OPS_COUNT):
        counted[op] = 0
    wanted = None
    while at < length and frames < most:
        if into is None and s2c and p[at] == 43 and length - at >= 5 and not watch_ops >> OK & 1:
            if p[at + 1] == 79 and p[at + 2] == 75 and p[at + 3] == 13 and p[at + 4] == 10 and not interest.by_op[OK]:
                counted[OK] += 1
                frames += 1
                at += 5
                continue
            break
        found = message_op(p, at, length, s2c)
        if found < 0:
            break
        op = found & 31
        read_line(p, at + (found >> 5), length, limit, &line)
        # fields: subject, sid (s2c), then reply perhaps, then one size or two
        first_size = line.count - (2 if op == HPUB or op == HMSG else 1)
        fields = first_size - (2 if s2c else 1)
        if line.end == 0 or fields < 0 or fields > 1:
            break
        size = number(p, line.start[line.count - 1], line.stop[line.count - 1])
        head = 0
        if op == HPUB or op == HMSG:
            head = number(p, line.start[first_size], line.stop[first_size])
        end = line.end + size + 2
        if size < 0 or head < 0 or head > size or end > length or p[end - 2] != 13 or p[end - 1] != 10:
            break
        if line.stop[0] - line.start[0] >= 5 and memcmp(&p[line.start[0]], b"$SYS.", 5) == 0:
            odd = True
        want = (
            watch_ops >> op & 1
            or interest._need(op, &p[line.start[0]], line.stop[0] - line.start[0])
            or (by_sid and piece(p, line.start[1], line.stop[1]) in sids)
            or (by_subject and piece(p, line.start[0], line.stop[0]) in subjects)
        )
        if into is not None and not want:
            break
        if tallied and not (op == HMSG and not fields and head >= 12 and memcmp(&p[line.end + 8], b" 503", 4) == 0):
            sid = again(sid, p, line.start[1], line.stop[1])
            if sid in tallies:
                tallies[sid] += 1
        if fields and noting:
            note(
                awaited,
                &p[line.start[0]], line.stop[0] - line.start[0],
                &p[line.start[first_size - 1]], line.stop[first_size - 1] - line.start[first_size - 1],
            )
        elif awaiting:
            # Neighbours on one subject share the object, which hashes but once.
            subject = again(subject, p, line.start[0], line.stop[0])
            if subject in awaited:
                del awaited[subject]
                awaiting = bool(awaited)
        if want:
            # Neighbours mostly share subject and sid: then they share the objects, which hash but once.
            subject = again(subject, p, line.start[0], line.stop[0])
            if s2c:
                sid = again(sid, p, line.start[1], line.stop[1])
            wanted = _new(_Frame, (
                buf, at, end, line.end, _OPS[op], subject,
                piece(p, line.start[first_size - 1], line.stop[first_size - 1]) if fields else b"",
                sid, b"", b"", head, size, 0, False,
            ))
            if into is None:
                counted[op] += 1
                break
            into.append(wanted)
        counted[op] += 1
        frames += 1
        ops |= 1 << op
        at = end
    if odd:
        self.odd = True
    counts = self.counts
    for op in range(OPS_COUNT):
        if counted[op]:
            counts[op] += counted[op]
    if counted[OK]:
        ops |= 1 << OK
    return at, frames, ops, wanted
