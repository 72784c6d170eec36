# cython: language_level=3
"""Blocks that are built in C: runs are added without the interpreter lock (`_block.pyx`)."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef enum:
    CONNS = 64                  # the most connections that a summary names


cdef class BlockBuilder:
    # One thread owns a builder, the loop's.  That thread may read the public fields without the interpreter
    # lock.  `size` is the bytes of the block that is built; `begun` says that there is one; `mono0` (in the
    # proxy's clock) and `wall0` are its clocks in ns.
    cdef readonly int64_t mono0, wall0
    cdef readonly Py_ssize_t size
    cdef readonly bint begun
    cdef readonly bint dropping
    cdef unsigned char *data
    cdef Py_ssize_t room
    cdef Py_ssize_t items, frames, missed, missed_frames
    cdef uint64_t missed_bytes
    cdef int64_t first, last, missed_first, missed_last
    cdef uint32_t ops
    cdef uint64_t[CONNS + 1] conns
    cdef int conn_count, last_conn
    cdef set odd_conns
    cdef object pack

    # Add the record of whole untouched frames, which came and went at `t` (the proxy's clock, in ns); the data
    # are copied.  While the builder drops records the run is counted as missed.  A block that has not begun
    # begins at `t`.  False: there is no memory, and the run is not in the block.
    cdef bint add_run(
        self, uint64_t conn, int direction, const unsigned char *data, Py_ssize_t size, Py_ssize_t frames,
        uint32_t ops, uint64_t in_first, int64_t t, uint64_t out_first
    ) noexcept nogil
    # True if it is time to seal the block.  It takes more records all the same.
    cdef bint full(self) noexcept nogil

    cdef bint _make_room(self, Py_ssize_t more) noexcept nogil
    cdef void _seen(self, int64_t t) noexcept nogil
    cdef void _seen_conn(self, uint64_t conn) noexcept nogil
    cdef void _miss(self, int64_t t, Py_ssize_t frames, Py_ssize_t size) noexcept nogil
    cdef int _append(self, data) except -1
    cdef bint _add_run_of(self, tuple item) except -1
    cdef int _seen_any_conn(self, conn) except -1
    cdef int _add_frames(self, item) except -1
