# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The frames of clear flows: passed on, changed, dropped, held and recorded without the interpreter lock.

The plane (`_plane.pyx`, whose theory this is a part of) calls `Passing.pass_on` with the bytes of a read.  Nothing
here calls Python, but for actions of rules that are asked (`Decisions.decide`): `reports`, `last_recorded` and
`unrecorded` tell the plane what Python has to hear.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from libc.errno cimport ENOMEM

from natsproxy.capture.write._block cimport BlockBuilder, Changed, Run
from natsproxy.net._flow cimport KEPT, NO_LIMIT, READ, TAIL, Flow, Held, Leg, is_tail, keep_tail, lose, send_to
from natsproxy.net._holding cimport bytes_of, cause_of, drop_first, hold_back
from natsproxy.rules.engine._decisions cimport DAMAGE, DROP, DUPLICATE, HOLD, PASS, REWRITE, Decisions, Effect, Text
from natsproxy.wire._line cimport OPS_ROOM
from natsproxy.wire._walk cimport (
    AT_OPEN, AT_WANTED, Message, Passed, account, account_drop, is_too_large, is_wanted, message_at, pass_messages,
)

cdef Text NOBODY
NOBODY.p, NOBODY.size = <const unsigned char *>b"", 0


cdef class Passing:
    """The state of passing frames on, one for each thread; `_passing.pxd` explains its members."""

    def __cinit__(self, Py_ssize_t open_room, Py_ssize_t open_most):
        self.open_room, self.open_most = open_room, open_most
        self.out = <unsigned char *>malloc(KEPT + READ)
        if self.out == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.out)

    cdef bint is_block_full(self) noexcept nogil:
        return self.last_recorded != NULL and self.builder is not None and self.builder.full()

    cdef bint is_block_overfull(self) noexcept nogil:
        return self.builder is not None and self.builder.overfull()

    cdef Py_ssize_t pass_on(self, Flow *flow, const unsigned char *p, Py_ssize_t size, int64_t now) noexcept nogil:
        """Pass on the frames that nobody wants; return where the first byte of anything else stands.

        The beginning of a frame at the end may be kept, and counts as passed.
        """
        cdef Py_ssize_t at = 0, sent = 0, stop
        cdef bint whole = True
        flow.watch.now = now
        self.known = False
        if flow.missing:
            at = pass_open(self, flow, p, size, now)
            whole = at == size or flow.missing == 0
        if whole and at < size:
            at = pass_frames(self, flow, p, at, size, now, &sent)
        whole = whole and at < size and not flow.missing
        stop = size if whole and keep_rest(self, flow, p + at, size - at) else at
        self.send(flow.target, p + sent, at - sent, stop < size)
        return stop

    cdef void send(self, Leg *leg, const unsigned char *p, Py_ssize_t size, bint more) noexcept nogil:
        """Send bytes, behind those that wait in `out`; more: let them wait there, too, for others of their read."""
        if more or self.out_size:
            put_out(self, leg, p, size)
            if not more:
                self.flush(leg)
        elif size:
            send_to(leg, p, size)

    cdef void flush(self, Leg *leg) noexcept nogil:
        """Send the bytes that wait in `out`."""
        if self.out_size:
            send_to(leg, self.out, self.out_size)
            self.out_size = 0

    cdef void take_over(self, Flow *flow) noexcept nogil:
        """Count the record of an open frame here: its connection comes from another thread."""
        if flow.record != NULL:
            self.open_room -= flow.open_size

    cdef void let_go(self, Flow *flow) noexcept nogil:
        """Count the record of an open frame here no more: its connection goes to another thread."""
        if flow.record != NULL:
            self.open_room += flow.open_size

    cdef void release(self, Flow *flow, int64_t now) noexcept nogil:
        """Send the first frames that wait and are due, in one write."""
        cdef Held *item = flow.held
        cdef int op
        while item != NULL and item.due <= now and (self.out_size == 0 or self.out_size + item.size <= KEPT + READ):
            put_out(self, flow.target, bytes_of(item), item.size)
            if flow.recording:
                record_held(self, flow, item, now)
            flow.passed_sent += item.frames
            flow.passed_out += item.size
            flow.next_out += item.frames
            for op in range(OPS_ROOM):
                flow.surplus[op] += item.counted[op]
            flow.unequal = True
            self.drop_first(flow)
            item = flow.held
        self.flush(flow.target)

    cdef void drop_first(self, Flow *flow) noexcept nogil:
        """Remove the first of the items that wait."""
        self.held_bytes -= flow.held_bytes
        drop_first(flow)
        self.held_bytes += flow.held_bytes

    cdef void drop_record(self, Flow *flow) noexcept nogil:
        """Give back the room of an open frame's record."""
        if flow.record != NULL:
            self.open_room += flow.open_size
            free(flow.record)
            flow.record = NULL

    cdef void add_report(self, Flow *flow) noexcept nogil:
        """Note that rules have acted in a flow."""
        flow.fired = True
        if not flow.reports:
            flow.reports, flow.next_report, self.reports = True, self.reports, flow

    cdef void drop_report(self, Flow *flow) noexcept nogil:
        """Take a flow out of those in which rules have acted."""
        cdef Flow **place = &self.reports
        if flow.reports:
            while place[0] != flow:
                place = &place[0].next_report
            place[0] = flow.next_report
            flow.reports = False


