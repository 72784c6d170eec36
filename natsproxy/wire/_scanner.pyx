# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The compiled twin: the same scanner with its hot path in C.

What is compiled is what happens per frame under load: passing over whole ordinary message frames (PUB, HPUB,
MSG, HMSG, +OK), asking the interest about their subjects, and building the `Frame` of a wanted one.  What each
connection begins with is compiled too: ordinary INFO, CONNECT, SUB, UNSUB, PING and PONG.  Everything else,
errors and unfinished input above all, is the pure twin's code, so that both give the same answers by construction.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memchr, memcmp, memset

from natsproxy.wire import _scanner_py
from natsproxy.wire._interest cimport Interest
from natsproxy.wire._line cimport (
    CONNECT, HMSG, HPUB, INFO, MSG, OK, OPS_ROOM, PING, PONG, PUB, SUB, UNSUB, Line, letter, read_line,
)
from natsproxy.wire._meter cimport NativeMeter
from natsproxy.wire._table cimport ByteTable, Table
from natsproxy.wire._walk cimport (
    AT_WANTED, AWAITED_FORGOTTEN, AWAITED_LONGEST, AWAITED_MOST, Message, Passed, Watch,
    account, is_system, is_too_large, is_wanted, message_at, pass_messages,
)
from natsproxy.wire._table import ByteTable as _ByteTable
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import OPS, Op

OP_NUMBERS = {
    "PUB": PUB, "HPUB": HPUB, "SUB": SUB, "UNSUB": UNSUB, "MSG": MSG, "HMSG": HMSG,
    "INFO": INFO, "CONNECT": CONNECT, "PING": PING, "PONG": PONG, "OK": OK,
}
"""The op numbers that the compiled code was built with; `tests/wire/test_scanner.py` compares them with the table."""
AWAITED = (AWAITED_MOST, AWAITED_FORGOTTEN, AWAITED_LONGEST)
"""The bounds that it was built with; a test compares them with `awaited.py`."""

cdef int OPS_COUNT = len(OPS)
assert OPS_COUNT <= OPS_ROOM
cdef object _OPS = tuple(Op)
cdef object _new = tuple.__new__
cdef object _Frame = Frame
cdef int SUBJECT = Frame._fields.index("subject"), SID = Frame._fields.index("sid")


cdef inline bytes piece(const unsigned char *p, Py_ssize_t start, Py_ssize_t stop):
    return PyBytes_FromStringAndSize(<const char *>&p[start], stop - start)


cdef inline bytes again(bytes last, const unsigned char *p, Py_ssize_t start, Py_ssize_t stop):
    """Return a piece: the last one itself where that is the same."""
    if PyBytes_GET_SIZE(last) == stop - start and memcmp(PyBytes_AS_STRING(last), &p[start], stop - start) == 0:
        return last
    return piece(p, start, stop)


class Scanner(_scanner_py.Scanner):
    """The scanner of one direction of one connection."""

    Table = _ByteTable

    def _fast(self, Py_ssize_t at, Py_ssize_t most):
        return _pass(self, at, most)

    def _wanted(self, Py_ssize_t at, list into, Py_ssize_t most):
        return _collect(self, at, into, most)

    def _lines(self, Py_ssize_t at, list into, Py_ssize_t most):
        return _subscriptions(self, at, into, most)

    def _frame(self, Py_ssize_t start):
        found = _without_payload(self, start)
        return _scanner_py.Scanner._frame(self, start) if found is None else found


cdef Table *_table(table):
    """Return the C side of a table; NULL for None."""
    return NULL if table is None else &(<ByteTable?>table).table


cdef int watch_of(self, Watch *watch) except -1:
    """Fill in the wants of a scanner."""
    cdef Interest interest = self.interest
    watch.s2c = self.direction
    watch.limit, watch.max_payload = self._limit, self.max_payload
    watch.stop_at_system = False
    watch.ops = self.watch_ops
    watch.wants = interest.by_op
    watch.sids, watch.subjects = _table(self.watch_sids), _table(self.watch_subjects)
    watch.tallies, watch.awaited = _table(self.tallies), _table(self.awaited)
    watch.meter = NULL
    cdef object meter = self.meter
    if meter is not None:
        watch.meter, watch.now = (<NativeMeter?>meter).meter, (<NativeMeter>meter).now
    return 0


