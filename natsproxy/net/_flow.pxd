# cython: language_level=3
"""The legs and flows of the native plane as C structs, and the functions that need no more than one of them.

`_plane.pyx` says what they are.
"""

from libc.errno cimport EAGAIN, EINTR, ENOMEM, errno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcpy, memmove

from natsproxy.net._socket cimport MSG_DONTWAIT, MSG_NOSIGNAL, recv, send
from natsproxy.wire._line cimport OPS_ROOM, letter
from natsproxy.wire._walk cimport Watch

cdef enum:
    C2S = 0
    S2C = 1
    READ = 131072           # bytes of one read
    TAIL = 4096             # bytes of a control line that waits here
    KEPT = 65536            # bytes of the beginning of a frame that waits here
    EVENTS = 256
    SLICE = 250000          # ns of a flow's turn
    NO_LIMIT = 1 << 30
    NOTHING = -1            # what `receive` says beside a size
    BROKEN = -2


cdef struct Leg:
    int fd
    int error               # the number of the error that lost it
    bint readable           # the kernel may have bytes, or the end of the stream
    bint to_the_end         # a short read does not mean that nothing is left: the stream ends, or has urgent bytes
    bint gone               # the peer takes no more
    bint ended              # the end of its stream was read
    bint finished           # we have half-closed it
    bint awaited            # Python waits for the end of the backlog
    bint untold             # it is gone, and the relay does not know it yet
    unsigned char *backlog
    Py_ssize_t backlog_at
    Py_ssize_t backlog_size
    Py_ssize_t backlog_room
    Flow *outgoing          # the flow whose source it is
    Flow *incoming          # the flow whose target it is


cdef struct Held:
    # Whole frames that go on unchanged, and not before `due`; their cause and their bytes stand behind it.
    Held *next
    Held *before
    int64_t due
    int64_t t                   # when they came
    uint64_t first              # the ordinal of the first, as received
    Py_ssize_t frames
    uint32_t ops
    Py_ssize_t[OPS_ROOM] counted        # frames by op
    Py_ssize_t cause_size       # 0: no rule holds them, they wait behind others
    Py_ssize_t size
    Py_ssize_t room             # for their bytes


cdef struct Flow:
    Leg *source
    Leg *target
    void *connection        # a Connection
    Flow *next              # in the list of the ready
    int direction
    bint ready              # in that list
    bint clear
    bint paused             # the session holds back too much
    bint swallowing         # the session loses its messages: a backlog does not keep it from reading
    bint pending            # the session has work left
    bint over               # it is not to be read any more
    bint recording
    Py_ssize_t boundary     # bytes that the session needs until the flow can be clear, 0: not known
    Py_ssize_t whole        # bytes of a frame that goes on only whole, at most; 0: frames go on as they come
    uint64_t conn
    # What was passed since the session last took over.
    uint64_t passed_frames
    uint64_t passed_sent        # without those that a rule drops, and with its copies
    uint64_t passed_bytes
    uint64_t passed_out         # bytes that went on, with what rules change in them
    Py_ssize_t[OPS_ROOM] passed_ops
    Py_ssize_t[OPS_ROOM] surplus        # frames sent minus frames received
    bint unequal                # rules have dropped or copied any
    bint fired                  # rules have acted, and the session does not know it yet
    bint reports                # in the list of flows whose sessions are to be told of that
    Flow *next_report
    # Ordinals of the next frame on both legs.
    uint64_t next_in
    uint64_t next_out
    # The open frame.
    int open_op
    Py_ssize_t open_size
    Py_ssize_t missing
    uint64_t open_in
    uint64_t open_out
    unsigned char *record
    Py_ssize_t record_size
    Py_ssize_t open_line
    # An unfinished control line or small frame, or the control line of the open frame.
    unsigned char *tail
    Py_ssize_t tail_size
    Py_ssize_t tail_room
    Watch watch
    int lot                     # frames with a decision that the session gets at a time
    # The frames that wait here for their time, in their order (`_holding.pxd`).
    Held *held
    Held *last_held
    Py_ssize_t held_frames
    Py_ssize_t held_bytes       # with `OVERHEAD` for each item
    Py_ssize_t hold_most        # with more of these, the flow is not read
    Py_ssize_t due_place        # in the plane's heap, from 1 on; 0: it is not there
    void *decisions             # Decisions on frames that rules want, or NULL
    # The threads (`_worker.pyx`); what is true of a connection stands in both of its flows.
    bint portable               # a worker may serve it
    bint away                   # a worker serves it; the control thread alone changes that
    bint posted                 # the worker has done with it, and it waits for the control thread
    Flow *next_posted
    int home                    # the number of its worker, from 1 on; 0: it has never had one
    int streak                  # reads in a row without a byte for the session
    bint closing                # its end is to be read by the control thread
    bint broken                 # reading it failed, and the relay does not know it yet
    bint unrecorded             # there was no memory for the record of a frame
    unsigned char *parked       # the rest of a worker's read: bytes to send, and bytes for the session
    Py_ssize_t parked_out
    Py_ssize_t parked_size
    int64_t parked_at           # when they were read

