# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The compiled twin of `capture/columns/table.py`: a block's body becomes Arrow buffers in one walk.

This code reads the bulk of a capture: `Frames` items with plain fields, in them PUB, HPUB, MSG, HMSG, SUB,
UNSUB, PING, PONG and +OK as clients and servers write them, and the templates of their subjects.  The pure
code reads any other record or frame, and its values are filled in.  For a damaged block `buffers` returns
None, and the pure twin raises the error.  So both give the same answers by construction, and the compiled code
needs no error messages.

Frames are read into a table of fixed size (`Row`, offsets into the body).  Whenever it is full, each column
that was asked for takes its values from it (`_builders.pyx`): memory grows with these columns only.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memset, strlen

from natsproxy.capture.columns._builders cimport (
    CAUSE, CONN, DELAY, DIR, FLAGS, HEADER_SIZE, IDX, IN, JETSTREAM, NOTHING, OF, OP, OUT, PAYLOAD, SIZE, SPAN, STATUS,
    T_NS, TEMPLATE, TS, ColumnBuilder, NumberBuilder, TextBuilder,
)
from natsproxy.capture.columns._jetstream cimport KIND, KINDS_ROOM, Message, read_jetstream
from natsproxy.protocol._subjects cimport digit, fits
from natsproxy.capture.format._frames cimport (
    ARGS, BODY, HEADERS, QUEUE, REPLY, SID, SUBJECT, Row, read_frame, read_message,
)
from natsproxy.capture.format._items cimport FULL, Body, Record, Span, read_record, skip
from natsproxy.wire._line cimport HMSG, OPS_ROOM

from itertools import islice

import msgpack

from natsproxy.capture.columns import table as pure
from natsproxy.capture.columns._builders import Unsure
from natsproxy.capture.format import records
from natsproxy.capture.read.frames import frames_of
from natsproxy.errors import CaptureError
from natsproxy.protocol import headers
from natsproxy.protocol.jetstream_message import KINDS, JetStreamMessage, describe
from natsproxy.protocol.subjects import is_valid_subscribe
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import ALL_OPS, OPS, Op

cdef enum:
    TABLE = 256                 # rows and records buffered for the columns
    REDACTED = 4                # Flags.REDACTED
    DEPTH = 32                  # of nested msgpack that is not a plain Frames item: more is hostile

cdef enum:
    CAUSED = 1 << 24, REPLACED = 1 << 25    # beside the bits of the ops: a record has a cause, an `of`


def _with(field):
    """Return the ops whose control lines may have a field."""
    return sum(spec.op.bit for spec in OPS if any(field in form for form in spec.forms.values()))


_SUBJECTS = _with("subject")
_TEXTS = {
    "op": (OP, 0, ALL_OPS), "subject": (SPAN, SUBJECT, _SUBJECTS), "template": (TEMPLATE, 0, _SUBJECTS),
    "reply": (SPAN, REPLY, _with("reply")), "sid": (SPAN, SID, _with("sid")),
    "queue": (SPAN, QUEUE, _with("queue")), "headers": (SPAN, HEADERS, _with("header_size")),
    "payload": (PAYLOAD, BODY, _with("size")), "err": (NOTHING, 0, 0), "err_kind": (NOTHING, 0, 0), "err_subject": (NOTHING, 0, 0),
    "err_queue": (NOTHING, 0, 0), "err_sid": (NOTHING, 0, 0), "cause": (CAUSE, 0, CAUSED),
    "args": (SPAN, ARGS, _with("args")),
}
_NUMBERS = {
    "idx": (IDX, 4, ALL_OPS), "t_ns": (T_NS, 8, ALL_OPS), "ts": (TS, 8, ALL_OPS), "conn_id": (CONN, 8, ALL_OPS),
    "dir": (DIR, 4, ALL_OPS), "in_ordinal": (IN, 8, ALL_OPS), "out_ordinal": (OUT, 8, ALL_OPS),
    "header_size": (HEADER_SIZE, 4, ALL_OPS), "size": (SIZE, 4, ALL_OPS), "status": (STATUS, 4, 1 << HMSG),
    "delay_ns": (DELAY, 8, ALL_OPS), "flags": (FLAGS, 4, ALL_OPS), "of": (OF, 8, REPLACED),
}
for _place, _name in enumerate(JetStreamMessage._fields):
    _kind = pure.FIELDS[f"js_{_name}"][0]
    if _kind == "string":
        _TEXTS[f"js_{_name}"] = JETSTREAM + _place, _place, 1 << _place
    else:
        _NUMBERS[f"js_{_name}"] = JETSTREAM + _place, 8 if _kind == "bigint" else 4, 1 << _place
