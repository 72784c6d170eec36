# cython: language_level=3, cdivision=True
"""The JetStream fields of a message, in C; `protocol/jetstream_message.py` defines them and is authoritative.

This code reads deliveries, answers to them, publishes and plain publish acks, the bulk of JetStream traffic.
For the rest it only reports that the Python code must read it.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp

from natsproxy.protocol._subjects cimport digit, lower, token_end, upper
from natsproxy.capture.format._frames cimport BODY, HEADERS, REPLY, SUBJECT, Row
from natsproxy.capture.format._items cimport Span
from natsproxy.wire._line cimport HMSG, HPUB, MSG, PUB

cdef enum:
    # The fields of `JetStreamMessage` that C fills.
    KIND = 0, DOMAIN = 2, STREAM, CONSUMER, DELIVERED, STREAM_SEQ, CONSUMER_SEQ, PENDING, FIELDS

cdef enum:
    # `jetstream_message.KINDS`
    API, DELIVERY, PUBLISH, PUBLISH_ACK, DUPLICATE, ACK, NAK, WPI, TERM, NEXT, OTHER, UNKNOWN, KINDS_ROOM

cdef enum:
    BODY_READ = 1024            # jetstream_message._READ


cdef struct Message:
    int odd                     # 0, or 1 + the place in the list of those that the pure code read
    int has                     # bits of the fields
    int kind
    Span text[FIELDS]           # by field
    int64_t number[FIELDS]


cdef inline bint begins(const unsigned char *p, Span span, const char *text, Py_ssize_t length) noexcept nogil:
    return span.stop >= span.start + length and memcmp(&p[span.start], text, length) == 0


cdef inline Py_ssize_t read_digits(const unsigned char *p, Py_ssize_t at, Py_ssize_t stop, int64_t *value) noexcept nogil:
    """Read a number of up to 19 digits; return its end, `at` where there is none.  Below 0: it is too large."""
    cdef Py_ssize_t start = at
    cdef uint64_t read = 0
    while at < stop and at - start < 19 and digit(p[at]):
        read = 10 * read + p[at] - 48
        at += 1
    value[0] = <int64_t>read
    return at


cdef inline int read_acked(const unsigned char *p, Span subject, Message *message) noexcept nogil:
    """Read the fields of an ack subject (`jetstream.parse_ack`); -1 where the pure code must."""
    cdef Py_ssize_t at = subject.start, stop, i
    cdef int count = 1, nth = 0, names, field
    cdef int64_t value
    for i in range(subject.start, subject.stop):
        count += p[i] == 46
    if count != 9 and count < 11:
        return 1
    names = 2 if count == 9 else 4
    while nth < names + 7:
        stop = token_end(p, at, subject.stop)
        field = STREAM + nth - names if nth >= names else DOMAIN if nth == 2 else KIND
        if nth == names + 5:    # the time, of which there is no column
            field = KIND
        elif nth == names + 6:
            field = PENDING
        if nth >= names + 2:
            if read_digits(p, at, stop, &value) != stop or stop == at or value < 0:
                return -1
            message.number[field] = value
            message.has |= 1 << field
        elif field != KIND and stop > at and not (field == DOMAIN and stop - at == 1 and p[at] == 95):
            message.text[field].start, message.text[field].stop = at, stop
            message.has |= 1 << field
        at = stop + 1
        nth += 1
    return 1


cdef inline int answer_kind(const unsigned char *p, Span body, Py_ssize_t size) noexcept nogil:
    """Return the kind of the answer to a delivery: `jetstream_message._answer_kind`."""
    cdef Py_ssize_t length = body.stop - body.start
    if begins(p, body, b"-NAK", 4):
        return NAK
    if begins(p, body, b"+TERM", 5):
        return TERM
    if begins(p, body, b"+NXT", 4):
        return NEXT
    if length < min(size, 5):
        return UNKNOWN
    if length == 0 or (length == 4 and begins(p, body, b"+ACK", 4)) or (length == 3 and begins(p, body, b"+OK", 3)):
        return ACK
    return WPI if length == 4 and begins(p, body, b"+WPI", 4) else OTHER


cdef inline bint is_marked(const unsigned char *p, Span headers) noexcept nogil:
    """True if a header is for JetStream: `jetstream_message._FOR_JETSTREAM`."""
    cdef const unsigned char *end = &p[headers.stop]
    cdef const unsigned char *at = &p[headers.start]
    cdef Span line
    line.stop = headers.stop
    while True:
        at = <const unsigned char *>memchr(at, 10, end - at)
        if at == NULL:
            return False
        at += 1
        line.start = <uint32_t>(at - p)
        if not begins(p, line, b"Nats-", 5):
            continue
        line.start += 5
        if begins(p, line, b"Msg-Id:", 7) or begins(p, line, b"TTL:", 4) or begins(p, line, b"Batch-Id:", 9):
            return True
        if begins(p, line, b"Expected-", 9):
            line.start += 9
            at = &p[line.start]
            while at < end and (lower(at[0]) or upper(at[0]) or at[0] == 45):
                at += 1
            if at < end and at[0] == 58 and at > &p[line.start]:
                return True


cdef inline int read_publish_ack(const unsigned char *p, Span body, Message *message) noexcept nogil:
    """Read `{"stream":"S","seq":7}`; -1 for any other publish ack."""
    cdef Py_ssize_t start = body.start + 11, stop, at
    cdef Span rest
    if not begins(p, body, b'{"stream":"', 11) or body.stop - body.start > BODY_READ:
        return -1
    at = start
    while at < body.stop and p[at] != 34:
        at += 1
    stop = at
    rest.start, rest.stop = <uint32_t>(at + 2), body.stop
    if rest.start >= rest.stop or p[at + 1] != 44:
        return -1
    rest.start += p[rest.start] == 32
    if not begins(p, rest, b'"seq":', 6):
        return -1
    at = rest.start + 6
    at += at < body.stop and p[at] == 32
    rest.start = <uint32_t>at
    at = read_digits(p, at, body.stop, &message.number[STREAM_SEQ])
    if at == rest.start or at + 1 != body.stop or p[at] != 125 or message.number[STREAM_SEQ] < 0:
        return -1
    message.kind = PUBLISH_ACK
    message.has = 1 << KIND | 1 << STREAM_SEQ
    if stop > start:
        message.text[STREAM].start, message.text[STREAM].stop = start, stop
        message.has |= 1 << STREAM
    return 1


cdef inline bint has_err_code(const unsigned char *p, Span body) noexcept nogil:
    cdef const unsigned char *at = &p[body.start]
    cdef const unsigned char *end = &p[min(body.stop, body.start + BODY_READ)]
    while end - at >= 8:
        at = <const unsigned char *>memchr(at, 101, end - at)
        if at == NULL or end - at < 8:
            return False
        if memcmp(at, b"err_code", 8) == 0:
            return True
        at += 1
    return False


cdef inline int read_jetstream(const unsigned char *p, const Row *row, Message *message) noexcept nogil:
    """Read a row; 0 where it is not JetStream, -1 where the pure code must read it."""
    cdef Span subject = row.part[SUBJECT], body = row.part[BODY]
    cdef bint sent = row.op == PUB or row.op == HPUB
    message.odd = message.has = 0
    if not sent and row.op != MSG and row.op != HMSG:
        return 0
    if not sent and begins(p, row.part[REPLY], b"$JS.ACK.", 8):
        message.kind, message.has = DELIVERY, 1 << KIND
        return read_acked(p, row.part[REPLY], message)
    if begins(p, subject, b"$JS.", 4):
        if not begins(p, subject, b"$JS.ACK.", 8):
            return -1
        message.kind, message.has = answer_kind(p, body, row.size - row.header_size), 1 << KIND
        return read_acked(p, subject, message)
    if sent:
        if row.op == PUB or not is_marked(p, row.part[HEADERS]):
            return 0
        message.kind, message.has = PUBLISH, 1 << KIND
        return 1
    if not begins(p, body, b'{"', 2):
        return 0
    if begins(p, body, b'{"stream"', 9):
        return read_publish_ack(p, body, message)
    if begins(p, body, b'{"error"', 8):
        return -1
    if begins(p, body, b'{"type":"', 9):
        return -1 if begins(p, body, b'{"type":"io.nats.', 17) or has_err_code(p, body) else 0
    return 0