cdef Py_ssize_t pass_frames(
    Passing passing, Flow *flow, const unsigned char *p, Py_ssize_t at, Py_ssize_t size, int64_t now, Py_ssize_t *sent
) noexcept nogil:
    """Pass on frames from `at` on; `sent` is where the bytes begin that are to be sent as they are."""
    cdef Passed passed
    cdef const Effect *effect
    while True:
        pass_messages(p, at, size, NO_LIMIT, &flow.watch, &passed)
        if passed.frames and flow.held != NULL:
            hold(passing, flow, p + at, passed.at - at, passed.frames, passed.ops, passed.counted, now, now, &NOBODY)
            at = sent[0] = passed.at
        elif passed.frames:
            if flow.recording:
                record(
                    passing, flow, p + at, passed.at - at, passed.frames, passed.ops, flow.next_in, now, flow.next_out
                )
            count(passing, flow, &passed, passed.at - at)
            at = passed.at
        if (
            passed.stop == AT_OPEN and flow.held == NULL and passed.message.end - at > flow.whole
            and begin_open(passing, flow, p, at, size, &passed.message)
        ):
            return size
        if passed.stop != AT_WANTED or flow.decisions == NULL:
            return at
        effect = (<Decisions>flow.decisions).decide(
            p, at, &flow.watch, &passed.message, flow.next_in, now, flow.held != NULL, &passing.asks
        )
        if effect == NULL:
            passing.known = (<Decisions>flow.decisions).known
            return at
        apply(passing, flow, p, at, &passed.message, effect, now, sent)
        at = passed.message.end


cdef bint keep_rest(Passing passing, Flow *flow, const unsigned char *p, Py_ssize_t size) noexcept nogil:
    """Keep the beginning of a control line, or of a small frame; False: the session's.

    The frame is one that goes on only whole, one that waits behind others, or one with a decision.
    """
    cdef Message message
    cdef Py_ssize_t most = min(flow.whole, KEPT) if flow.whole else KEPT if flow.held != NULL else TAIL
    if size < flow.watch.limit and is_tail(p, size, flow.direction):
        return keep_tail(flow, p, size)
    return (
        size < most
        and message_at(p, 0, size, &flow.watch, &message) and size < message.end <= most
        and (message.end - size > 1 or p[size - 1] == 13)
        and (
            flow.whole
            or (flow.held != NULL and not is_wanted(p, &flow.watch, &message) and not is_too_large(&flow.watch, &message))
            or (flow.decisions != NULL and (<Decisions>flow.decisions).find(p, 0, &flow.watch, &message) != NULL)
        )
        and keep_tail(flow, p, size)
    )


cdef void record(
    Passing passing, Flow *flow, const unsigned char *p, Py_ssize_t size, Py_ssize_t frames, uint32_t ops,
    uint64_t first_in, int64_t now, uint64_t first_out
) noexcept nogil:
    passing.last_recorded = flow.connection
    if not passing.builder.add_run(flow.conn, flow.direction, p, size, frames, ops, first_in, now, first_out):
        passing.unrecorded = flow.connection