NAMES = frozenset((*_TEXTS, *_NUMBERS))
"""The columns that this module builds; the caller builds those with one value for a whole block."""


cdef inline bint number_of(int source, const Row *row, const Record *record, int64_t *value) noexcept nogil:
    """Find a number of a frame; False where it is null."""
    if source == IDX:
        value[0] = row.idx
    elif source == T_NS:
        value[0] = record.wall
    elif source == TS:
        value[0] = record.wall // 1000 - (record.wall % 1000 < 0)
    elif source == CONN:
        value[0] = record.conn
    elif source == DIR:
        value[0] = record.direction
    elif source == IN:
        value[0] = record.in_first + row.nth
        return record.has_in_first
    elif source == OUT:
        value[0] = record.out_first + row.nth
        return record.has_out_first
    elif source == HEADER_SIZE:
        value[0] = row.header_size
    elif source == SIZE:
        value[0] = row.size
    elif source == DELAY:
        value[0] = record.out_t - record.in_t if record.has_in_t and record.has_out_t else 0
    elif source == FLAGS:
        value[0] = record.flags
    elif source == OF:
        value[0] = record.of
        return record.has_of
    return True


cdef class Walk:
    """A walk over one block that fills columns.

    odd: the rows of the table that the pure code read.  messages: the JetStream fields that C found in the
    rows, if a column needs them; described: those that the pure code found.  total: rows in the columns so far.
    """

    cdef bytes whole
    cdef Body body
    cdef object ref, query
    cdef const unsigned char *p
    cdef Row *rows
    cdef Record *records
    cdef Message *messages
    cdef list described
    cdef bint for_jetstream     # a JetStream column is asked for
    cdef const char *kind[KINDS_ROOM]
    cdef int row_count, record_count
    cdef list odd, columns, patterns
    cdef int64_t idx, payload, mono0, wall0
    cdef int ops
    cdef bint by_subject        # the query asks for some subjects only
    cdef readonly Py_ssize_t total
    cdef tuple labels           # of the ops and kinds, and the same where C finds them
    cdef const char *label[OPS_ROOM]

    def __cinit__(self):
        self.rows = <Row *>calloc(TABLE, sizeof(Row))
        self.records = <Record *>calloc(TABLE, sizeof(Record))
        self.messages = <Message *>calloc(TABLE, sizeof(Message))
        if self.rows == NULL or self.records == NULL or self.messages == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.rows)
        free(self.records)
        free(self.messages)

    def __init__(self, bytes body, ref, list columns, payload, query):
        self.whole, self.ref, self.columns, self.query = body, ref, columns, query
        self.p = self.body.p = <const unsigned char *>PyBytes_AS_STRING(body)
        self.body.length = PyBytes_GET_SIZE(body)
        self.odd, self.described = [], []
        self.labels = tuple(spec.token for spec in OPS), tuple(kind.encode() for kind in KINDS)
        for place, label in enumerate(self.labels[0]):
            self.label[place] = PyBytes_AS_STRING(label)
        for place, label in enumerate(self.labels[1]):
            self.kind[place] = PyBytes_AS_STRING(label)
        self.for_jetstream = any((<ColumnBuilder>column).source >= JETSTREAM for column in columns)
        summary = ref.summary
        if max(abs(summary.mono0), abs(summary.wall0)) >= 1 << 62:
            raise Unsure
        self.mono0, self.wall0, self.payload = summary.mono0, summary.wall0, min(payload, FULL)
        self.ops = ALL_OPS if query is None else query.ops
        self.by_subject = query is not None and bool(query.subjects)
        # Bounds the count that a hostile block claims: no frame is shorter than the 5 bytes of +OK.
        hint = min(max(summary.frames, 0), self.body.length // 5, 1 << 16)
        for column in columns:
            (<ColumnBuilder>column).reserve(hint)
        self.patterns = [p for p in query.subjects if is_valid_subscribe(p)] if self.by_subject else []

    def run(self):
        """Walk all items."""
        cdef Py_ssize_t at = 0, start
        cdef Record *record
        while at < self.body.length:
            if self.record_count == TABLE:
                self.flush()
            record = &self.records[self.record_count]
            start = at
            if read_record(&self.body, &at, record):
                self.frames(record, start, at)
            else:
                at = skip(&self.body, start, DEPTH)
                if at < 0:
                    raise Unsure
                item = self.item(start, at)
                if isinstance(item, records.Frames):
                    self.pure_frames(item, 0)
        self.flush()

    cdef object item(self, Py_ssize_t start, Py_ssize_t stop):
        return _item(self.whole[start:stop], self.ref)

    cdef bint passes_over(self, Record *record):
        """True if the query rules the whole record out: `columns.passes_over`."""
        query = self.query
        if query is None:
            return False
        if query.conns and record.conn not in query.conns.numbers(self.ref.segment.run):
            return True
        if query.direction is not None and record.direction != query.direction:
            return True
        if query.start is not None and record.wall < query.start:
            return True
        return query.end is not None and record.wall > query.end

    cdef int frames(self, Record *record, Py_ssize_t start, Py_ssize_t stop) except -1:
        cdef Py_ssize_t at = record.data.start, end = record.data.stop
        cdef Row *row
        cdef int64_t t = record.in_t if record.has_in_t else record.out_t
        cdef int32_t count = 0
        cdef bint s2c = record.direction, whole = record.flags & ~REDACTED == 0
        # Times are relative to mono0; without any, the time is 0 of the clock itself.
        record.wall = self.wall0 + (t if record.has_in_t or record.has_out_t else -self.mono0)
        if self.passes_over(record):
            self.idx += record.frames if whole else 1
            return 0
        self.record_count += 1
        while at < end or not whole:
            if self.row_count == TABLE:
                record = self.flush_all_but_last()
            row = &self.rows[self.row_count]
            if whole:
                at = read_frame(self.p, at, end, s2c, row)
            else:
                memset(row, 0, sizeof(Row))
                at = read_message(self.p, at, end, s2c, row, True)
            if at == 0:
                # The pure code reads the rest of this record, and reports where it is damaged.
                return self.pure_frames(self.item(start, stop), count)
            row.idx, row.nth, row.record = <int32_t>self.idx, count, self.record_count - 1
            self.step()
            count += 1
            if self.ops >> row.op & 1 and (not self.by_subject or self.wants(row)):
                self.row_count += 1
            if not whole:
                return 0
        if count != record.frames:
            raise Unsure
        return 0

    cdef inline int step(self) except -1:
        self.idx += 1
        if self.idx > FULL:
            raise Unsure
        return 0

    cdef bint wants(self, Row *row) except -1:
        cdef Span span = row.part[SUBJECT]
        for pattern in self.patterns:
            if span.stop > span.start and fits(
                <const unsigned char *>PyBytes_AS_STRING(pattern), PyBytes_GET_SIZE(pattern),
                &self.p[span.start], span.stop - span.start,
            ):
                return True
        return False

    cdef int pure_frames(self, item, Py_ssize_t done) except -1:
        """Let the pure code read a record, except for the `done` frames that were read already."""
        cdef Row *row
        query = self.query
        if query is not None and done == 0 and pure.passes_over(query, self.ref, item):
            self.idx += pure.count_of(item)
            return self.step_to(self.idx)
        for one in islice(frames_of(self.ref, item), done, None):
            if query is None or query.wants(one):
                if self.row_count == TABLE:
                    self.flush()
                self.odd.append((self.ref, self.idx, one))
                row = &self.rows[self.row_count]
                memset(row, 0, sizeof(Row))
                row.odd = <int32_t>len(self.odd)
                self.row_count += 1
            self.step()
        return 0

    cdef int step_to(self, int64_t idx) except -1:
        if not 0 <= idx <= FULL:
            raise Unsure
        return 0

    cdef Record *flush_all_but_last(self) except NULL:
        """Empty the table in the middle of a record; return the record's new place."""
        cdef Record last = self.records[self.record_count - 1]
        self.flush()
        self.records[0] = last
        self.record_count = 1
        return &self.records[0]

    cdef int flush(self) except -1:
        cdef ColumnBuilder column
        cdef int i, ops = 0, fields = self.find_jetstream() if self.for_jetstream else 0
        # A column that no row of the table has a value in is filled with nulls at once.
        for i in range(self.row_count):
            ops |= 1 << self.rows[i].op
        for i in range(self.record_count):
            ops |= (CAUSED if self.records[i].has_cause else 0) | (REPLACED if self.records[i].has_of else 0)
        for column in self.columns if self.row_count else ():
            column.reserve(self.row_count)
            if not (column.ops & (fields if column.source >= JETSTREAM else ops) or self.odd) or (column.source == PAYLOAD and self.payload == 0):
                column.add_nulls(self.row_count)
            elif isinstance(column, NumberBuilder):
                self.fill_numbers(<NumberBuilder>column)
            else:
                self.fill_texts(<TextBuilder>column)
        self.total += self.row_count
        self.row_count = self.record_count = 0
        self.odd.clear()
        return 0

    cdef int find_jetstream(self) except -1:
        """Read the JetStream messages in the table; return the bits of the fields that they have."""
        cdef int i, found, fields = 0
        cdef Row *row
        cdef Message *message
        self.described.clear()
        for i in range(self.row_count):
            row, message = &self.rows[i], &self.messages[i]
            if row.odd:
                continue
            found = read_jetstream(self.p, row, message)
            if found < 0:
                made = describe(_frame(self.p, row))
                self.described.append(made)
                message.odd = <int>len(self.described)
                message.has = sum([1 << place for place, value in enumerate(made) if value not in (None, b"")])
            if found:
                fields |= message.has
        return fields

    cdef int fill_texts(self, TextBuilder column) except -1:
        cdef int i
        cdef Row *row
        cdef Span span
        cdef Record *record
        for i in range(self.row_count):
            row = &self.rows[i]
            if row.odd:
                column.add_value(column.make(self.odd[row.odd - 1], self.payload))
                continue
            if column.source >= JETSTREAM:
                self.add_jetstream(column, &self.messages[i])
                continue
            if column.source == OP:
                column.add_bytes(self.label[row.op], strlen(self.label[row.op]))
                continue
            if column.source == CAUSE:
                record = &self.records[row.record]
                if record.has_cause:
                    column.add_text(&self.p[record.cause.start], record.cause.stop - record.cause.start)
                else:
                    column.end_row(False)
                continue
            span = row.part[column.part]
            if column.source == PAYLOAD:
                if row.size == 0:
                    column.end_row(False)
                    continue
                if self.payload > 0 and span.stop - span.start > self.payload:
                    span.stop = span.start + <uint32_t>self.payload
                column.add_bytes(<const char *>&self.p[span.start], span.stop - span.start)
            elif column.source == NOTHING or span.stop == span.start:
                column.end_row(False)
            elif column.source == TEMPLATE:
                column.add_template(&self.p[span.start], span.stop - span.start)
            else:
                column.add_text(&self.p[span.start], span.stop - span.start)
        return 0

    cdef int add_jetstream(self, TextBuilder column, Message *message) except -1:
        cdef Span span
        if not message.has >> column.part & 1:
            return column.end_row(False)
        if message.odd:
            value = self.described[message.odd - 1][column.part]
            return column.add_value(value.decode("utf-8", "replace") if isinstance(value, bytes) else value)
        if column.part == KIND:
            return column.add_bytes(self.kind[message.kind], strlen(self.kind[message.kind]))
        span = message.text[column.part]
        return column.add_text(&self.p[span.start], span.stop - span.start)

    cdef int fill_numbers(self, NumberBuilder column) except -1:
        cdef int i, last = -1
        cdef int64_t value = 0
        cdef bint present = False, shared = column.source >= T_NS and column.source <= FLAGS
        cdef Row *row
        for i in range(self.row_count):
            row = &self.rows[i]
            if row.odd:
                last = -1
                made = column.make(self.odd[row.odd - 1], self.payload)
                present = made is not None
                if present and type(made) is not int:
                    raise Unsure
                value = made if present else 0
            elif column.source >= JETSTREAM:
                present = self.jetstream_number(column.source - JETSTREAM, &self.messages[i], &value)
            elif column.source == STATUS:
                present = self.status(row, &value)
            elif not shared or row.record != last:  # a value of the record is computed once
                present = number_of(column.source, row, &self.records[row.record], &value)
                last = row.record
            if not column.add(value, present):
                raise Unsure
        return 0

    cdef bint jetstream_number(self, int field, Message *message, int64_t *value) except -1:
        if message.has >> field & 1 == 0:
            return False
        if message.odd:
            value[0] = self.described[message.odd - 1][field]
        else:
            value[0] = message.number[field]
        return True

    cdef bint status(self, Row *row, int64_t *value) except -1:
        cdef Span span = row.part[HEADERS]
        cdef const unsigned char *s = &self.p[span.start]
        cdef Py_ssize_t length = span.stop - span.start
        if row.op != HMSG or length < 9 or s[8] != 32:
            return False
        if length >= 12 and memcmp(s, b"NATS/1.0 ", 9) == 0 and digit(s[9]) and digit(s[10]) and digit(s[11]):
            value[0] = 100 * (s[9] - 48) + 10 * (s[10] - 48) + (s[11] - 48)
            return True
        found = headers.parse(PyBytes_FromStringAndSize(<const char *>s, length)).status
        value[0] = 0 if found is None else found
        return found is not None


cdef object _frame(const unsigned char *p, const Row *row):
    """Return the frame of a message, for the pure code; only what `describe` reads of it is there."""
    cdef Span subject = row.part[SUBJECT], reply = row.part[REPLY], payload = row.part[HEADERS]
    cdef bytes data
    payload.stop = row.part[BODY].stop
    data = PyBytes_FromStringAndSize(<const char *>&p[payload.start], payload.stop - payload.start)
    return Frame(
        data, 0, len(data), 0, Op(row.op),
        PyBytes_FromStringAndSize(<const char *>&p[subject.start], subject.stop - subject.start),
        PyBytes_FromStringAndSize(<const char *>&p[reply.start], reply.stop - reply.start),
        header_size=row.header_size, size=row.size,
    )


cdef object _item(bytes raw, ref):
    try:
        fields = msgpack.unpackb(
            raw, raw=False, strict_map_key=False, unicode_errors="replace", max_ext_len=0
        )
    except (ValueError, TypeError, msgpack.UnpackException):
        raise Unsure from None
    return records.decode(fields, ref.summary.mono0)


def others(bytes body, ref):
    """Return the items of a block except plain frames, and the bytes of those; None for the pure twin."""
    cdef Body whole
    cdef Record record
    cdef Py_ssize_t at = 0, start, size = 0
    whole.p, whole.length = <const unsigned char *>PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body)
    found = []
    try:
        while at < whole.length:
            start = at
            if read_record(&whole, &at, &record):
                size += record.data.stop - record.data.start
            else:
                at = skip(&whole, start, DEPTH)
                if at < 0:
                    return None
                item = _item(body[start:at], ref)
                if item is not None:
                    found.append(item)
    except (Unsure, CaptureError, OverflowError):
        return None
    return found, size


def buffers(bytes body, ref, names, payload=0, query=None):
    """Return the Arrow buffers of a block's columns, None where the pure twin must decode it.

    body: the block's, decompressed.  names: of `NAMES`.  payload: bytes of each payload (0 none, -1 all).
    Returns the number of rows and for each name (nulls, validity bitmap or None, offsets or None, data).
    """
    makers = {name: pure.FIELDS[name][1] for name in names}
    columns = [
        TextBuilder(makers[name], *_TEXTS[name]) if name in _TEXTS else NumberBuilder(makers[name], *_NUMBERS[name])
        for name in names
    ]
    try:
        walk = Walk(body, ref, columns, payload, query)
        walk.run()
    except (Unsure, CaptureError, OverflowError):
        return None
    return walk.total, {name: column.finish() for name, column in zip(names, columns)}