cdef int _count(self, const Passed *passed) except -1:
    """Add the frames of a walk to the scanner's counters."""
    cdef list counts = self.counts
    cdef int op
    for op in range(OPS_COUNT):
        if passed.counted[op]:
            counts[op] += passed.counted[op]
    if passed.odd:
        self.odd = True
    return 0


cdef tuple _pass(self, Py_ssize_t at, Py_ssize_t most):
    """Pass over `most` frames that nobody wants."""
    cdef bytes buf = self._buf
    cdef const unsigned char *p = <const unsigned char *>PyBytes_AS_STRING(buf)
    cdef Watch watch
    cdef Passed passed
    watch_of(self, &watch)
    pass_messages(p, at, PyBytes_GET_SIZE(buf), most, &watch, &passed)
    wanted = None
    if passed.stop == AT_WANTED:
        passed.odd |= is_system(p, &passed.message)
        account(p, &watch, &passed.message)
        passed.counted[passed.message.op] += 1
        wanted = _frame(buf, p, passed.at, &passed.message, watch.s2c, b"", b"")
    _count(self, &passed)
    return passed.at, passed.frames, passed.ops, wanted


cdef Py_ssize_t _collect(self, Py_ssize_t at, list into, Py_ssize_t most) except -1:
    """Put whole frames into a list while they are wanted; return the end of the last."""
    cdef bytes buf = self._buf, subject = b"", sid = b""
    cdef const unsigned char *p = <const unsigned char *>PyBytes_AS_STRING(buf)
    cdef Py_ssize_t length = PyBytes_GET_SIZE(buf), found = 0
    cdef Watch watch
    cdef Passed passed
    cdef Message *message = &passed.message
    watch_of(self, &watch)
    memset(&passed, 0, sizeof(Passed))
    while at < length and found < most:
        if not message_at(p, at, length, &watch, message) or message.end > length:
            break
        if p[message.end - 2] != 13 or p[message.end - 1] != 10 or not is_wanted(p, &watch, message):
            break
        if is_too_large(&watch, message):
            break
        passed.odd |= is_system(p, message)
        account(p, &watch, message)
        passed.counted[message.op] += 1
        frame = _frame(buf, p, at, message, watch.s2c, subject, sid)
        # Neighbours mostly share subject and sid: then they share the objects, which hash but once.
        subject, sid = frame[SUBJECT], frame[SID]
        into.append(frame)
        found += 1
        at = message.end
    _count(self, &passed)
    return at


cdef object _frame(bytes buf, const unsigned char *p, Py_ssize_t at, const Message *message, bint s2c, bytes subject, bytes sid):
    """Return a frame; subject, sid: those of the frame before, to be shared."""
    cdef const Line *line = &message.line
    cdef int reply = message.first_size - 1
    return _new(_Frame, (
        buf, at, message.end, line.end, _OPS[message.op],
        again(subject, p, line.start[0], line.stop[0]),
        piece(p, line.start[reply], line.stop[reply]) if message.has_reply else b"",
        again(sid, p, line.start[1], line.stop[1]) if s2c else b"",
        b"", b"", message.head, message.size, 0, False,
    ))


cdef inline bint begins(const unsigned char *p, Py_ssize_t at, Py_ssize_t length, const char *token, Py_ssize_t size):
    """True if the name of an op stands here, in any letter case, and a byte behind it."""
    cdef Py_ssize_t i
    if length - at <= size:
        return False
    for i in range(size):
        if not letter(p[at + i], token[i]):
            return False
    return True


cdef tuple _without_payload(self, Py_ssize_t at):
    """Return what the general path returns for an ordinary frame without a payload; None for any other."""
    cdef bytes buf = self._buf
    cdef const unsigned char *p = <const unsigned char *>PyBytes_AS_STRING(buf)
    cdef Py_ssize_t length = PyBytes_GET_SIZE(buf)
    cdef bint s2c = self.direction
    if begins(p, at, length, b"PING", 4):
        return _bare(self, buf, p, at, at + 4, PING)
    if begins(p, at, length, b"PONG", 4):
        return _bare(self, buf, p, at, at + 4, PONG)
    if s2c:
        return _with_text(self, buf, p, at, at + 4, INFO) if begins(p, at, length, b"INFO", 4) else None
    if begins(p, at, length, b"SUB", 3):
        return _with_tokens(self, buf, p, at, at + 3, SUB)
    if begins(p, at, length, b"UNSUB", 5):
        return _with_tokens(self, buf, p, at, at + 5, UNSUB)
    return _with_text(self, buf, p, at, at + 7, CONNECT) if begins(p, at, length, b"CONNECT", 7) else None