cdef void count(Passing passing, Flow *flow, const Passed *passed, Py_ssize_t size) noexcept nogil:
    cdef int op
    flow.passed_frames += passed.frames
    flow.passed_sent += passed.frames
    flow.passed_bytes += size
    flow.passed_out += size
    flow.next_in += passed.frames
    flow.next_out += passed.frames
    passing.frames += passed.frames
    for op in range(OPS_ROOM):
        if passed.ops >> op & 1:
            flow.passed_ops[op] += passed.counted[op]


# -- frames that rules change

cdef void apply(
    Passing passing, Flow *flow, const unsigned char *p, Py_ssize_t at, const Message *message, const Effect *effect,
    int64_t now, Py_ssize_t *sent
) noexcept nogil:
    """Do with a frame as the rules have decided."""
    cdef Py_ssize_t size = message.end - at, sends = 1, i
    cdef int op = message.op if effect.op < 0 else effect.op  # of what goes on
    cdef Text rest
    cdef Py_ssize_t[OPS_ROOM] counted
    account(p, &flow.watch, message)
    if effect.owner >= 0:
        passing.add_report(flow)
    if effect.verdict == HOLD or (effect.verdict == PASS and flow.held != NULL):
        put_out(passing, flow.target, p + sent[0], at - sent[0])
        sent[0] = message.end
        counted[message.op] = 1
        hold(
            passing, flow, p + at, size, 1, 1 << message.op, counted, now,
            now + effect.delay, &effect.cause if effect.verdict == HOLD else &NOBODY
        )
        return
    if effect.verdict == PASS:
        flow.passed_out += size
        if flow.recording:
            record(passing, flow, p + at, size, 1, 1 << message.op, flow.next_in, now, flow.next_out)
    else:
        rest.p, rest.size = p + at + effect.cut, size - effect.cut
        sends = 0 if effect.verdict == DROP else 1 + effect.copies
        if flow.recording:
            record_change(passing, flow, p + at, size, False, &rest, message.op, effect, now, 0)
        if effect.verdict == DAMAGE:  # where it stands: nobody reads these bytes again
            (<Decisions>flow.decisions).damage(
                effect, <unsigned char *>&p[message.line.end + message.head], message.size - message.head
            )
        elif effect.verdict == DUPLICATE:
            put_out(passing, flow.target, p + sent[0], message.end - sent[0])
            sent[0] = message.end
            for i in range(effect.copies):
                put_out(passing, flow.target, rest.p, rest.size)
        else:
            put_out(passing, flow.target, p + sent[0], at - sent[0])
            sent[0] = message.end
        if effect.verdict == REWRITE:
            put_out(passing, flow.target, effect.head.p, effect.head.size)
            put_out(passing, flow.target, rest.p, rest.size)
        elif effect.verdict == DROP:
            account_drop(p, &flow.watch, message)
        if sends != 1 or op != message.op:
            flow.surplus[message.op] -= 1
            flow.surplus[op] += sends
            flow.unequal = True
        flow.passed_out += sends * (effect.head.size + rest.size)
        if flow.recording:
            for i in range(sends):
                record_change(passing, flow, p + at, size, True, &rest, op, effect, now, i)
    flow.passed_ops[message.op] += 1
    flow.passed_bytes += size
    flow.passed_frames += 1
    flow.next_in += 1
    passing.frames += 1
    flow.passed_sent += sends
    flow.next_out += sends


cdef void record_change(
    Passing passing, Flow *flow, const unsigned char *p, Py_ssize_t size, bint went, const Text *rest, int op,
    const Effect *effect, int64_t now, Py_ssize_t before
) noexcept nogil:
    """Record a frame as it came or, with `went`, in its other form; before: so many have gone in its place."""
    cdef const Text *head = &effect.head
    cdef Changed frame
    frame.conn, frame.direction, frame.op, frame.t = flow.conn, flow.direction, op, now
    frame.cause, frame.cause_size = effect.cause.p, effect.cause.size
    frame.in_first, frame.out_first = flow.next_in, flow.next_out + before
    passing.last_recorded = flow.connection
    if not (
        passing.builder.add_changed(&frame, True, head.p, head.size, rest.p, rest.size) if went
        else passing.builder.add_changed(&frame, False, p, 0, p, size)
    ):
        passing.unrecorded = flow.connection


