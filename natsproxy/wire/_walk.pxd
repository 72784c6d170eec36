# cython: language_level=3
"""The walk over ordinary message frames, without the interpreter lock.

`message_at` reads one control line, `is_wanted` asks whether anybody wants its frame, and `pass_messages` goes
over frames until somebody does.  Whatever is no ordinary message (`_line.pxd`) ends the walk: the scanner's
general path alone knows the whole grammar.
"""

from libc.stdint cimport int64_t, uint32_t
from libc.string cimport memcmp, memset

from natsproxy.wire._interest cimport Wants, need_of
from natsproxy.wire._line cimport HMSG, HPUB, OK, OPS_ROOM, Line, message_op, number, read_line
from natsproxy.wire._meter cimport Meter
from natsproxy.wire._table cimport Entry, Table, table_find, table_oldest, table_put, table_remove

cdef enum:
    AWAITED_MOST = 1024         # as in `awaited.py`; a test compares the two
    AWAITED_FORGOTTEN = 128
    AWAITED_LONGEST = 256

cdef enum Stop:
    AT_END              # nothing is left
    AT_LIMIT            # as many frames as were asked for
    AT_WANTED           # somebody wants the frame here, which is whole; it is not accounted for
    AT_OPEN             # nobody wants the frame here, and its end is not there yet
    AT_OTHER            # anything else: an unfinished line, another op, bytes that are no frame, a wanted frame that is too large


cdef struct Watch:
    # What is wanted of one direction.  Tables may be NULL.
    bint s2c
    Py_ssize_t limit            # bytes of a control line
    Py_ssize_t max_payload      # bytes, 0 for no limit
    bint stop_at_system         # a frame on a subject of the system (`$SYS.`) is AT_OTHER
    uint32_t ops
    const Wants *wants          # by op
    const Table *sids           # s2c only, as are tallies
    const Table *subjects
    Table *tallies
    Table *awaited
    Meter *meter                # is told of requests and of their answers; NULL: nobody is
    int64_t now                 # ns, for the meter


cdef struct Message:
    int op
    int first_size              # the index of its first number among the tokens of the line
    bint has_reply
    Py_ssize_t end              # of the whole frame
    Py_ssize_t size             # of the payload, headers included
    Py_ssize_t head             # of the headers
    Line line


cdef struct Passed:
    Stop stop
    Py_ssize_t at               # where the walk stopped
    Py_ssize_t frames
    uint32_t ops
    bint odd                    # a frame on a subject of the system (`$SYS.`) was passed
    Py_ssize_t[OPS_ROOM] counted
    Message message             # the frame at `at`, at AT_WANTED and AT_OPEN


cdef inline bint message_at(const unsigned char *p, Py_ssize_t at, Py_ssize_t length, const Watch *watch, Message *message) noexcept nogil:
    """Read the control line of an ordinary message frame; False where there is none, or not all of it."""
    cdef int found = message_op(p, at, length, watch.s2c), fields
    cdef Line *line = &message.line
    if found < 0:
        return False
    message.op = found & 31
    read_line(p, at + (found >> 5), length, watch.limit, line)
    # The tokens: subject, sid (s2c), then reply perhaps, then one size or two.
    message.first_size = line.count - (2 if message.op == HPUB or message.op == HMSG else 1)
    fields = message.first_size - (2 if watch.s2c else 1)
    if line.end == 0 or fields < 0 or fields > 1:
        return False
    message.has_reply = fields == 1
    message.size = number(p, line.start[line.count - 1], line.stop[line.count - 1])
    message.head = 0
    if message.op == HPUB or message.op == HMSG:
        message.head = number(p, line.start[message.first_size], line.stop[message.first_size])
    message.end = line.end + message.size + 2
    return message.size >= 0 and message.head >= 0 and message.head <= message.size


