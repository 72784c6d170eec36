# cython: language_level=3, cdivision=True
"""The frames of a record in C: the offsets of their parts in the block's body.

This code reads the bulk of a capture, as clients and servers write it; 0 means that a frame is something else
(a CONNECT, an odd line, an error), which the Python code reads.
"""

from libc.stdint cimport int32_t, uint32_t
from libc.string cimport memcmp, memset

from natsproxy.capture.format._items cimport Span
from natsproxy.wire._line cimport (
    HMSG, HPUB, OK, PING, PONG, SUB, UNSUB, Line, letter, message_op, number, read_line,
)

cdef enum:
    LINE_LIMIT = 1 << 20        # as wire/parse.py has it

cdef enum:
    SUBJECT, REPLY, SID, QUEUE, ARGS, HEADERS, BODY


cdef struct Row:
    int32_t idx, op, record, nth, header_size, size
    int32_t odd                 # 0, or 1 + the place in the list of frames that the pure code read
    Span part[7]


cdef inline void put(Row *row, int part, Py_ssize_t start, Py_ssize_t stop) noexcept nogil:
    row.part[part].start = <uint32_t>start
    row.part[part].stop = <uint32_t>(stop if stop > start else start)


cdef inline Py_ssize_t read_message(
    const unsigned char *p, Py_ssize_t at, Py_ssize_t stop, bint s2c, Row *row, bint cut
) noexcept nogil:
    """Read a message frame; cut: its payload may be cut short.  Return where its bytes end, 0 for any other."""
    cdef Line line
    cdef int found = message_op(p, at, stop, s2c), first_size
    cdef Py_ssize_t fields, size, head = 0, end
    if found < 0:
        return 0
    row.op = found & 31
    read_line(p, at + (found >> 5), stop, LINE_LIMIT, &line)
    first_size = line.count - (2 if row.op == HPUB or row.op == HMSG else 1)
    fields = first_size - (2 if s2c else 1)
    if line.end == 0 or fields < 0 or fields > 1:
        return 0
    size = number(p, line.start[line.count - 1], line.stop[line.count - 1])
    if row.op == HPUB or row.op == HMSG:
        head = number(p, line.start[first_size], line.stop[first_size])
    end = line.end + size + 2
    if size < 0 or head < 0 or head > size:
        return 0
    if end > stop:
        if not cut or end - 2 < stop:
            return 0
        end = stop
    elif p[end - 2] != 13 or p[end - 1] != 10:
        return 0
    put(row, SUBJECT, line.start[0], line.stop[0])
    if s2c:
        put(row, SID, line.start[1], line.stop[1])
    if fields:
        put(row, REPLY, line.start[first_size - 1], line.stop[first_size - 1])
    put(row, HEADERS, line.end, min(end, line.end + head))
    put(row, BODY, line.end + head, min(end, line.end + size))
    row.header_size, row.size = <int32_t>head, <int32_t>size
    return end


cdef inline Py_ssize_t read_frame(
    const unsigned char *p, Py_ssize_t at, Py_ssize_t stop, bint s2c, Row *row
) noexcept nogil:
    """Read an ordinary frame at `at`; return its end, 0 for any other."""
    cdef int op
    cdef Line line
    memset(row, 0, sizeof(Row))
    if message_op(p, at, stop, s2c) >= 0:
        return read_message(p, at, stop, s2c, row, False)
    if stop - at >= 5 and s2c and memcmp(&p[at], b"+OK\r\n", 5) == 0:
        row.op = OK
        return at + 5
    if stop - at < 6:
        return 0
    if letter(p[at], 80) and letter(p[at + 2], 78) and letter(p[at + 3], 71) and p[at + 4] == 13 and p[at + 5] == 10:
        row.op = PING if letter(p[at + 1], 73) else PONG
        return at + 6 if row.op == PING or letter(p[at + 1], 79) else 0
    if s2c:
        return 0
    if letter(p[at], 83) and letter(p[at + 1], 85) and letter(p[at + 2], 66):
        op = SUB
    elif letter(p[at], 85) and letter(p[at + 1], 78) and letter(p[at + 2], 83) and letter(p[at + 3], 85) and letter(p[at + 4], 66):
        op = UNSUB
    else:
        return 0
    read_line(p, at + (3 if op == SUB else 5), stop, LINE_LIMIT, &line)
    if line.end == 0 or line.count < (2 if op == SUB else 1) or line.count > (3 if op == SUB else 2):
        return 0
    row.op = op
    if op == SUB:
        put(row, SUBJECT, line.start[0], line.stop[0])
        put(row, SID, line.start[line.count - 1], line.stop[line.count - 1])
        if line.count == 3:
            put(row, QUEUE, line.start[1], line.stop[1])
    else:
        put(row, SID, line.start[0], line.stop[0])
        if line.count == 2:
            put(row, ARGS, line.start[1], line.stop[1])
    return line.end
