# cython: language_level=3
"""The state that the plane shares with the code that passes its frames on."""

from libc.stdint cimport int64_t, uint64_t

from natsproxy.capture.write._block cimport BlockBuilder
from natsproxy.net._flow cimport Flow, Leg


cdef class Passing:
    cdef BlockBuilder builder   # takes the records, None while nobody records
    cdef uint64_t frames        # that were passed here
    cdef int asks               # how often the rules may still ask Python about frames of this read
    cdef Flow *reports          # flows in which rules have acted, of which nobody was told
    cdef void *last_recorded    # the Connection whose frames were recorded last, NULL: the recorder knows of all
    cdef bint known             # the frame at which `pass_on` stopped is of a key with a decision
    cdef void *unrecorded       # the Connection of a frame for whose record there was no memory, or NULL
    cdef Py_ssize_t open_room   # bytes that open frames may still take for their records
    cdef Py_ssize_t open_most   # bytes of an open frame that is recorded here
    cdef unsigned char *out     # bytes that go out as one, where rules or the session take part in a read
    cdef Py_ssize_t out_size
    cdef Py_ssize_t held_bytes  # of all flows that hold frames here, as in `Flow`

    cdef bint is_block_full(self) noexcept nogil
    cdef bint is_block_overfull(self) noexcept nogil
    cdef Py_ssize_t pass_on(self, Flow *flow, const unsigned char *p, Py_ssize_t size, int64_t now) noexcept nogil
    cdef void send(self, Leg *leg, const unsigned char *p, Py_ssize_t size, bint more) noexcept nogil
    cdef void flush(self, Leg *leg) noexcept nogil
    cdef void take_over(self, Flow *flow) noexcept nogil
    cdef void let_go(self, Flow *flow) noexcept nogil
    cdef void release(self, Flow *flow, int64_t now) noexcept nogil
    cdef void drop_first(self, Flow *flow) noexcept nogil
    cdef void drop_record(self, Flow *flow) noexcept nogil
    cdef void add_report(self, Flow *flow) noexcept nogil
    cdef void drop_report(self, Flow *flow) noexcept nogil
