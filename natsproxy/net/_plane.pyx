# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The native plane: it moves the bytes of all connections, and calls Python only for frames that somebody wants.

This module has the sockets and the calls into Python; `_passing.pyx` passes on frames without Python, and
`_worker.pyx` does that in further threads.

Theory
1. A *leg* is one socket, a *flow* one direction between the two legs of a connection.  All legs are registered
   once, edge-triggered, with an epoll of our own; one task of the loop waits for that epoll (`net/plane.py`).
2. A flow that is *clear* is walked here: whole frames that nobody wants, or on which the decision of the rules is
   known (`rules/engine/_decisions.pyx`), are sent, and recorded, without the interpreter lock; it is taken for the
   action of a rule that is asked about a frame.  A flow is clear
   while its session has nothing to do between the frames: it holds nothing back, injects nothing, and stands
   between two frames.  `Connection.update_flow` says so after each call into Python.
3. The first byte that is not such a frame, and everything behind it in the same read, goes to the session as it
   does without a plane.  The session keeps what is unfinished; the flow is not clear until that is over.
4. A frame that nobody wants and that is not whole is passed on as it comes.  `missing` are its bytes that have
   not come; where it is recorded, its bytes are kept in `record`.  An unfinished control line waits in `tail`, and
   so does a frame that goes on only `whole`; the session has those above `KEPT`.
5. The session counts frames too.  The plane adds up those it passed, and hands the sums over before the session
   looks (`Connection.take`); an open frame is handed over with them.  Where rules have acted, the relay is called at
   the end of the step (`report`): the session makes the events, and nothing else.
6. What goes on of one read goes out in one write, whoever has dealt with it: some clients count on that.  It is
   gathered in `Passing.out` while a part of the read is still to come.
7. Frames that a rule holds wait here (`Flow.held`), and those behind them; a timer ends the wait.  They are in the
   plane while the session has nothing to do between frames, else all in its outbox: `update` in `native_plane.py`
   moves them.  An item that is in the heap (`Plane.waiting`) has its flow's earliest time; a flow is out of it while
   it is served.
8. A target that does not take all bytes keeps the rest in its backlog, and its flow is not read until that is
   gone, unless the session loses its messages.  Flows take turns of `SLICE` ns, a step ends after its own time, so
   nobody starves.

Lifetime: the structs are parts of a `Connection`, which the plane keeps alive to the end of the step in which it
is removed.  An event that epoll had already returned for it is cleared, so a descriptor that is used again at
once cannot get it.  While a worker has a connection, its structs are the worker's: `recall` comes before any touch.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memmove, memset

import os

from natsproxy._lock cimport load, store
from natsproxy.capture.write._block cimport BlockBuilder
from natsproxy.net._flow cimport (
    BROKEN, EVENTS, KEPT, NOTHING, NO_LIMIT, READ, SLICE, TAIL,
    Flow, Leg, Ready, add_ready, begins_message, next_ready, receive, remove_ready, send_backlog, send_to, twin_of,
)
from natsproxy.net._holding cimport (
    Waiting, await_due, bytes_of, cause_of, drop_first, end_wait, hold_back, make_room,
)
from natsproxy.net._passing cimport Passing
from natsproxy.net._socket cimport (
    EFD_CLOEXEC, EFD_NONBLOCK, EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD,
    EPOLLERR, EPOLLET, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLPRI, EPOLLRDHUP,
    FIONREAD, POLLIN, SHUT_WR,
    close, epoll_create1, epoll_ctl, epoll_event, epoll_wait, eventfd, eventfd_read,
    eventfd_write, ioctl, make_timer, monotonic, poll_ns, pollfd, read, set_timer, shutdown,
)
from natsproxy.net._worker cimport Worker
from natsproxy.rules.engine._decisions cimport Decisions
from natsproxy.wire._interest cimport Interest
from natsproxy.wire._line cimport OPS_ROOM
from natsproxy.wire._meter cimport NativeMeter
from natsproxy.wire._table cimport ByteTable
from natsproxy.wire._walk cimport Message, Watch, message_at
from natsproxy.wire.ops import Direction

cdef enum:
    LOOK = 200000           # ns between two looks at the loop's epoll
    WAIT = 1000000          # ns to wait for bytes, at most
    RATE = 1000000000       # ns between two looks at the bytes of workers, at least
    WORKERS = 64            # at most
    LOT = 1024
    ASKS = 32               # of one read: behind these, the session has its time slices
    SMALL = 65536           # bytes that a flow may hold in any case, as in `values.py`
    PAUSE = 1000            # reads after the system had no room for a worker's part
    ALL = EPOLLIN | EPOLLPRI | EPOLLOUT | EPOLLRDHUP | EPOLLET
    # The ends of a step; `native_plane.py` knows them too:
    IDLE = 0
    MORE = 1
    LOOP = 2

cdef object _DIRECTIONS = tuple(Direction)


cdef inline bint may_go(const Flow *flow) noexcept nogil:
    """True if a worker may serve a flow; `portable` is what the session says."""
    cdef const Leg *leg = flow.source
    return flow.portable and flow.clear and not (
        flow.pending or flow.paused or flow.over or flow.fired or flow.reports or flow.parked != NULL or flow.closing or flow.unrecorded
        or flow.held != NULL or leg.gone or leg.ended or leg.finished or leg.awaited or leg.untold
    )


cdef Py_ssize_t _lot(const Flow *flow, const unsigned char *p, Py_ssize_t size) noexcept nogil:
    """Return the bytes of whole frames that the session is to see before the rules are asked here again.

    Their decision is known, and Python's.  It is a frame first: those behind it may pass.  As long as none does,
    it is twice as many each time, since the session deals with many for little more than the price of one.
    """
    cdef Message message
    cdef Py_ssize_t at = 0
    cdef int left = flow.lot
    while left and at < size and message_at(p, at, size, &flow.watch, &message) and message.end <= size:
        at = message.end
        left -= 1
    return at if at else size