cdef void put_out(Passing passing, Leg *leg, const unsigned char *p, Py_ssize_t size) noexcept nogil:
    if leg.gone:
        return
    if size > KEPT + READ - passing.out_size:
        passing.flush(leg)
    if size > KEPT + READ:
        send_to(leg, p, size)
        return
    memcpy(passing.out + passing.out_size, p, size)
    passing.out_size += size


# -- frames that wait

cdef void hold(
    Passing passing, Flow *flow, const unsigned char *p, Py_ssize_t size, Py_ssize_t frames, uint32_t ops,
    const Py_ssize_t *counted, int64_t now, int64_t due, const Text *cause
) noexcept nogil:
    """Let received frames wait, until `due` at least; counted: by op, for those among `ops`."""
    cdef Py_ssize_t before = flow.held_bytes
    cdef int op
    if not hold_back(flow, p, size, frames, ops, counted, flow.next_in, now, due, cause.p, cause.size):
        lose(flow.target, ENOMEM)
    passing.held_bytes += flow.held_bytes - before
    flow.passed_frames += frames
    flow.passed_bytes += size
    flow.next_in += frames
    passing.frames += frames
    for op in range(OPS_ROOM):
        if ops >> op & 1:
            flow.passed_ops[op] += counted[op]
            flow.surplus[op] -= counted[op]
    flow.unequal = True


cdef void record_held(Passing passing, Flow *flow, Held *item, int64_t now) noexcept nogil:
    cdef Run run
    run.conn, run.direction, run.data, run.size = flow.conn, flow.direction, bytes_of(item), item.size
    run.frames, run.ops, run.in_first, run.t, run.out_first = item.frames, item.ops, item.first, item.t, flow.next_out
    passing.last_recorded = flow.connection
    if not passing.builder.add_held(&run, now, cause_of(item), item.cause_size):
        passing.unrecorded = flow.connection


# -- open frames

cdef bint begin_open(
    Passing passing, Flow *flow, const unsigned char *p, Py_ssize_t at, Py_ssize_t size, const Message *message
) noexcept nogil:
    """Begin a frame whose end has not come; False where that is the session's to do."""
    cdef Py_ssize_t whole = message.end - at
    if message.end - size == 1 and p[size - 1] != 13:
        return False  # its terminator is wrong already
    flow.open_line = message.line.end - at
    if flow.open_line > TAIL or not keep_tail(flow, p + at, flow.open_line):
        return False
    flow.tail_size = 0
    if flow.recording:
        if whole > passing.open_most or whole > passing.open_room:
            return False
        flow.record = <unsigned char *>malloc(whole)
        if flow.record == NULL:
            return False
        passing.open_room -= whole
        memcpy(flow.record, p + at, size - at)
        flow.record_size = size - at
    account(p, &flow.watch, message)
    flow.open_op, flow.open_size, flow.missing = message.op, whole, message.end - size
    flow.open_in, flow.open_out = flow.next_in, flow.next_out
    flow.next_in += 1
    flow.next_out += 1
    flow.passed_frames += 1
    flow.passed_sent += 1
    flow.passed_ops[message.op] += 1
    flow.passed_bytes += size - at
    flow.passed_out += size - at
    passing.frames += 1
    return True


cdef Py_ssize_t pass_open(Passing passing, Flow *flow, const unsigned char *p, Py_ssize_t size, int64_t now) noexcept nogil:
    """Take more bytes of the open frame; return how many, fewer than it needs where its terminator is wrong."""
    cdef Py_ssize_t at = flow.missing - 2 if flow.missing > 2 else 0
    if at > size:
        at = size
    flow.missing -= at
    while at < size and flow.missing and p[at] == (13 if flow.missing == 2 else 10):
        at += 1
        flow.missing -= 1
    flow.passed_bytes += at
    flow.passed_out += at
    if flow.record != NULL:
        memcpy(flow.record + flow.record_size, p, at)
        flow.record_size += at
        if flow.missing == 0:
            record(
                passing, flow, flow.record, flow.record_size, 1, 1 << flow.open_op, flow.open_in, now, flow.open_out
            )
            passing.drop_record(flow)
    return at