cdef Py_ssize_t _subscriptions(self, Py_ssize_t at, list into, Py_ssize_t most) except -1:
    """Put sid, subject (empty for an UNSUB) and queue of plain lines into a list; return the end of the last."""
    cdef bytes buf = self._buf
    cdef const unsigned char *p = <const unsigned char *>PyBytes_AS_STRING(buf)
    cdef Py_ssize_t length = PyBytes_GET_SIZE(buf), limit = self._limit, found = 0
    cdef Line line
    while found < most:
        if begins(p, at, length, b"SUB", 3):
            read_line(p, at + 3, length, limit, &line)
            if line.end == 0 or line.count < 2 or line.count > 3:
                break
            if line.stop[0] - line.start[0] >= 5 and memcmp(&p[line.start[0]], b"$SYS.", 5) == 0:
                break
            into.append((
                piece(p, line.start[line.count - 1], line.stop[line.count - 1]),
                piece(p, line.start[0], line.stop[0]),
                piece(p, line.start[1], line.stop[1]) if line.count == 3 else b"",
            ))
        elif begins(p, at, length, b"UNSUB", 5):
            read_line(p, at + 5, length, limit, &line)
            if line.end == 0 or line.count != 1:
                break
            into.append((piece(p, line.start[0], line.stop[0]), b"", b""))
        else:
            break
        found += 1
        at = line.end
    return at


cdef tuple _bare(self, bytes buf, const unsigned char *p, Py_ssize_t start, Py_ssize_t at, int op):
    """Return the frame of an op without arguments."""
    if p[at] == 13:
        at += 1
    if at >= PyBytes_GET_SIZE(buf) or p[at] != 10:
        return None
    return _made(self, buf, start, at + 1, op, b"", b"", b"", b"")


cdef tuple _with_text(self, bytes buf, const unsigned char *p, Py_ssize_t start, Py_ssize_t at, int op):
    """Return the frame of an op whose argument is text up to the end of the line."""
    cdef Py_ssize_t length = PyBytes_GET_SIZE(buf), end, stop
    cdef const void *lf
    while at < length and (p[at] == 32 or p[at] == 9):
        at += 1
    lf = memchr(&p[at], 10, length - at) if at < length else NULL
    if lf == NULL:
        return None
    end = <const unsigned char *>lf - p
    stop = end - 1 if end > at and p[end - 1] == 13 else end
    if stop - at > <Py_ssize_t>self._limit or (stop > at and memchr(&p[at], 13, stop - at) != NULL):
        return None
    while stop > at and (p[stop - 1] == 32 or p[stop - 1] == 9):
        stop -= 1
    return _made(self, buf, start, end + 1, op, b"", b"", b"", piece(p, at, stop))


cdef tuple _with_tokens(self, bytes buf, const unsigned char *p, Py_ssize_t start, Py_ssize_t at, int op):
    """Return the frame of a SUB or an UNSUB."""
    cdef Line line
    read_line(p, at, PyBytes_GET_SIZE(buf), self._limit, &line)
    if line.end == 0:
        return None
    if op == UNSUB:
        if line.count < 1 or line.count > 2:
            return None
        maximum = piece(p, line.start[1], line.stop[1]) if line.count == 2 else b""
        return _made(self, buf, start, line.end, op, b"", piece(p, line.start[0], line.stop[0]), b"", maximum)
    if line.count < 2 or line.count > 3:
        return None
    subject = piece(p, line.start[0], line.stop[0])
    queue = piece(p, line.start[1], line.stop[1]) if line.count == 3 else b""
    if subject.startswith(b"$SYS."):
        self.odd = True
    sid = piece(p, line.start[line.count - 1], line.stop[line.count - 1])
    return _made(self, buf, start, line.end, op, subject, sid, queue, b"")


cdef tuple _made(self, bytes buf, Py_ssize_t start, Py_ssize_t end, int op, bytes subject, bytes sid, bytes queue, bytes args):
    """Count a frame without a payload; return it, and whether somebody wants it."""
    cdef list counts = self.counts
    wanted = self.interest.need(op, subject) or self._watched(op, subject, sid)
    counts[op] += 1
    frame = _new(_Frame, (buf, start, end, end, _OPS[op], subject, b"", sid, queue, args, 0, 0, 0, False))
    return frame, bool(wanted)