cdef inline bint is_watched(const unsigned char *p, const Watch *watch, const Message *message) noexcept nogil:
    """True if somebody wants the frames of its sid, or of exactly its subject."""
    cdef const Line *line = &message.line
    return (
        watch.s2c and watch.sids != NULL and watch.sids.count
        and table_find(watch.sids, &p[line.start[1]], line.stop[1] - line.start[1]) != NULL
    ) or (
        watch.subjects != NULL and watch.subjects.count
        and table_find(watch.subjects, &p[line.start[0]], line.stop[0] - line.start[0]) != NULL
    )


cdef inline bint is_too_large(const Watch *watch, const Message *message) noexcept nogil:
    """True if its receiver acts on its control line alone."""
    return watch.max_payload > 0 and message.size > watch.max_payload


cdef inline bint is_wanted(const unsigned char *p, const Watch *watch, const Message *message) noexcept nogil:
    """True if anybody wants to see a frame."""
    cdef const Line *line = &message.line
    return (
        watch.ops >> message.op & 1
        or need_of(&watch.wants[message.op], &p[line.start[0]], line.stop[0] - line.start[0]) != 0
        or is_watched(p, watch, message)
    )


cdef inline void _note(const Watch *watch, const unsigned char *subject, Py_ssize_t length, const unsigned char *reply, Py_ssize_t size) noexcept nogil:
    """Note the reply subject of a request: `awaited.note`."""
    cdef Table *awaited = watch.awaited
    cdef Py_ssize_t i, ticket = 0
    cdef Entry *entry
    if size > AWAITED_LONGEST or (length >= 8 and memcmp(subject, b"$JS.ACK.", 8) == 0):
        return
    for i in range(length - 18):
        if subject[i] == 46 and memcmp(&subject[i], b".CONSUMER.MSG.NEXT.", 19) == 0:
            return
    entry = table_find(awaited, reply, size)
    if entry == NULL and awaited.count >= AWAITED_MOST:
        for i in range(AWAITED_FORGOTTEN):
            table_remove(awaited, table_oldest(awaited))
    if entry != NULL and entry.value:
        return
    if watch.meter != NULL:
        ticket = watch.meter.requested(watch.meter, subject, length, watch.now)
    table_put(awaited, reply, size, ticket)  # without memory it is not awaited, as a forgotten one


cdef inline bint is_delivery(const unsigned char *p, const Message *message) noexcept nogil:
    """True for a message to a subscription; the server's 503 without a reply is none."""
    return not (
        message.op == HMSG and not message.has_reply and message.head >= 12
        and memcmp(&p[message.line.end + 8], b" 503", 4) == 0
    )


cdef inline void _delivered(const unsigned char *p, const Watch *watch, const Message *message) noexcept nogil:
    """Count a delivery, and take an answer from those that are awaited."""
    cdef const Line *line = &message.line
    cdef Entry *entry
    cdef Py_ssize_t ticket
    if watch.tallies != NULL and watch.tallies.count and is_delivery(p, message):
        entry = table_find(watch.tallies, &p[line.start[1]], line.stop[1] - line.start[1])
        if entry != NULL:
            entry.value += 1
    if watch.awaited != NULL and watch.awaited.count:
        entry = table_find(watch.awaited, &p[line.start[0]], line.stop[0] - line.start[0])
        if entry != NULL:
            ticket = entry.value
            table_remove(watch.awaited, entry)
            if ticket and watch.meter != NULL:
                watch.meter.answered(watch.meter, ticket, watch.now, not is_delivery(p, message))


cdef inline void account(const unsigned char *p, const Watch *watch, const Message *message) noexcept nogil:
    """Count a delivery where its sid is counted, and keep the awaited answers up to date."""
    cdef const Line *line = &message.line
    cdef int reply = message.first_size - 1
    if watch.s2c:
        if watch.tallies != NULL or watch.awaited != NULL:
            _delivered(p, watch, message)
    elif message.has_reply and watch.awaited != NULL:
        _note(
            watch,
            &p[line.start[0]], line.stop[0] - line.start[0],
            &p[line.start[reply]], line.stop[reply] - line.start[reply],
        )


