# cython: language_level=3
"""Blocks that are built in C: runs are added without the interpreter lock (`_block.pyx`)."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from natsproxy._lock cimport pthread_mutex_t

cdef enum:
    CONNS = 64                  # the most connections that a summary names


cdef struct Run:
    # Whole unchanged frames of one direction, received and sent at `t`.
    uint64_t conn
    int direction
    const unsigned char *data
    Py_ssize_t size
    Py_ssize_t frames
    uint32_t ops
    uint64_t in_first
    int64_t t
    uint64_t out_first


cdef struct Changed:
    # A frame that a rule dropped or replaced, as received; its replacement has its own record.
    uint64_t conn
    int direction
    int op
    int64_t t
    const unsigned char *cause  # UTF-8, at most 255 bytes
    Py_ssize_t cause_size
    uint64_t in_first
    uint64_t out_first


cdef class RunFilter:
    # Add the selected part of a run to a block; False if out of memory.
    cdef bint put(self, BlockBuilder to, const Run *run) noexcept nogil


cdef class BlockBuilder:
    # Threads that pass frames on add runs; the loop's thread does all else.  `lock` guards the rest, and whoever
    # holds it does not wait for the interpreter unless the filter is in Python: then only the loop's thread adds.
    # `used` (bytes) and `item_count` are of the current block; `mono0` (in the proxy's clock) and `wall0` are its clocks in ns.
    cdef pthread_mutex_t lock
    cdef readonly int64_t mono0, wall0
    cdef readonly bint dropping
    cdef Py_ssize_t used, item_count
    cdef unsigned char *data
    cdef Py_ssize_t room
    cdef Py_ssize_t frames, missed, missed_frames
    cdef uint64_t missed_bytes
    cdef int64_t first, last, missed_first, missed_last
    cdef uint32_t ops
    cdef uint64_t[CONNS + 1] conns
    cdef int conn_count, last_conn
    cdef set odd_conns
    cdef object pack
    cdef bint started           # its clocks are set
    cdef object filter
    cdef RunFilter run_filter

    # Add the filtered part of whole unchanged frames, received and sent at `t` (the proxy's clock, in ns); the
    # data are copied.  While the builder drops records they are counted as missed.  A block that has not begun
    # begins at `t`.  False: out of memory, and the run is not in the block.
    cdef bint add_run(
        self, uint64_t conn, int direction, const unsigned char *data, Py_ssize_t size, Py_ssize_t frames,
        uint32_t ops, uint64_t in_first, int64_t t, uint64_t out_first
    ) noexcept nogil
    cdef bint keeps_everything(self) except -1
    # Add the received frame, or the one sent in its place: `head` and then `data`, without filtering.
    cdef bint add_changed(
        self, const Changed *frame, bint went, const unsigned char *head, Py_ssize_t head_size,
        const unsigned char *data, Py_ssize_t size
    ) noexcept nogil
    # Add whole unchanged frames that were received at `t` and sent at `out_t`, without filtering.
    cdef bint add_held(
        self, const Run *run, int64_t out_t, const unsigned char *cause, Py_ssize_t cause_size
    ) noexcept nogil
    # True if it is time to seal the block, which still accepts records.
    cdef bint full(self) noexcept nogil
    # True if it is far beyond that, so that nobody should add to it.
    cdef bint overfull(self) noexcept nogil

    # Add the record of a run without filtering: with `flags` and the msgpack of `extra`.
    cdef bint append(self, const Run *run, int flags, const unsigned char *extra, Py_ssize_t extra_size) noexcept nogil
    # Add an item that a filter made of a run, inside `add_run` or `put`.
    cdef int add_kept(self, item) except -1

    cdef int _add(self, item) except -1

    cdef bint _append_run(
        self, const Run *run, int64_t out_t, const unsigned char *cause, Py_ssize_t cause_size, int flags,
        const unsigned char *extra, Py_ssize_t extra_size
    ) noexcept nogil
    cdef bint _add_changed(
        self, const Changed *frame, bint went, const unsigned char *head, Py_ssize_t head_size,
        const unsigned char *data, Py_ssize_t size
    ) noexcept nogil
    cdef object _seal(self)
    cdef void _start(self, int64_t t) noexcept nogil
    cdef bint _make_room(self, Py_ssize_t more) noexcept nogil
    cdef void _seen(self, int64_t t) noexcept nogil
    cdef void _seen_conn(self, uint64_t conn) noexcept nogil
    cdef void _miss(self, int64_t t, Py_ssize_t frames, Py_ssize_t size) noexcept nogil
    cdef int _append(self, data) except -1
    cdef bint _add_run_of(self, tuple item, bint filtered) except -1
    cdef int _seen_any_conn(self, conn) except -1
    cdef int _add_frames(self, item) except -1
