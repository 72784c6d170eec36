# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The workers: threads that pass frames on while the control thread does what needs Python.

Theory
1. One thread at a time serves a connection, both of its flows: the control thread, which is the loop's and runs
   the plane (`_plane.pyx`), or a worker.  All begin with the control thread.  It gives one to a worker after some
   reads in a row without a byte for the session, and always to the same worker, its *home*.
2. A worker has an epoll and a list of the ready of its own.  It reads, walks, records and sends as the plane does,
   by the same functions, and it never calls Python, nor takes the interpreter lock.
3. What a worker cannot do by itself ends its turn with a connection: it *posts* it, touches it no more, and wakes
   the control thread.  A stream that ended stays readable.  What was read and not passed is *parked*: bytes that
   go out with it in one write, and the bytes for the session.
4. The control thread takes back a connection that was posted, and any other one before Python touches it
   (`Plane.recall`): nothing of a connection that is *away* is read or written outside the lock.
5. A worker holds its lock while it serves; it lets it go after each flow if the control thread waits for it.
   Nobody who holds it waits for the interpreter.  The block builder has a lock of its own: records of one
   connection stand in the order in which its owners made them.
6. Both epolls know the sockets of a connection that is away; the plane's gets no events of them but errors, once,
   and does not mind those.  To recall one takes no memory, so it cannot fail.  A descriptor is closed after that only.
7. Rules that acted, and records, are told at the latest after `TELL` ns; a worker that nothing comes for tells of
   rules at once.  A builder that nobody empties holds the worker up.