cdef class NativeLeg:
    """One socket of a connection, as a relay uses it (see `Leg` in `net/leg.py`)."""

    cdef Leg *leg
    cdef Plane plane
    cdef Connection connection  # keeps `leg` alive
    cdef readonly object origin
    cdef public object flushed

    @property
    def backlog(self):
        """Bytes written that the kernel has not taken yet."""
        self.plane.recall(self.connection)
        return self.leg.backlog_size + (self.plane.passing.out_size if self.leg == self.plane.gathering else 0)

    @property
    def gone(self):
        """True if the peer takes no more; writes are dropped."""
        self.plane.recall(self.connection)
        return bool(self.leg.gone)

    @property
    def lost(self):
        """The reason why the leg was lost; None where the peer had ended the stream before, or it is not lost."""
        self.plane.recall(self.connection)
        return os.strerror(self.leg.error) if self.leg.error else None

    @property
    def readable(self):
        """True if bytes are waiting in the kernel, or were read and not dealt with; a look at them would take the error that lost the leg."""
        cdef int waiting = 0
        self.plane.recall(self.connection)
        if self.leg.outgoing.parked != NULL:
            return True
        return ioctl(self.leg.fd, FIONREAD, &waiting) == 0 and waiting > 0

    def write_all(self, list parts):
        """Send as much as the kernel takes now, and keep the rest; True if that lost the leg."""
        cdef bytes data = parts[0] if len(parts) == 1 and type(parts[0]) is bytes else b"".join(parts)
        cdef bint gone
        self.plane.recall(self.connection)
        gone = self.leg.gone
        if self.leg.gone or self.leg.finished:
            return False
        self.plane.send(self.leg, <const unsigned char *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        return bool(self.leg.gone and not gone)

    def expect_flush(self):
        """Have `Connection.flushed` called once the backlog is empty, or the leg is gone."""
        self.plane.recall(self.connection)
        self.leg.awaited = True

    def finish(self):
        """Half-close: the peer sees the end of the stream after the bytes that were sent."""
        self.plane.recall(self.connection)
        self.plane.send_parked(self.leg.incoming)
        self.leg.finished = True
        shutdown(self.leg.fd, SHUT_WR)


cdef class Connection:
    """The two legs and two flows of one relay.

    relay: gets `received(direction, data)`, `report()`, `ended(direction)`, `leg_lost(leg)`,
    `flushed(leg)` and `failed(error)`.  A subclass may do the first and the fifth in its place.
    """

    cdef Leg[2] legs            # by the direction whose source they are: client, server
    cdef Flow[2] flows
    cdef Plane plane
    cdef readonly object relay
    cdef readonly NativeLeg client, server
    cdef tuple kept_c2s, kept_s2c       # keep what the watches point to alive
    cdef bint removed

    def __dealloc__(self):
        cdef int i
        for i in range(2):
            free(self.legs[i].backlog)
            free(self.flows[i].record)
            free(self.flows[i].tail)
            free(self.flows[i].parked)
            while self.flows[i].held != NULL:
                drop_first(&self.flows[i])

    def received(self, direction, data):
        """Give bytes to the session."""
        self.relay.received(direction, data)

    def flushed(self, leg):
        """Tell that the backlog of a leg is gone, or the leg."""
        self.relay.flushed(leg)

    def update_flow(self, int direction, bint clear, pipe, bint recording, Decisions decisions=None):
        """Apply the state of the session's pipe to a flow; call after the session has worked.

        clear: nothing has to be done between its frames.  pipe: the session's pipe of that direction.
        recording: its frames are recorded.  decisions: those that are known on frames that rules want.
        """
        cdef Flow *flow = &self.flows[direction]
        cdef Watch *watch = &flow.watch
        cdef Interest interest
        cdef ByteTable sids, subjects, tallies, awaited
        cdef NativeMeter meter
        cdef tuple kept
        self.plane.recall(self)
        flow.paused = pipe.full
        flow.swallowing = pipe.swallowing
        flow.pending = pipe.pending
        flow.whole = pipe.whole
        flow.recording = recording
        flow.clear = clear and not flow.pending and (not recording or self.plane.passing.builder is not None)
        flow.portable = flow.clear and not flow.swallowing and (
            not recording or self.plane.passing.builder.keeps_everything()
        )
        flow.boundary = 0 if clear else pipe.scanner.lacking  # between two frames it lacks nothing
        if flow.clear:
            scanner = pipe.scanner
            interest = scanner.interest
            watch.s2c = direction
            watch.limit = min(scanner.line_limit, TAIL)
            watch.max_payload = scanner.max_payload
            watch.stop_at_system = True  # secrets among them matter to a capture that begins later
            watch.ops = scanner.watch_ops
            watch.wants = interest.by_op
            sids, subjects = scanner.watch_sids, scanner.watch_subjects
            tallies, awaited = scanner.tallies, scanner.awaited
            watch.sids, watch.subjects, watch.tallies = &sids.table, &subjects.table, &tallies.table
            watch.awaited = NULL if awaited is None else &awaited.table
            meter = scanner.meter
            watch.meter = NULL if meter is None else meter.meter
            # A changed frame is recorded here without the filter.
            if recording and not self.plane.passing.builder.keeps_everything():
                decisions = None
            flow.decisions = NULL if decisions is None else <void *>decisions
            # What counts over all connections is asked by one thread, which alone holds frames.
            flow.portable = flow.portable and (decisions is None or not (decisions.per_proxy or decisions.holds))
            kept = (interest, sids, subjects, tallies, awaited, meter, decisions)
            if direction:
                self.kept_s2c = kept
            else:
                self.kept_c2s = kept
            flow.next_in = scanner.ordinal
        flow.next_out = pipe.out_next
        if flow.pending or ((flow.source.readable or flow.parked != NULL) and not flow.paused):
            self.plane.make_ready(flow)

    def take(self, int direction):
        """Hand over what was passed since the last call: `None`, or the fields of `Passed`.

        The open frame is `None`, or op, ordinals on both legs, size, bytes that are missing, and the bytes that
        came, of which there is only the control line if nobody records; from then on it is the session's.
        """
        cdef Flow *flow = &self.flows[direction]
        cdef int op
        self.plane.recall(self)
        if not (flow.passed_frames or flow.passed_bytes or flow.passed_sent or flow.missing):
            return None
        opened = None
        if flow.missing:
            if flow.record == NULL:
                data = PyBytes_FromStringAndSize(<char *>flow.tail, flow.open_line)
            else:
                data = PyBytes_FromStringAndSize(<char *>flow.record, flow.record_size)
            opened = (flow.open_op, flow.open_in, flow.open_out, flow.open_size, flow.missing, data)
            self.plane.passing.drop_record(flow)
            flow.missing = 0
            flow.clear = False
        taken = (
            flow.passed_frames, flow.passed_sent, flow.passed_bytes,
            [(op, flow.passed_ops[op]) for op in range(OPS_ROOM) if flow.passed_ops[op]], opened,
            flow.passed_out,
            [(op, flow.surplus[op]) for op in range(OPS_ROOM) if flow.surplus[op]] if flow.unequal else (),
            (flow.held_frames, flow.held_bytes),
        )
        flow.passed_frames = flow.passed_sent = flow.passed_bytes = flow.passed_out = 0
        flow.fired = flow.unequal = False
        memset(flow.passed_ops, 0, sizeof(flow.passed_ops))
        memset(flow.surplus, 0, sizeof(flow.surplus))
        return taken

    # -- frames that wait

    def may_hold(self, int direction, bint recording):
        """True if frames may wait here for their time."""
        cdef Flow *flow = &self.flows[direction]
        return not (self.removed or flow.over or flow.target.gone) and (
            not recording or (self.plane.passing.builder is not None and self.plane.passing.builder.keeps_everything())
        )

    def limit_held(self, Py_ssize_t size):
        """Stop reading a direction while more bytes than this wait here."""
        self.flows[0].hold_most = self.flows[1].hold_most = size

    def hold(self, int direction, list items):
        """Let frames wait here, behind those that do; items: as `give_back` returns them."""
        cdef Flow *flow = &self.flows[direction]
        cdef Py_ssize_t[OPS_ROOM] counted
        cdef Py_ssize_t before = flow.held_bytes, count, frames
        cdef uint32_t ops
        cdef uint64_t first
        cdef int64_t t, due
        cdef bytes data, cause
        cdef int op
        self.plane.recall(self)
        for data, counts, first, t, due, cause in items:
            ops, frames = 0, 0
            for op, count in counts:
                counted[op] = count
                ops |= 1 << op
                frames += count
            if not hold_back(
                flow, <const unsigned char *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), frames, ops, counted,
                first, t, due, <const unsigned char *>PyBytes_AS_STRING(cause), PyBytes_GET_SIZE(cause)
            ):
                raise MemoryError
        self.plane.passing.held_bytes += flow.held_bytes - before
        self.plane.schedule(flow)
        self.plane.charge()

    def give_back(self, int direction):
        """Hand over the frames that wait: bytes, frames by op, ordinal of the first, times (came, due), and cause."""
        cdef Flow *flow = &self.flows[direction]
        cdef int op
        self.plane.recall(self)
        end_wait(&self.plane.waiting, flow)
        found = []
        while flow.held != NULL:
            found.append((
                PyBytes_FromStringAndSize(<char *>bytes_of(flow.held), flow.held.size),
                [(op, flow.held.counted[op]) for op in range(OPS_ROOM) if flow.held.counted[op]],
                flow.held.first, flow.held.t, flow.held.due,
                PyBytes_FromStringAndSize(<char *>cause_of(flow.held), flow.held.cause_size),
            ))
            self.plane.passing.drop_first(flow)
        self.plane.charge()
        return found

    def rest(self, int direction):
        """Take out an unfinished control line, and what a worker has read behind it and not dealt with."""
        cdef Flow *flow = &self.flows[direction]
        cdef Py_ssize_t size
        self.plane.recall(self)
        size = flow.tail_size
        flow.tail_size = 0
        found = PyBytes_FromStringAndSize(<char *>flow.tail, size) if size else b""
        if flow.parked != NULL:
            found += PyBytes_FromStringAndSize(<char *>flow.parked + flow.parked_out, flow.parked_size)
            free(flow.parked)
            flow.parked = NULL
        return found

    def stop(self):
        """Read no more."""
        cdef int i
        self.plane.recall(self)
        for i in range(2):
            self.flows[i].over = True

    def remove(self):
        """Take the connection off the plane; return for each leg its backlog, and whether its stream has ended.

        It lets go of its legs, which keep it: a cycle would wait for the collector, with all of the session.
        """
        cdef int i
        found = []
        self.plane.recall(self)
        for i in range(2):
            self.plane.send_parked(&self.flows[i])
        if not self.removed:
            self.removed = True
            self.plane.forget(self)
        for i in range(2):
            data = PyBytes_FromStringAndSize(
                <char *>self.legs[i].backlog + self.legs[i].backlog_at, self.legs[i].backlog_size
            ) if self.legs[i].backlog_size else b""
            self.legs[i].backlog_size = 0
            found.append((data, bool(self.legs[i].ended)))
        self.client = self.server = None
        return found


