# cython: language_level=3
"""A thread that passes frames on beside the control thread (`_worker.pyx`)."""

from libc.stdint cimport int64_t, uint64_t

from natsproxy._lock cimport pthread_mutex_t
from natsproxy.net._flow cimport EVENTS, Flow, Leg, Ready
from natsproxy.net._passing cimport Passing
from natsproxy.net._socket cimport epoll_event


cdef class Worker:
    # `lock` guards all of it but the atomic numbers.
    cdef pthread_mutex_t lock
    cdef int wanted             # atomic: who waits for the lock beside the worker
    cdef int stopping           # atomic
    cdef int calls              # atomic: the control thread has something to take from here
    cdef uint64_t bytes         # atomic: that were read here
    cdef Passing passing
    cdef Ready ready
    cdef Flow *posted           # the C2S flows of connections that the control thread is to have back
    cdef bint held              # no leg is read
    cdef uint64_t reads
    cdef int fd, wake, control
    cdef int64_t clock, told_at, fired_at
    cdef unsigned char *buffer
    cdef epoll_event[EVENTS] events
    # For the control thread alone, which chooses a worker for a connection by them.
    cdef int homes              # connections that have their home here
    cdef int fresh              # those of them that came since the last look
    cdef uint64_t seen
    cdef uint64_t rate          # bytes between the last two looks

    cpdef close(self)

    # For the control thread, inside `enter` and `leave`.
    cdef void enter(self) noexcept nogil
    cdef void leave(self) noexcept nogil
    cdef bint attach(self, Flow *c2s) noexcept nogil
    cdef void detach(self, Flow *c2s) noexcept nogil
    cdef void make_ready(self, Flow *flow) noexcept nogil
    cdef void nudge(self) noexcept nogil
    cdef void count_homes(self, int by) noexcept nogil
    cdef void look(self, int64_t since) noexcept nogil

    cdef void _loop(self) noexcept nogil
    cdef int64_t _tell(self, bint idle) noexcept nogil
    cdef void _call(self) noexcept nogil
    cdef void _take_events(self) noexcept nogil
    cdef bint _serve(self, Flow *flow) noexcept nogil
    cdef void _take(self, Flow *flow, unsigned char *p, Py_ssize_t size, int64_t now) noexcept nogil
    cdef bint _park(self, Flow *flow, const unsigned char *p, Py_ssize_t size, int64_t now) noexcept nogil
    cdef void _post(self, Flow *flow) noexcept nogil
    cdef void _unlink(self, Flow *c2s) noexcept nogil