"""

from libc.errno cimport errno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

import os

from natsproxy._lock cimport (
    add, add_big, load, load_big, pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock,
    sched_yield, store,
)
from natsproxy.net._flow cimport (
    BROKEN, C2S, EVENTS, KEPT, NOTHING, READ, SLICE,
    Flow, Leg, add_ready, next_ready, receive, remove_ready, send_backlog, twin_of,
)
from natsproxy.net._passing cimport Passing
from natsproxy.net._socket cimport (
    EFD_CLOEXEC, EFD_NONBLOCK, EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_DEL,
    EPOLLERR, EPOLLET, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLPRI, EPOLLRDHUP, POLLIN,
    close, epoll_create1, epoll_ctl, epoll_event, epoll_wait, eventfd, eventfd_read, eventfd_write, monotonic, poll_ns,
    pollfd,
)

cdef enum:
    TELL = 10000000         # ns
    LONGEST = 1000000000    # ns that it waits for bytes
    FULL = 200000           # ns that it waits for the builder to be emptied
    AT_ONCE = 1 << 20       # reads in a row: a connection that is busy comes back after the next one


cdef class Worker:
    """A thread of the plane.

    clock: from the system's monotonic clock to the proxy's, in ns.  open_room, open_most: as the plane's.
    control: an eventfd that wakes the control thread.
    """

    def __cinit__(self, int64_t clock, Py_ssize_t open_room, Py_ssize_t open_most, int control):
        cdef epoll_event event
        pthread_mutex_init(&self.lock, NULL)
        self.clock, self.control = clock, control
        self.passing = Passing(open_room, open_most)
        self.fd = self.wake = -1
        self.buffer = <unsigned char *>malloc(KEPT + READ)
        if self.buffer == NULL:
            raise MemoryError
        self.fd = epoll_create1(EPOLL_CLOEXEC)
        self.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        event.events = EPOLLIN
        event.data.ptr = NULL
        if self.fd < 0 or self.wake < 0 or epoll_ctl(self.fd, EPOLL_CTL_ADD, self.wake, &event) < 0:
            raise OSError(errno, os.strerror(errno))

    def __dealloc__(self):
        self.close()
        free(self.buffer)
        pthread_mutex_destroy(&self.lock)

    def run(self):
        """Serve connections until `stop`; for a thread of its own."""
        with nogil:
            self._loop()

    def stop(self):
        """Let `run` return soon."""
        store(&self.stopping, 1)
        self.nudge()

    cpdef close(self):
        """Close the epoll, once `run` has returned or will not be called; idempotent."""
        if self.wake >= 0:
            close(self.wake)
        if self.fd >= 0:
            close(self.fd)
        self.fd = self.wake = -1

    # -- for the control thread

    cdef void enter(self) noexcept nogil:
        add(&self.wanted, 1)
        pthread_mutex_lock(&self.lock)
        add(&self.wanted, -1)

    cdef void leave(self) noexcept nogil:
        pthread_mutex_unlock(&self.lock)

    cdef bint attach(self, Flow *c2s) noexcept nogil:
        """Take over a connection; False if the system has no room for it."""
        cdef Flow *s2c = twin_of(c2s)
        cdef Flow *flow
        cdef epoll_event event
        cdef int i
        event.events = EPOLLIN | EPOLLPRI | EPOLLOUT | EPOLLRDHUP | EPOLLET
        event.data.ptr = c2s.source
        if epoll_ctl(self.fd, EPOLL_CTL_ADD, c2s.source.fd, &event) < 0:
            return False
        event.data.ptr = s2c.source
        if epoll_ctl(self.fd, EPOLL_CTL_ADD, s2c.source.fd, &event) < 0:
            epoll_ctl(self.fd, EPOLL_CTL_DEL, c2s.source.fd, NULL)
            return False
        for i in range(2):
            flow = twin_of(c2s) if i else c2s
            self.passing.take_over(flow)
            self.make_ready(flow)
        self.nudge()
        return True

    cdef void detach(self, Flow *c2s) noexcept nogil:
        """Let go of a connection."""
        cdef Flow *flow
        cdef int i
        if c2s.posted:
            self._unlink(c2s)
        for i in range(2):
            flow = twin_of(c2s) if i else c2s
            epoll_ctl(self.fd, EPOLL_CTL_DEL, flow.source.fd, NULL)
            remove_ready(&self.ready, flow)
            flow.posted = False
            self.passing.let_go(flow)
            self.passing.drop_report(flow)

    cdef void make_ready(self, Flow *flow) noexcept nogil:
        if not flow.posted:
            add_ready(&self.ready, flow)

    cdef void nudge(self) noexcept nogil:
        """Wake the worker."""
        eventfd_write(self.wake, 1)

    cdef void count_homes(self, int by) noexcept nogil:
        """Add to the number of connections that have their home here."""
        self.homes += by
        if by > 0:
            self.fresh += by

    cdef void look(self, int64_t since) noexcept nogil:
        """Note the bytes of the time since the last look (ns)."""
        cdef uint64_t read = load_big(&self.bytes)
        self.rate = <uint64_t>((read - self.seen) * (1e9 / since))
        self.seen, self.fresh = read, 0

    # -- the thread

    cdef void _loop(self) noexcept nogil:
        cdef Flow *flow
        cdef pollfd fds
        cdef int turns
        cdef int64_t wait
        cdef bint idle, full
        fds.fd, fds.events = self.fd, POLLIN
        while not load(&self.stopping):
            pthread_mutex_lock(&self.lock)
            self._take_events()
            full = False
            turns = self.ready.count
            while turns and self.ready.first != NULL:
                turns -= 1
                full = self.passing.is_block_overfull()
                if full:
                    break
                flow = next_ready(&self.ready)
                if self._serve(flow):
                    add_ready(&self.ready, flow)
                if load(&self.wanted):
                    pthread_mutex_unlock(&self.lock)
                    while load(&self.wanted):
                        sched_yield()
                    pthread_mutex_lock(&self.lock)
            idle = self.ready.first == NULL
            wait = self._tell(idle)
            pthread_mutex_unlock(&self.lock)
            if full:
                poll_ns(&fds, 0, FULL)
            elif idle:
                poll_ns(&fds, 1, wait)

    cdef int64_t _tell(self, bint idle) noexcept nogil:
        """Wake the control thread where it has something to take; return how long there is to wait for bytes (ns)."""
        cdef int64_t now = monotonic()
        cdef int64_t wait = LONGEST
        cdef Flow *flow
        if self.passing.reports != NULL and (idle or now >= self.fired_at + TELL):
            self.fired_at = now
            while self.passing.reports != NULL:
                flow = self.passing.reports
                self.passing.reports, flow.reports = flow.next_report, False
                flow.streak = twin_of(flow).streak = 0 if idle else AT_ONCE
                self._post(flow)
        if self.passing.last_recorded != NULL:
            if now >= self.told_at + TELL or self.passing.is_block_full():
                self.told_at = now
                self._call()
            else:
                wait = self.told_at + TELL - now
        if self.posted != NULL:
            self._call()
        return wait

    cdef void _call(self) noexcept nogil:
        if not load(&self.calls):
            store(&self.calls, 1)
            eventfd_write(self.control, 1)

    cdef void _take_events(self) noexcept nogil:
        cdef Leg *leg
        cdef uint32_t events
        cdef uint64_t count
        cdef int at, found
        while True:
            found = epoll_wait(self.fd, self.events, EVENTS, 0)
            for at in range(found):
                leg = <Leg *>self.events[at].data.ptr
                events = self.events[at].events
                if leg == NULL:
                    eventfd_read(self.wake, &count)
                    continue
                if leg.outgoing.posted:
                    continue  # the plane is told of it again when it has the connection
                if events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR | EPOLLPRI):
                    leg.to_the_end = True
                if events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR):
                    leg.readable = True
                    add_ready(&self.ready, leg.outgoing)
                if leg.backlog_size and events & (EPOLLOUT | EPOLLHUP | EPOLLERR):
                    send_backlog(leg)
                    if leg.gone:
                        leg.untold = True
                        self._post(leg.incoming)
                    elif leg.backlog_size == 0:
                        add_ready(&self.ready, leg.incoming)
            if found < EVENTS:
                return

    cdef bint _serve(self, Flow *flow) noexcept nogil:
        """Read a flow for its slice of time; True if there is more."""
        cdef Leg *source = flow.source
        cdef unsigned char *begin
        cdef Py_ssize_t size
        cdef int64_t until = monotonic() + SLICE
        while not (flow.posted or self.held or flow.target.backlog_size) and source.readable:
            size = receive(flow, self.buffer, &begin)
            self.reads += 1
            if size == NOTHING:
                return False
            if size <= 0:
                flow.broken = size == BROKEN
                flow.closing = True
                self._post(flow)
                return False
            add_big(&self.bytes, size)
            self._take(flow, begin, size, monotonic() + self.clock)
            if monotonic() >= until or load(&self.wanted):
                return source.readable and not flow.posted
        return False

    cdef void _take(self, Flow *flow, unsigned char *p, Py_ssize_t size, int64_t now) noexcept nogil:
        """Pass on the bytes of a read; what the session is to see is parked."""
        cdef Py_ssize_t at = self.passing.pass_on(flow, p, size, now)
        if self.passing.unrecorded != NULL:
            self.passing.unrecorded = NULL
            flow.unrecorded = True
            self._post(flow)
        if at < size and not flow.target.gone:
            if not self._park(flow, p + at, size - at, now):
                flow.unrecorded = True  # it ends for the same reason
            self._post(flow)
        self.passing.out_size = 0
        if flow.target.gone:
            flow.target.untold = True
            self._post(flow)

    cdef bint _park(self, Flow *flow, const unsigned char *p, Py_ssize_t size, int64_t now) noexcept nogil:
        """Keep the rest of a read, and what was to go out with it; False without memory."""
        cdef Py_ssize_t out = self.passing.out_size
        flow.parked = <unsigned char *>malloc(out + size)
        if flow.parked == NULL:
            return False
        memcpy(flow.parked, self.passing.out, out)
        memcpy(flow.parked + out, p, size)
        flow.parked_out, flow.parked_size, flow.parked_at = out, size, now
        return True

    cdef void _post(self, Flow *flow) noexcept nogil:
        """Give a connection back."""
        cdef Flow *other = twin_of(flow)
        cdef Flow *c2s = flow if flow.direction == C2S else other
        if flow.posted:
            return
        flow.posted = other.posted = True
        remove_ready(&self.ready, flow)
        remove_ready(&self.ready, other)
        c2s.next_posted, self.posted = self.posted, c2s

    cdef void _unlink(self, Flow *c2s) noexcept nogil:
        cdef Flow *before = NULL
        cdef Flow *each = self.posted
        while each != c2s:
            before, each = each, each.next_posted
        if before == NULL:
            self.posted = c2s.next_posted
        else:
            before.next_posted = c2s.next_posted
