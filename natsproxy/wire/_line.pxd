# cython: language_level=3
"""Ordinary control lines in C, shared by the compiled scanner and the compiled columns of captures.

Ordinary: what real clients and servers send.  What these functions do not read is left to the pure scanner,
which alone knows the whole grammar; so a byte that one reader takes no other reads differently.
"""

# The op numbers of `wire/ops.py`, for the ops that C reads; an op that is not here takes the general path.
# `_scanner.OP_NUMBERS` shows them to the test that holds them equal to the table.
cdef enum:
    PUB = 0, HPUB = 1, SUB = 2, UNSUB = 3, MSG = 4, HMSG = 5, PING = 8, PONG = 9, OK = 10
    OPS_ROOM = 32               # room for op numbers in arrays: op bitmasks have 32 bits


cdef struct Line:
    int op
    int count            # tokens of the arguments
    Py_ssize_t start[5]
    Py_ssize_t stop[5]
    Py_ssize_t end       # just after LF; 0: not an ordinary line


cdef inline bint letter(unsigned char byte, unsigned char upper) noexcept nogil:
    return byte & 0xDF == upper


cdef inline int message_op(const unsigned char *p, Py_ssize_t at, Py_ssize_t length, bint s2c) noexcept nogil:
    """Return the op of a message frame and 32 times the length of its name, -1 for anything else."""
    if length - at < 5:
        return -1
    if s2c:
        if letter(p[at], 77) and letter(p[at + 1], 83) and letter(p[at + 2], 71):
            return MSG + 32 * 3
        if letter(p[at], 72) and letter(p[at + 1], 77) and letter(p[at + 2], 83) and letter(p[at + 3], 71):
            return HMSG + 32 * 4
        return -1
    if letter(p[at], 80) and letter(p[at + 1], 85) and letter(p[at + 2], 66):
        return PUB + 32 * 3
    if letter(p[at], 72) and letter(p[at + 1], 80) and letter(p[at + 2], 85) and letter(p[at + 3], 66):
        return HPUB + 32 * 4
    return -1


cdef inline void read_line(const unsigned char *p, Py_ssize_t at, Py_ssize_t length, Py_ssize_t limit, Line *line) noexcept nogil:
    """Read the arguments from `at` (just after the op's name) to LF; at most five tokens."""
    cdef unsigned char byte
    cdef bint inside = False
    line.end = 0
    line.count = 0
    if at >= length or (p[at] != 32 and p[at] != 9):
        return
    if length - at > limit:
        length = at + limit
    while at < length:
        byte = p[at]
        if byte > 32:
            if not inside:
                if line.count == 5:
                    return
                line.start[line.count] = at
                inside = True
        elif byte == 32 or byte == 9:
            if inside:
                line.stop[line.count] = at
                line.count += 1
                inside = False
        elif byte == 13 or byte == 10:
            if byte == 13 and (at + 1 >= length or p[at + 1] != 10):
                return
            if inside:
                line.stop[line.count] = at
                line.count += 1
            line.end = at + (2 if byte == 13 else 1)
            return
        elif not inside:
            if line.count == 5:
                return
            line.start[line.count] = at
            inside = True
        at += 1


cdef inline Py_ssize_t number(const unsigned char *p, Py_ssize_t start, Py_ssize_t stop) noexcept nogil:
    """Return a number of one to nine digits, -1 for anything else."""
    cdef Py_ssize_t value = 0
    if stop - start > 9 or stop == start:
        return -1
    while start < stop:
        if p[start] < 48 or p[start] > 57:
            return -1
        value = value * 10 + (p[start] - 48)
        start += 1
    return value