cdef class Plane:
    """An epoll of our own, and the connections that were given to it.

    workers: the number of threads beside the caller's; each runs one of `workers`.  busy: a worker gets a connection
    after so many reads in a row without a byte for the session.
    recorded: called at the end of a step that has recorded, and where the block is full.
    budget: of the bytes that wait, those of the sessions too; None: it is not limited.
    """

    cdef readonly int fd
    cdef bint held
    cdef Passing passing
    cdef public object recorded, budget
    cdef uint64_t own_reads
    cdef readonly tuple workers
    cdef (void *)[WORKERS] each     # the workers
    cdef int count              # of them
    cdef int busy
    cdef int64_t looked_at      # when their bytes were looked at last
    cdef bint told              # a worker has recorded
    cdef int64_t clock          # from the system's monotonic clock to the proxy's, ns
    cdef unsigned char *buffer
    cdef Ready ready
    cdef Waiting waiting        # the flows that hold frames, and may send them when they are due
    cdef Py_ssize_t charged     # bytes that wait, of which the budget knows
    cdef Py_ssize_t hold_room   # that may wait here by the budget
    cdef int timer              # makes `fd` readable at `timer_at` (the system's clock; 0: never)
    cdef int64_t timer_at
    cdef epoll_event[EVENTS] events
    cdef int event_at, event_count
    cdef int wake               # makes `fd` readable where a flow becomes ready between two steps
    cdef bint stepping
    cdef bint called            # Python code has run in this step: it may have woken tasks
    cdef Leg *gathering         # the target of a read that the session is dealing with a part of, else NULL
    cdef bint more              # more of that read follows, so what is sent waits for it
    cdef set connections
    cdef list removed

    def __cinit__(self, int64_t clock, Py_ssize_t open_room, Py_ssize_t open_most, int workers=0, int busy=1):
        cdef int i
        workers = min(workers, WORKERS)
        open_room //= workers + 1
        self.clock, self.busy = clock, busy
        self.hold_room = NO_LIMIT
        self.passing = Passing(open_room, open_most)
        self.connections = set()
        self.removed = []
        self.buffer = <unsigned char *>malloc(KEPT + READ)
        if self.buffer == NULL:
            raise MemoryError
        self.fd = self.wake = self.timer = -1
        self.fd = epoll_create1(EPOLL_CLOEXEC)
        self.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        self.timer = make_timer()
        if self.fd < 0 or self.wake < 0 or self.timer < 0:
            raise OSError(errno, os.strerror(errno))
        self._register(self.wake, EPOLLIN, &self.wake)
        self._register(self.timer, EPOLLIN, &self.timer)
        self.workers = tuple(Worker(clock, open_room, open_most, self.wake) for _ in range(workers))
        for i in range(workers):
            self.each[i] = <void *>self.workers[i]
        self.count = workers

    def __dealloc__(self):
        free(self.buffer)
        free(self.waiting.flows)
        self.close()

    cpdef close(self):
        """Close the epoll, and the workers', which have been stopped; idempotent."""
        for worker in self.workers or ():
            worker.close()
        for fd in (self.wake, self.timer, self.fd):
            if fd >= 0:
                close(fd)
        self.fd = self.wake = self.timer = -1

    @property
    def frames(self):
        """The number of frames that were passed on without the interpreter."""
        cdef Worker worker
        cdef uint64_t frames = self.passing.frames
        for worker in self.workers:
            worker.enter()
            frames += worker.passing.frames
            worker.leave()
        return frames

    @property
    def reads(self):
        """The number of reads."""
        cdef Worker worker
        cdef uint64_t reads = self.own_reads
        for worker in self.workers:
            worker.enter()
            reads += worker.reads
            worker.leave()
        return reads

    def set_builder(self, BlockBuilder builder):
        """Take the records of clear flows; None: flows that record are not clear until their next update."""
        cdef Connection connection
        cdef Worker worker
        cdef int i
        self.recall_all()
        for each in self.connections:
            connection = each
            for i in range(2):
                if connection.flows[i].recording:
                    connection.flows[i].clear = False
                    if connection.flows[i].held != NULL:  # whether they may stay, its update says
                        connection.flows[i].pending = True
                        self.make_ready(&connection.flows[i])
        self.passing.builder = builder
        for worker in self.workers:
            worker.enter()
            worker.passing.builder = builder
            worker.leave()

    # -- connections

    def adopt(self, relay, uint64_t conn, client, server, leg_type, connection_type=Connection):
        """Take over two sockets; client, server: the `Leg` objects that own them.  Returns the connection."""
        cdef Connection connection = connection_type.__new__(connection_type)
        cdef Leg *leg
        cdef Flow *flow
        cdef int i
        if not make_room(&self.waiting, 2 * len(self.connections) + 2):
            raise MemoryError
        connection.plane, connection.relay = self, relay
        natives = []
        for i, origin in enumerate((client, server)):
            leg, flow = &connection.legs[i], &connection.flows[i]
            leg.fd = origin.fileno()
            leg.outgoing, leg.incoming = flow, &connection.flows[1 - i]
            leg.readable = True
            flow.source, flow.target = leg, &connection.legs[1 - i]
            flow.connection = <void *>connection
            flow.direction, flow.conn = i, conn
            natives.append(self._leg(connection, leg, origin, leg_type))
        connection.client, connection.server = natives
        self.connections.add(connection)
        try:
            for i in range(2):
                leg = &connection.legs[i]
                self._register(leg.fd, ALL, leg)
                self.make_ready(&connection.flows[i])
        except OSError:
            self.forget(connection)  # nothing may read a descriptor that is not ours to read any more
            raise
        return connection

    cdef NativeLeg _leg(self, Connection connection, Leg *leg, origin, leg_type):
        cdef NativeLeg native = leg_type.__new__(leg_type)
        native.plane, native.connection, native.leg, native.origin = self, connection, leg, origin
        return native

    cdef int _register(self, int fd, uint32_t events, void *owner) except -1:
        cdef epoll_event event
        event.events = events
        event.data.ptr = owner
        if epoll_ctl(self.fd, EPOLL_CTL_ADD, fd, &event) < 0:
            raise OSError(errno, os.strerror(errno))
        return 0

    cdef void forget(self, Connection connection):
        cdef int i, at
        cdef Leg *leg
        self.recall(connection)
        if connection.flows[0].home:
            (<Worker>self.each[connection.flows[0].home - 1]).count_homes(-1)
        for i in range(2):
            leg = &connection.legs[i]
            epoll_ctl(self.fd, EPOLL_CTL_DEL, leg.fd, NULL)
            for at in range(self.event_at, self.event_count):
                if self.events[at].data.ptr == leg:
                    self.events[at].data.ptr = NULL
            remove_ready(&self.ready, &connection.flows[i])
            self.passing.drop_report(&connection.flows[i])
            end_wait(&self.waiting, &connection.flows[i])
            while connection.flows[i].held != NULL:
                self.passing.drop_first(&connection.flows[i])
            connection.flows[i].over = True
        self.connections.discard(connection)
        if self.stepping:
            self.removed.append(connection)  # its structs may be in use: to the end of the step

    # -- the list of the ready

    cdef void make_ready(self, Flow *flow) noexcept nogil:
        if add_ready(&self.ready, flow) and not self.stepping:
            eventfd_write(self.wake, 1)

    # -- frames that wait

    cdef void schedule(self, Flow *flow) noexcept nogil:
        """See to it that a flow is served when the first frame that it holds is due."""
        end_wait(&self.waiting, flow)
        # A backlog that is gone makes it ready.
        if flow.held != NULL and not (flow.over or flow.target.gone or flow.target.backlog_size):
            await_due(&self.waiting, flow)
            if not self.stepping:
                self._set_timer()

    cdef int64_t _until_due(self, int64_t now) noexcept nogil:
        """Return how long the first frame of all has to wait (ns); now: by the system's clock."""
        if not self.waiting.count:
            return WAIT
        return max(0, self.waiting.flows[0].held.due - self.clock - now)

    cdef void _take_due(self) noexcept nogil:
        """Make the flows ready whose first frame is due."""
        cdef int64_t now
        cdef Flow *flow
        if self.waiting.count:
            now = monotonic()
            while self.waiting.count and self._until_due(now) == 0:
                flow = self.waiting.flows[0]
                end_wait(&self.waiting, flow)
                self.make_ready(flow)

    cdef void _set_timer(self) noexcept nogil:
        cdef int64_t at
        if self.waiting.count:
            at = max(1, self.waiting.flows[0].held.due - self.clock)
            if at != self.timer_at:
                self.timer_at = at
                set_timer(self.timer, at)

    cdef void _release(self, Flow *flow) noexcept nogil:
        """Send the frames that are due."""
        cdef int64_t now = monotonic() + self.clock
        end_wait(&self.waiting, flow)
        while flow.held != NULL and flow.held.due <= now and not (
            flow.over or flow.pending or flow.target.gone or flow.target.backlog_size
        ):
            self.passing.release(flow, now)
            self._after_passing(flow)

    cdef bint _is_full(self, const Flow *flow) noexcept nogil:
        """True if a flow is not to be read, since too much waits."""
        return flow.held_bytes > SMALL and (
            flow.held_bytes > flow.hold_most or self.passing.held_bytes > self.hold_room
        )

    cdef int charge(self) except -1:
        """Bring the budget and what waits here into step."""
        if self.budget is not None:
            self.budget.used += self.passing.held_bytes - self.charged
            self.charged = self.passing.held_bytes
            self.hold_room = self.charged + self.budget.total - self.budget.used
        return 0

    # -- the admission of bytes

    def hold(self, bint held):
        """Read no leg, or all of them again."""
        cdef Connection connection
        cdef Worker worker
        cdef int i, home
        self.held = held
        for home, each in enumerate((None, *self.workers)):
            worker = each
            if home:
                worker.enter()
                worker.held = held
            for one in () if held else self.connections:
                connection = one
                if home == (connection.flows[0].home if connection.flows[0].away else 0):
                    for i in range(2):
                        if home:
                            worker.make_ready(&connection.flows[i])
                        else:
                            self.make_ready(&connection.flows[i])
            if home:
                worker.leave()
                worker.nudge()

    # -- the workers (see `_worker.pyx`)

    cdef void recall(self, Connection connection) noexcept nogil:
        """Take a connection back from its worker, if it has it; Python may touch it then."""
        cdef Flow *c2s = &connection.flows[0]
        if c2s.away:
            self._recall_from(<Worker>self.each[c2s.home - 1], c2s)

    def recall_all(self):
        """Take all connections back: until the next step no worker passes a frame."""
        cdef Connection connection
        cdef Worker worker
        cdef Flow *c2s
        cdef int home
        for home, each in enumerate(self.workers, 1):
            worker = each
            worker.enter()
            for one in self.connections:
                connection = one
                c2s = &connection.flows[0]
                if c2s.away and c2s.home == home:
                    worker.detach(c2s)
                    self._take_back(c2s)
            worker.leave()

    cdef void _recall_from(self, Worker worker, Flow *c2s) noexcept nogil:
        worker.enter()
        worker.detach(c2s)
        worker.leave()
        self._take_back(c2s)

    cdef void _take_posted(self) noexcept nogil:
        """Take back the connections that workers have done with."""
        cdef int i
        for i in range(self.count):
            if load(&(<Worker>self.each[i]).calls):
                self._take_posted_by(<Worker>self.each[i])

    cdef void _take_posted_by(self, Worker worker) noexcept nogil:
        cdef Flow *c2s
        store(&worker.calls, 0)
        worker.enter()
        if worker.passing.last_recorded != NULL:
            worker.passing.last_recorded = NULL
            self.told = self.called = True
        while worker.posted != NULL:
            c2s = worker.posted
            worker.detach(c2s)
            self._take_back(c2s)
        worker.leave()

    cdef void _take_back(self, Flow *c2s) noexcept nogil:
        """Serve a connection again that a worker has let go of."""
        cdef Flow *s2c = twin_of(c2s)
        c2s.away = s2c.away = False
        if c2s.fired:
            self.passing.add_report(c2s)
        if s2c.fired:
            self.passing.add_report(s2c)
        self.called |= c2s.fired or s2c.fired  # that is to be told soon
        self.passing.take_over(c2s)
        self.passing.take_over(s2c)
        self._arm(c2s.source, ALL)  # what came meanwhile is an event again
        self._arm(s2c.source, ALL)
        self.make_ready(c2s)
        self.make_ready(s2c)

    cdef void _arm(self, Leg *leg, uint32_t events) noexcept nogil:
        cdef epoll_event event
        event.events = events
        event.data.ptr = leg
        epoll_ctl(self.fd, EPOLL_CTL_MOD, leg.fd, &event)

    cdef bint _give(self, Flow *flow) noexcept nogil:
        """Give a busy connection to its worker; False if it stays here."""
        cdef Flow *c2s = twin_of(flow) if flow.direction else flow
        cdef Flow *s2c = twin_of(c2s)
        if self.held or not (may_go(c2s) and may_go(s2c)):
            return False
        if not c2s.home:
            c2s.home = s2c.home = self._choose()
        remove_ready(&self.ready, c2s)
        remove_ready(&self.ready, s2c)
        # Edge-triggered: a lost leg is told once, not until the worker comes to read it.
        self._arm(c2s.source, EPOLLET)
        self._arm(s2c.source, EPOLLET)
        c2s.away = s2c.away = True
        c2s.streak = s2c.streak = 0
        self.passing.let_go(c2s)
        self.passing.let_go(s2c)
        if not self._give_to(<Worker>self.each[c2s.home - 1], c2s):
            self._take_back(c2s)
            c2s.streak = s2c.streak = -PAUSE
        return True

    cdef bint _give_to(self, Worker worker, Flow *c2s) noexcept nogil:
        cdef bint given
        worker.enter()
        given = worker.attach(c2s)
        worker.leave()
        return given

    cdef int _choose(self) noexcept nogil:
        """Return the number of the worker with the least bytes in the last second, or else the fewest connections.

        A connection that came after the last look counts as many bytes as the others on average.
        """
        cdef int i, best = 0, homes = 0
        cdef uint64_t total = 0, each = 0, least = 0, bytes_of
        cdef int64_t now = monotonic(), since = now - self.looked_at
        if since >= RATE:
            self.looked_at = now
            for i in range(self.count):
                (<Worker>self.each[i]).look(since)
        for i in range(self.count):
            total += (<Worker>self.each[i]).rate
            homes += (<Worker>self.each[i]).homes
        if homes:
            each = total // homes
        for i in range(self.count):
            bytes_of = (<Worker>self.each[i]).rate + each * (<Worker>self.each[i]).fresh
            if i == 0 or bytes_of < least or (
                bytes_of == least and (<Worker>self.each[i]).homes < (<Worker>self.each[best]).homes
            ):
                best, least = i, bytes_of
        (<Worker>self.each[best]).count_homes(1)
        return best + 1

    # -- the step

    def step(self, int64_t most, int64_t spare, int other):
        """Move bytes for about `most` ns; return `IDLE`, `MORE` to do here, or `LOOP`: the loop has an event.

        spare: ns for which the loop has nothing to do unless an event of `other`, its own epoll (-1: it is not
        known), comes.  For that time the step goes on, and waits for bytes, until Python code was called.
        """
        cdef int found
        self.stepping = True
        self.called = self.passing.reports != NULL  # of connections that were taken back between two steps
        self.charge()
        with nogil:
            found = self._step(most, spare, other)
        self._report()
        self.stepping = False
        self.charge()
        self._set_timer()
        if self.passing.last_recorded != NULL or self.told:
            self._tell_recorder()
        self.removed.clear()
        return found

    cdef int _report(self) except -1:
        """Let the sessions know that rules have acted in this step."""
        cdef Flow *flow
        cdef Connection connection
        while self.passing.reports != NULL:
            flow = self.passing.reports
            self.passing.drop_report(flow)
            if flow.fired:  # else the session has looked since
                flow.fired = twin_of(flow).fired = False
                connection = <Connection>flow.connection
                self.called = True
                try:
                    connection.relay.report()
                except BaseException as error:
                    self._fail(connection, error)
        return 0

    cdef int _step(self, int64_t most, int64_t spare, int other) noexcept nogil:
        cdef int64_t now = monotonic(), until = now + most, last = now + spare, look = now + LOOK
        cdef Flow *flow
        cdef Flow *stop
        cdef bint more
        cdef pollfd[2] fds
        fds[0].fd, fds[0].events = self.fd, POLLIN
        fds[1].fd, fds[1].events = other, POLLIN  # -1: poll passes over it
        while True:
            self._take_events()
            self._take_due()
            if self.ready.first == NULL:
                if self.called:
                    return MORE
                now = monotonic()
                if poll_ns(fds, 2, max(0, min(WAIT, last - now, self._until_due(now)))) <= 0:
                    if self.waiting.count and self._until_due(monotonic()) == 0:
                        continue
                    return IDLE  # nothing for that time, or a signal
                if fds[1].revents:
                    return LOOP
                continue
            stop = self.ready.last
            while True:
                flow = next_ready(&self.ready)
                if flow == NULL:
                    break
                more = self._serve(flow)
                if self.count and flow.streak >= self.busy and self._give(flow):
                    pass
                elif more:
                    self.make_ready(flow)
                now = monotonic()
                if now >= until and (self.called or now >= last):
                    return LOOP if other >= 0 and poll_ns(&fds[1], 1, 0) != 0 else MORE
                if now >= look:
                    look = now + LOOK
                    if other >= 0 and poll_ns(&fds[1], 1, 0) != 0:
                        return LOOP
                if flow == stop:
                    break

    cdef void _take_events(self) noexcept nogil:
        cdef Leg *leg
        cdef uint32_t events
        cdef uint64_t count
        while True:
            self.event_count = epoll_wait(self.fd, self.events, EVENTS, 0)
            self.event_at = 0
            while self.event_at < self.event_count:
                leg = <Leg *>self.events[self.event_at].data.ptr
                events = self.events[self.event_at].events
                self.event_at += 1
                if leg == <Leg *>&self.wake:
                    eventfd_read(self.wake, &count)
                    self._take_posted()
                    continue
                if leg == <Leg *>&self.timer:
                    self.timer_at = 0
                    read(self.timer, &count, sizeof(count))
                    continue
                if leg == NULL or leg.outgoing.away:  # its connection was removed by the event before, or is a worker's
                    continue
                if events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR | EPOLLPRI):
                    leg.to_the_end = True
                if events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR):
                    leg.readable = True
                    self.make_ready(leg.outgoing)
                if leg.backlog_size and events & (EPOLLOUT | EPOLLHUP | EPOLLERR):
                    self._flush(leg)
            if self.event_count < EVENTS:
                self.event_at = self.event_count = 0
                return

    # -- sending

    cdef void send(self, Leg *leg, const unsigned char *p, Py_ssize_t size) noexcept nogil:
        """Send bytes of the session."""
        self.send_parked(leg.incoming)
        if leg == self.gathering:
            self.passing.send(leg, p, size, self.more)
        else:
            send_to(leg, p, size)

    cdef void _flush(self, Leg *leg) noexcept nogil:
        send_backlog(leg)
        if leg.gone:
            with gil:
                self._lost(leg)
        elif leg.backlog_size == 0:
            self.make_ready(leg.incoming)
            if leg.awaited:
                leg.awaited = False
                with gil:
                    self._flushed(leg)

    # -- receiving

    cdef bint _serve(self, Flow *flow) noexcept nogil:
        """Serve a flow for its slice of time; True if there is more."""
        cdef bint more
        if flow.held != NULL:
            self._release(flow)
        more = self._read(flow)
        if flow.held != NULL:
            self.schedule(flow)
        return more

    cdef bint _read(self, Flow *flow) noexcept nogil:
        """Read a flow, and deal with the bytes."""
        cdef Leg *source = flow.source
        cdef unsigned char *begin
        cdef Py_ssize_t size
        cdef int64_t until = monotonic() + SLICE
        if flow.unrecorded or flow.broken or flow.target.untold:
            with gil:
                self._tell_of_worker(flow)
        while not (flow.over or flow.target.gone):
            if (flow.target.backlog_size and not flow.swallowing) or self.held:
                return False  # the end of that makes it ready again
            if flow.pending:
                with gil:
                    self._hand_over(flow, NULL, 0)
            elif flow.paused or self._is_full(flow):
                return False
            elif flow.parked != NULL:
                self._take_parked(flow)
            elif not source.readable:
                return False
            else:
                size = receive(flow, self.buffer, &begin)
                self.own_reads += 1
                flow.closing = False
                if size == NOTHING:
                    return False
                if size == BROKEN:
                    with gil:
                        self._lost(source)
                        self._end(flow)
                    return False
                if size == 0:
                    source.readable, source.ended = False, True
                    with gil:
                        self._end(flow)
                    return False
                flow.streak += 1
                # The clock is read behind the bytes: a frame has no time at which its sender still had it.
                self._take(flow, begin, size, monotonic() + self.clock)
            if flow.held != NULL:
                self._release(flow)
            if monotonic() >= until:
                return flow.pending or source.readable or flow.parked != NULL
        return False

    cdef void _take_parked(self, Flow *flow) noexcept nogil:
        """Deal with the rest of a worker's read."""
        cdef unsigned char *parked = flow.parked
        flow.parked = NULL
        self.passing.send(flow.target, parked, flow.parked_out, True)
        self._take(flow, parked + flow.parked_out, flow.parked_size, flow.parked_at)
        free(parked)

    cdef void send_parked(self, Flow *flow) noexcept nogil:
        """Send what a worker has passed of a read, and has not sent: something else is to go out behind it."""
        if flow.parked != NULL and flow.parked_out:
            send_to(flow.target, flow.parked, flow.parked_out)
            memmove(flow.parked, flow.parked + flow.parked_out, flow.parked_size)
            flow.parked_out = 0

    cdef void _take(self, Flow *flow, const unsigned char *p, Py_ssize_t size, int64_t now) noexcept nogil:
        """Deal with the bytes of a read: pass on frames that nobody wants, give the session the others."""
        cdef Py_ssize_t at = 0, stop
        self.passing.asks = ASKS
        while at < size and not flow.over:
            if flow.clear and not (flow.paused or self.held or flow.target.backlog_size):
                stop = at + self._pass(flow, p + at, size - at, now)
                flow.lot = min(LOT, 2 * flow.lot) if stop == at and flow.lot else 1
                at = stop
                if at == size or flow.target.gone:
                    break
                if self.passing.known:
                    stop = at + _lot(flow, p + at, size - at)
                else:
                    stop = at + self._session_share(flow, p + at, size - at)
            elif flow.boundary:
                stop = min(size, at + flow.boundary)
            else:
                stop = size
            self.gathering, self.more = flow.target, stop < size
            with gil:
                self._hand_over(flow, p + at, stop - at)
            self.gathering = NULL
            at = stop
        if self.passing.out_size:
            self.passing.flush(flow.target)
            if flow.target.gone:
                with gil:
                    self._lost(flow.target)

    cdef Py_ssize_t _session_share(self, Flow *flow, const unsigned char *p, Py_ssize_t size) noexcept nogil:
        """Return how many bytes the session is to see before frames may pass again.

        Those are lines of ops without a payload, as PING and SUB are.  From a message on it gets all: it deals
        with many frames of one read for little more than the price of one.
        """
        cdef const unsigned char *end
        cdef Py_ssize_t at = 0
        while at < size and not begins_message(p + at, min(size - at, 5), flow.direction):
            end = <const unsigned char *>memchr(p + at, 10, size - at)
            if end == NULL:
                return size
            at = end - p + 1
        return at if at else size

    cdef Py_ssize_t _pass(self, Flow *flow, const unsigned char *p, Py_ssize_t size, int64_t now) noexcept nogil:
        """Pass on the frames that nobody wants; return where the first byte of anything else stands."""
        cdef Py_ssize_t at = self.passing.pass_on(flow, p, size, now)
        self.called |= flow.fired  # its session is to know that soon
        self._after_passing(flow)
        return at

    cdef void _after_passing(self, Flow *flow) noexcept nogil:
        """Tell Python what it has to hear."""
        if self.passing.unrecorded != NULL:
            with gil:
                self._fail_unrecorded()
        if self.passing.is_block_full():
            with gil:
                self._tell_recorder()
        if flow.target.gone:
            with gil:
                self._lost(flow.target)

    # -- calls into Python

    cdef int _hand_over(self, Flow *flow, const unsigned char *p, Py_ssize_t size) except -1:
        """Give bytes to the session, or let it go on with its work."""
        cdef Connection connection = <Connection>flow.connection
        self.called = True
        flow.pending = False
        if size:
            flow.streak = twin_of(flow).streak = 0
        try:
            connection.received(_DIRECTIONS[flow.direction], PyBytes_FromStringAndSize(<const char *>p, size) if size else b"")
        except BaseException as error:
            self._fail(connection, error)
        return 0

    cdef int _end(self, Flow *flow) except -1:
        cdef Connection connection = <Connection>flow.connection
        self.called = True
        flow.over = True
        try:
            rest = connection.rest(flow.direction)
            if rest:
                connection.received(_DIRECTIONS[flow.direction], rest)
            connection.relay.ended(_DIRECTIONS[flow.direction])
        except BaseException as error:
            self._fail(connection, error)
        return 0

    cdef int _lost(self, Leg *leg) except -1:
        cdef Connection connection = <Connection>leg.outgoing.connection
        native = connection.client if leg == &connection.legs[0] else connection.server
        self.called = True
        try:
            if leg.awaited:
                leg.awaited = False
                connection.flushed(native)
            connection.relay.leg_lost(native)
        except BaseException as error:
            self._fail(connection, error)
        return 0

    cdef int _flushed(self, Leg *leg) except -1:
        cdef Connection connection = <Connection>leg.outgoing.connection
        self.called = True
        try:
            connection.flushed(connection.client if leg == &connection.legs[0] else connection.server)
        except BaseException as error:
            self._fail(connection, error)
        return 0

    cdef int _tell_of_worker(self, Flow *flow) except -1:
        """Let the relay know what a worker saw."""
        cdef Connection connection = <Connection>flow.connection
        if flow.unrecorded:
            flow.unrecorded = False
            self._fail(connection, MemoryError("no memory for the capture"))
        if flow.broken:
            flow.broken = False
            self._lost(flow.source)
            self._end(flow)
        if flow.target.untold:
            flow.target.untold = False
            self._lost(flow.target)
        return 0

    cdef int _tell_recorder(self) except -1:
        """Let the recorder see to its block; a bug there ends a connection that it got frames of."""
        cdef Connection connection = None
        if self.passing.last_recorded != NULL:
            connection = <Connection>self.passing.last_recorded
        self.passing.last_recorded, self.told = NULL, False
        try:
            self.recorded()
        except BaseException as error:
            for each in self.connections if connection is None else (connection,):
                if (<Connection>each).flows[0].recording:
                    connection = each
                    break
            if connection is None:
                raise
            self._fail(connection, error)
        return 0

    cdef int _fail_unrecorded(self) except -1:
        """End the connection of a frame that could not be recorded: nothing is lost without a word."""
        cdef Connection connection = <Connection>self.passing.unrecorded
        self.passing.unrecorded = NULL
        self._fail(connection, MemoryError("no memory for the capture"))
        return 0

    cdef int _fail(self, Connection connection, error) except -1:
        """End one connection for a bug in its Python code."""
        self.recall(connection)
        connection.flows[0].over = connection.flows[1].over = True
        connection.relay.failed(error)
        return 0