cdef struct Ready:
    # The flows that have something to do.
    Flow *first
    Flow *last
    int count


cdef inline Flow *twin_of(const Flow *flow) noexcept nogil:
    """Return the other direction of a connection."""
    return flow.target.outgoing


# -- the list of the ready

cdef inline bint add_ready(Ready *ready, Flow *flow) noexcept nogil:
    """Add a flow; True if it is the first one."""
    cdef bint first = ready.first == NULL
    if flow.ready or flow.over:
        return False
    flow.ready = True
    flow.next = NULL
    if first:
        ready.first = flow
    else:
        ready.last.next = flow
    ready.last = flow
    ready.count += 1
    return first


cdef inline Flow *next_ready(Ready *ready) noexcept nogil:
    """Take out the first one; NULL where there is none."""
    cdef Flow *flow = ready.first
    if flow != NULL:
        ready.first = flow.next
        flow.ready = False
        ready.count -= 1
    return flow


cdef inline void remove_ready(Ready *ready, Flow *flow) noexcept nogil:
    cdef Flow *before = NULL
    cdef Flow *each = ready.first
    if not flow.ready:
        return
    while each != flow:
        before, each = each, each.next
    if before == NULL:
        ready.first = flow.next
    else:
        before.next = flow.next
    if ready.last == flow:
        ready.last = before
    flow.ready = False
    ready.count -= 1


# -- sending

cdef inline void drop_backlog(Leg *leg) noexcept nogil:
    free(leg.backlog)
    leg.backlog = NULL
    leg.backlog_at = leg.backlog_size = leg.backlog_room = 0


cdef inline void lose(Leg *leg, int error) noexcept nogil:
    """Note that the peer takes no more."""
    leg.gone = True
    if not leg.ended and not leg.error:
        leg.error = error
    drop_backlog(leg)


cdef inline bint keep(Leg *leg, const unsigned char *p, Py_ssize_t size) noexcept nogil:
    """Add bytes to the backlog; False without memory."""
    cdef Py_ssize_t room = leg.backlog_size + size
    cdef unsigned char *grown
    if leg.backlog_at + room > leg.backlog_room and leg.backlog_at:
        memmove(leg.backlog, leg.backlog + leg.backlog_at, leg.backlog_size)
        leg.backlog_at = 0
    if room > leg.backlog_room:
        grown = <unsigned char *>realloc(leg.backlog, room)
        if grown == NULL:
            return False
        leg.backlog, leg.backlog_room = grown, room
    memcpy(leg.backlog + leg.backlog_at + leg.backlog_size, p, size)
    leg.backlog_size = room
    return True