cdef inline void account_drop(const unsigned char *p, const Watch *watch, const Message *message) noexcept nogil:
    """Count an accounted message as one that goes no further: no delivery, and no request."""
    cdef const Line *line = &message.line
    cdef Table *table = watch.tallies if watch.s2c else watch.awaited
    cdef int token = 1 if watch.s2c else message.first_size - 1
    cdef Entry *entry
    if table == NULL or not (is_delivery(p, message) if watch.s2c else message.has_reply):
        return
    entry = table_find(table, &p[line.start[token]], line.stop[token] - line.start[token])
    if entry == NULL:
        return
    if watch.s2c:
        entry.value -= 1
    else:
        table_remove(table, entry)


cdef inline bint is_system(const unsigned char *p, const Message *message) noexcept nogil:
    """True for a subject of the system, which a recorder must look at."""
    cdef Py_ssize_t start = message.line.start[0]
    return message.line.stop[0] - start >= 5 and memcmp(&p[start], b"$SYS.", 5) == 0


cdef inline bint passes_ok(const unsigned char *p, Py_ssize_t at, Py_ssize_t length, const Watch *watch) noexcept nogil:
    """True for a plain +OK that nobody wants."""
    return (
        watch.s2c and length - at >= 5 and memcmp(&p[at], b"+OK\r\n", 5) == 0
        and not watch.ops >> OK & 1 and watch.wants[OK].count == 0
    )


cdef inline void _shift(Message *message, Py_ssize_t by) noexcept nogil:
    """Move a message to another place of the buffer, where the same control line stands."""
    cdef int i
    message.end += by
    message.line.end += by
    for i in range(message.line.count):
        message.line.start[i] += by
        message.line.stop[i] += by


cdef inline void pass_messages(const unsigned char *p, Py_ssize_t at, Py_ssize_t length, Py_ssize_t most, const Watch *watch, Passed *passed) noexcept nogil:
    """Pass over whole frames that nobody wants, `most` at most.

    Neighbours mostly have the same control line: that is read, and asked about, once.
    """
    cdef Message *message = &passed.message
    cdef Py_ssize_t read = -1, line_size = 0    # where the control line stands that `message` was read from
    cdef Py_ssize_t by = 0, end                 # the frame here is `by` behind that line, and ends at `end`
    memset(passed.counted, 0, sizeof(passed.counted))
    passed.frames = 0
    passed.ops = 0
    passed.odd = False
    passed.stop = AT_END
    while at < length:
        if passed.frames == most:
            passed.stop = AT_LIMIT
            break
        if p[at] == 43 and passes_ok(p, at, length, watch):
            passed.counted[OK] += 1
            passed.ops |= 1 << OK
            passed.frames += 1
            at += 5
            continue
        passed.stop = AT_OTHER
        if read >= 0 and length - at >= line_size and memcmp(&p[at], &p[read], line_size) == 0:
            by = at - read
            end = message.end + by
            if end <= length and (p[end - 2] != 13 or p[end - 1] != 10):
                break
        else:
            if not message_at(p, at, length, watch, message):
                break
            by, end = 0, message.end
            if end <= length and (p[end - 2] != 13 or p[end - 1] != 10):
                break
            if is_wanted(p, watch, message):
                if end <= length and not is_too_large(watch, message):
                    passed.stop = AT_WANTED
                break
            if is_system(p, message):
                if watch.stop_at_system:
                    break
                passed.odd = True
            read = at
            line_size = message.line.end - at
        if end > length:
            _shift(message, by)
            passed.stop = AT_OPEN
            break
        account(&p[by], watch, message)
        passed.counted[message.op] += 1
        passed.ops |= 1 << message.op
        passed.frames += 1
        at = end
        passed.stop = AT_END
    passed.at = at