cdef inline void send_to(Leg *leg, const unsigned char *p, Py_ssize_t size) noexcept nogil:
    """Send, and keep what the kernel does not take."""
    cdef Py_ssize_t sent = 0
    if leg.gone or leg.finished:
        return
    if leg.backlog_size == 0:
        sent = send(leg.fd, p, size, MSG_DONTWAIT | MSG_NOSIGNAL)
        if sent == size:
            return
        if sent < 0:
            if errno != EAGAIN and errno != EINTR:
                lose(leg, errno)
                return
            sent = 0
    if not keep(leg, p + sent, size - sent):
        lose(leg, ENOMEM)


cdef inline void send_backlog(Leg *leg) noexcept nogil:
    """Send as much of the backlog as the kernel takes."""
    cdef Py_ssize_t sent
    while leg.backlog_size:
        sent = send(leg.fd, leg.backlog + leg.backlog_at, leg.backlog_size, MSG_DONTWAIT | MSG_NOSIGNAL)
        if sent < 0:
            if errno == EINTR:
                continue
            if errno != EAGAIN:
                lose(leg, errno)
            return
        leg.backlog_at += sent
        leg.backlog_size -= sent
    drop_backlog(leg)


# -- receiving

cdef inline void drop_tail(Flow *flow) noexcept nogil:
    free(flow.tail)
    flow.tail = NULL
    flow.tail_size = flow.tail_room = 0


cdef inline Py_ssize_t receive(Flow *flow, unsigned char *buffer, unsigned char **begin) noexcept nogil:
    """Read, behind what was kept of the last read; return the bytes at `begin`, 0 at the end, `NOTHING` or `BROKEN`.

    buffer: of `KEPT + READ` bytes.  At the end, what was kept stays where it is.
    """
    cdef Leg *source = flow.source
    cdef Py_ssize_t kept = flow.tail_size, size
    while True:
        size = recv(source.fd, buffer + KEPT, READ, MSG_DONTWAIT)
        if size >= 0 or errno != EINTR:
            break
    if size < 0:
        source.readable = False
        if errno == EAGAIN:
            return NOTHING
        lose(source, errno)
        return BROKEN
    if size == 0:
        return 0
    if size < READ and not source.to_the_end:
        source.readable = False
    if kept:
        memcpy(buffer + KEPT - kept, flow.tail, kept)
        flow.tail_size = 0
        if flow.tail_room > TAIL:
            drop_tail(flow)
    begin[0] = buffer + KEPT - kept
    return kept + size


# -- unfinished control lines and frames

cdef inline bint begins_message(const unsigned char *p, Py_ssize_t size, bint s2c) noexcept nogil:
    """True if bytes without a line end may be the beginning of an ordinary message frame."""
    cdef const char *name = b"MSG" if s2c else b"PUB"
    cdef Py_ssize_t i, at = 0
    if size and letter(p[0], 72):
        at = 1
    for i in range(3):
        if at == size:
            return True
        if not letter(p[at], name[i]):
            return False
        at += 1
    return at == size or p[at] == 32 or p[at] == 9


cdef inline bint is_tail(const unsigned char *p, Py_ssize_t size, bint s2c) noexcept nogil:
    """True for the beginning of a control line that may wait here for its end."""
    return (
        memchr(p, 10, size) == NULL and memchr(p, 13, size - 1) == NULL  # LF may follow the last byte
        and begins_message(p, size, s2c)
    )


cdef inline bint keep_tail(Flow *flow, const unsigned char *p, Py_ssize_t size) noexcept nogil:
    cdef unsigned char *grown
    if size > flow.tail_room:
        grown = <unsigned char *>realloc(flow.tail, max(size, TAIL))
        if grown == NULL:
            return False
        flow.tail, flow.tail_room = grown, max(size, TAIL)
    memcpy(flow.tail, p, size)
    flow.tail_size = size
    return True
