# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Blocks built in C: the compiled twin of `_builder_py.py`, which makes the same bytes.

A block's body is one piece of memory.  Runs are written into it without the interpreter lock; every other item
is packed by msgpack and copied.  Sealing hands the memory to a `SealedBlock`; the writer's thread computes the
rest of the summary from it (`_first_tokens.pxd`), and its memory is reused for a later block.

A builder has a lock: runs are added by all threads of the plane, and whoever adds them holds it for one copy.
The list of free memory is touched under the interpreter lock only.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy
from natsproxy._lock cimport (
    pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock,
)
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

from natsproxy.capture.write._first_tokens cimport Tokens, Walk, begin_walk, walk

import msgpack

from natsproxy.capture.format.records import Frames, encode
from natsproxy.capture.write._builder_py import BLOCK_SIZE, Missed, frames_head, packer
from natsproxy.capture.write.first_tokens import MOST, parsed

cdef enum:
    HEAD = 64                   # the most bytes before the data of a run's record
    SIZE_MAX = 0x7FFFFFFF       # of the data of one record
    MARGIN = 1 << 18            # room for the last record beyond the size at which a block is sealed
    FREE_MOST = 16              # free pieces of memory kept for reuse

cdef Py_ssize_t FULL = BLOCK_SIZE
cdef Py_ssize_t OVERFULL = 4 * BLOCK_SIZE
cdef Py_ssize_t ROOM = BLOCK_SIZE + MARGIN
cdef unsigned char *free_memory[FREE_MOST]
cdef int free_count = 0
cdef unsigned char[1] NOTHING
cdef object _Frames = Frames


cdef unsigned char *take_memory():
    """Return free memory of `ROOM` bytes, NULL if there is none."""
    global free_count
    if free_count == 0:
        return NULL
    free_count -= 1
    return free_memory[free_count]


cdef void give_memory(unsigned char *data, Py_ssize_t room):
    global free_count
    if room == ROOM and free_count < FREE_MOST:
        free_memory[free_count] = data
        free_count += 1
    else:
        free(data)


cdef inline Py_ssize_t put_big(unsigned char *p, unsigned char kind, uint64_t value, int width) noexcept nogil:
    cdef int i
    p[0] = kind
    for i in range(width):
        p[width - i] = <unsigned char>(value >> 8 * i)
    return 1 + width


cdef inline Py_ssize_t put_unsigned(unsigned char *p, uint64_t value) noexcept nogil:
    """Write a number as msgpack does, in the shortest form; return the bytes that it takes."""
    if value < 0x80:
        p[0] = <unsigned char>value
        return 1
    if value <= 0xFF:
        return put_big(p, 0xCC, value, 1)
    if value <= 0xFFFF:
        return put_big(p, 0xCD, value, 2)
    if value <= 0xFFFFFFFFu:
        return put_big(p, 0xCE, value, 4)
    return put_big(p, 0xCF, value, 8)


cdef inline Py_ssize_t put_signed(unsigned char *p, int64_t value) noexcept nogil:
    if value >= 0:
        return put_unsigned(p, <uint64_t>value)
    if value >= -0x20:
        p[0] = <unsigned char>value
        return 1
    if value >= -0x80:
        return put_big(p, 0xD0, <uint64_t>value, 1)
    if value >= -0x8000:
        return put_big(p, 0xD1, <uint64_t>value, 2)
    if value >= -0x80000000LL:
        return put_big(p, 0xD2, <uint64_t>value, 4)
    return put_big(p, 0xD3, <uint64_t>value, 8)


cdef inline Py_ssize_t put_nothing(unsigned char *p) noexcept nogil:
    """Write nil for the ordinal and the time of a leg that a frame did not pass."""
    p[0] = p[1] = 0xC0
    return 2


cdef inline Py_ssize_t put_text(unsigned char *p, const unsigned char *text, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t head = 1
    if size < 32:
        p[0] = <unsigned char>(0xA0 | size)
    else:
        head = put_big(p, 0xD9, <uint64_t>size, 1)
    memcpy(p + head, text, size)
    return head + size


cdef class SealedBlock:
    """A block that is ready to be written; its summary is computed on first use."""

    cdef unsigned char *data
    cdef Py_ssize_t room
    cdef readonly Py_ssize_t length, frames
    cdef list facts
    cdef bint looked

    def __dealloc__(self):
        if self.data != NULL:
            give_memory(self.data, self.room)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.data if self.length else NOTHING, self.length, True, flags)

    @property
    def buffers(self):
        """The body, in one piece."""
        return [memoryview(self)]

    @property
    def summary(self):
        """The summary of the block as `recordings/FORMAT.md` has it."""
        if not self.looked:
            self.facts.append(self._tokens())
            self.looked = True
        return self.facts

    cdef object _tokens(self):
        """Return the sorted first tokens; None where they are too many or too long."""
        cdef Walk state
        cdef set found = set()
        begin_walk(&state, self.data, self.length)
        while True:
            with nogil:
                walk(&state)
            if state.tokens.lost:
                return None
            if state.item == self.length:
                break
            found |= self._by_python(&state)
        for i in range(state.tokens.count):
            found.add(PyBytes_FromStringAndSize(<const char *>state.tokens.text[i], state.tokens.size[i]))
        return sorted(found) if len(found) <= MOST and all(len(token) <= MOST for token in found) else None

    cdef object _by_python(self, Walk *state):
        """Return the tokens of an item that C does not read, found by the pure parser."""
        cdef bytes raw
        if state.plain:
            raw = PyBytes_FromStringAndSize(
                <const char *>self.data + state.record.data.start, state.record.data.stop - state.record.data.start
            )
            return parsed(raw, state.record.direction, state.record.flags)
        raw = PyBytes_FromStringAndSize(<const char *>self.data + state.item, state.at - state.item)
        fields = msgpack.unpackb(raw, raw=False, strict_map_key=False, unicode_errors="replace")
        return parsed(fields[10], fields[2], fields[3]) if fields[0] == 0 else set()


cdef class RunFilter:
    """A filter of runs; this one wants all of them."""

    cdef bint put(self, BlockBuilder to, const Run *run) noexcept nogil:
        return to.append(run, 0, NULL, 0)


cdef class BlockBuilder:
    """Gathers items; times in ns, sizes in bytes."""

    def __cinit__(self, filter=None):
        pthread_mutex_init(&self.lock, NULL)
        self.odd_conns = set()
        self.pack = packer()
        self.filter = filter
        self.run_filter = None if filter is None else filter.native

    def __dealloc__(self):
        if self.data != NULL:
            give_memory(self.data, self.room)
        pthread_mutex_destroy(&self.lock)

    @property
    def size(self):
        """The bytes of the current block."""
        cdef Py_ssize_t size
        pthread_mutex_lock(&self.lock)
        size = self.used
        pthread_mutex_unlock(&self.lock)
        return size

    @property
    def items(self):
        """The number of items of the current block."""
        cdef Py_ssize_t items
        pthread_mutex_lock(&self.lock)
        items = self.item_count
        pthread_mutex_unlock(&self.lock)
        return items

    @property
    def begun(self):
        """True while the current block has items."""
        return self.items > 0

    def begin(self, int64_t mono, int64_t wall):
        """Start a block at this moment of both clocks, unless another thread has just begun it."""
        pthread_mutex_lock(&self.lock)
        if self.item_count == 0:
            self.mono0, self.wall0, self.started = mono, wall, True
        pthread_mutex_unlock(&self.lock)

    def drop(self):
        """Count items instead of keeping them."""
        pthread_mutex_lock(&self.lock)
        self.dropping = True
        pthread_mutex_unlock(&self.lock)

    def keep(self):
        """Keep items again; return what was missed, None if nothing was."""
        pthread_mutex_lock(&self.lock)
        missed = Missed(self.missed_first, self.missed_last, self.missed_frames, self.missed_bytes)
        nothing = self.missed == 0
        self.dropping = False
        self.missed = self.missed_frames = 0
        self.missed_bytes = 0
        pthread_mutex_unlock(&self.lock)
        return None if nothing else missed

    def put(self, item):
        """Add the filtered parts of an item; requires `begin`."""
        pthread_mutex_lock(&self.lock)
        try:
            if type(item) is _Frames and self._add_run_of(<tuple>item, True):
                return
            if self.filter is None or self.filter.passes(item):
                self._add(item)
            else:
                for kept in self.filter.apply(item):
                    self._add(kept)
        finally:
            pthread_mutex_unlock(&self.lock)

    def add(self, item):
        """Add an item; requires `begin`."""
        pthread_mutex_lock(&self.lock)
        try:
            self._add(item)
        finally:
            pthread_mutex_unlock(&self.lock)

    cdef int _add(self, item) except -1:
        cdef int64_t rel
        if type(item) is _Frames:
            if not self._add_run_of(<tuple>item, False):
                self._add_frames(item)
        elif self.dropping:
            self._miss(item.t, 0, 0)
        else:
            rel = item.t - self.mono0
            self._append(self.pack(encode(item, self.mono0)))
            self._seen(rel)
            self._seen_any_conn(getattr(item, "conn", None))
        return 0

    cdef int add_kept(self, item) except -1:
        if not self.started:
            self._start(item.t)
        self._add(item)
        return 0

    cdef bint full(self) noexcept nogil:
        cdef bint full
        pthread_mutex_lock(&self.lock)
        full = self.used >= FULL
        pthread_mutex_unlock(&self.lock)
        return full

    cdef bint overfull(self) noexcept nogil:
        cdef bint full
        pthread_mutex_lock(&self.lock)
        full = self.used >= OVERFULL and not self.dropping
        pthread_mutex_unlock(&self.lock)
        return full

    cdef bint add_run(
        self, uint64_t conn, int direction, const unsigned char *data, Py_ssize_t size, Py_ssize_t frames,
        uint32_t ops, uint64_t in_first, int64_t t, uint64_t out_first
    ) noexcept nogil:
        cdef Run run
        cdef bint added
        run.conn, run.direction, run.data, run.size, run.frames = conn, direction, data, size, frames
        run.ops, run.in_first, run.t, run.out_first = ops, in_first, t, out_first
        pthread_mutex_lock(&self.lock)
        if self.item_count == 0:
            self._start(t)
        if self.run_filter is not None:
            added = self.run_filter.put(self, &run)
        else:
            added = self.append(&run, 0, NULL, 0)
        pthread_mutex_unlock(&self.lock)
        return added

    cdef void _start(self, int64_t t) noexcept nogil:
        cdef timespec wall
        clock_gettime(CLOCK_REALTIME, &wall)
        self.mono0, self.wall0 = t, wall.tv_sec * <int64_t>1000000000 + wall.tv_nsec
        self.started = True

    cdef bint add_held(
        self, const Run *run, int64_t out_t, const unsigned char *cause, Py_ssize_t cause_size
    ) noexcept nogil:
        cdef bint added
        pthread_mutex_lock(&self.lock)
        if self.item_count == 0:
            self._start(out_t)
        added = self._append_run(run, out_t, cause, cause_size, 0, NULL, 0)
        pthread_mutex_unlock(&self.lock)
        return added

    cdef bint append(self, const Run *run, int flags, const unsigned char *extra, Py_ssize_t extra_size) noexcept nogil:
        return self._append_run(run, run.t, NULL, 0, flags, extra, extra_size)

    cdef bint _append_run(
        self, const Run *run, int64_t out_t, const unsigned char *cause, Py_ssize_t cause_size, int flags,
        const unsigned char *extra, Py_ssize_t extra_size
    ) noexcept nogil:
        cdef unsigned char *p
        if self.dropping:
            self._miss(run.t, run.frames, run.size)
            return True
        if run.size > SIZE_MAX or not self._make_room(HEAD + cause_size + run.size + extra_size):
            return False
        if not self.started:
            self._start(out_t)
        p = self.data + self.used
        p[0], p[1] = 0x9C if extra_size else 0x9B, 0
        p += 2
        p += put_unsigned(p, run.conn)
        p[0], p[1] = <unsigned char>run.direction, <unsigned char>flags
        p += 2
        p += put_unsigned(p, <uint64_t>run.frames)
        p += put_unsigned(p, run.in_first)
        p += put_signed(p, run.t - self.mono0)
        p += put_unsigned(p, run.out_first)
        p += put_signed(p, out_t - self.mono0)
        if cause_size:
            p += put_text(p, cause, cause_size)
        else:
            p[0] = 0xC0
            p += 1
        p += put_big(p, 0xC6, <uint64_t>run.size, 4)
        memcpy(p, run.data, run.size)
        p += run.size
        if extra_size:
            memcpy(p, extra, extra_size)
            p += extra_size
        self.used = p - self.data
        self.frames += run.frames
        self.ops |= run.ops
        self._seen(run.t - self.mono0)
        self._seen_conn(run.conn)
        return True

    cdef bint keeps_everything(self) except -1:
        return self.filter is None or self.filter.everything

    cdef bint add_changed(
        self, const Changed *frame, bint went, const unsigned char *head, Py_ssize_t head_size,
        const unsigned char *data, Py_ssize_t size
    ) noexcept nogil:
        cdef bint added
        pthread_mutex_lock(&self.lock)
        added = self._add_changed(frame, went, head, head_size, data, size)
        pthread_mutex_unlock(&self.lock)
        return added

    cdef bint _add_changed(
        self, const Changed *frame, bint went, const unsigned char *head, Py_ssize_t head_size,
        const unsigned char *data, Py_ssize_t size
    ) noexcept nogil:
        cdef unsigned char *p
        if self.item_count == 0:
            self._start(frame.t)
        if self.dropping:
            self._miss(frame.t, 1, head_size + size)
            return True
        if head_size + size > SIZE_MAX or not self._make_room(2 * HEAD + frame.cause_size + head_size + size):
            return False
        p = self.data + self.used
        p[0], p[1] = 0x9C if went else 0x9B, 0
        p += 2
        p += put_unsigned(p, frame.conn)
        p[0], p[1], p[2] = <unsigned char>frame.direction, 0, 1
        p += 3
        if went:
            p += put_nothing(p)
        p += put_unsigned(p, frame.out_first if went else frame.in_first)
        p += put_signed(p, frame.t - self.mono0)
        if not went:
            p += put_nothing(p)
        p += put_text(p, frame.cause, frame.cause_size)
        p += put_big(p, 0xC6, <uint64_t>(head_size + size), 4)
        memcpy(p, head, head_size)
        memcpy(p + head_size, data, size)
        p += head_size + size
        if went:
            memcpy(p, b"\x81\xa2of", 4)
            p += 4
            p += put_unsigned(p, frame.in_first)
        self.used = p - self.data
        self.frames += 1
        self.ops |= 1 << frame.op
        self._seen(frame.t - self.mono0)
        self._seen_conn(frame.conn)
        return True

    cdef bint _make_room(self, Py_ssize_t more) noexcept nogil:
        cdef Py_ssize_t room = max(ROOM, self.used + more + self.used // 2)
        cdef unsigned char *grown
        if self.data != NULL and self.used + more <= self.room:
            return True
        grown = <unsigned char *>(malloc(room) if self.data == NULL else realloc(self.data, room))
        if grown == NULL:
            return False
        self.data, self.room = grown, room
        return True

    cdef void _seen(self, int64_t t) noexcept nogil:
        if self.item_count == 0 or t < self.first:
            self.first = t
        if self.item_count == 0 or t > self.last:
            self.last = t
        self.item_count += 1

    cdef void _seen_conn(self, uint64_t conn) noexcept nogil:
        cdef int i
        if self.conn_count and self.conns[self.last_conn] == conn:
            return
        for i in range(self.conn_count):
            if self.conns[i] == conn:
                self.last_conn = i
                return
        if self.conn_count <= CONNS:
            self.conns[self.conn_count] = conn
            self.last_conn = self.conn_count
            self.conn_count += 1

    cdef void _miss(self, int64_t t, Py_ssize_t frames, Py_ssize_t size) noexcept nogil:
        if self.missed == 0:
            self.missed_first = t
        self.missed += 1
        self.missed_last = t
        self.missed_frames += frames
        self.missed_bytes += size

    def seal(self):
        """Return the block and start a new one."""
        pthread_mutex_lock(&self.lock)
        try:
            return self._seal()
        finally:
            pthread_mutex_unlock(&self.lock)

    cdef object _seal(self):
        cdef SealedBlock block = SealedBlock.__new__(SealedBlock)
        conns = self.odd_conns.union(self.conns[i] for i in range(self.conn_count))
        block.facts = [
            self.mono0,
            self.wall0,
            self.first,
            self.last,
            self.item_count,
            self.frames,
            self.ops,
            self.used,
            sorted(conns) if len(conns) <= CONNS else None,
        ]
        block.data, block.room, block.length, block.frames = self.data, self.room, self.used, self.frames
        self.data, self.room = take_memory(), ROOM
        self.first = self.last = 0
        self.used = self.item_count = self.frames = self.ops = self.conn_count = self.last_conn = 0
        self.odd_conns = set()
        self.started = False
        return block

    cdef bint _add_run_of(self, tuple item, bint filtered) except -1:
        """Add a record that is a run, unchanged and undelayed; False for any other."""
        cdef Run run
        cdef Py_buffer data
        cdef bint added
        conn, direction, received, frames, ops, in_first, in_t, out_first, out_t, cause, flags, extra = item
        if flags or cause is not None or extra is not None or in_first is None or out_first is None:
            return False
        if in_t is None or in_t != out_t:
            return False
        if filtered and self.filter is not None and self.run_filter is None:
            return False
        try:
            run.conn, run.direction, run.frames, run.ops = conn, direction, frames, ops
            run.in_first, run.t, run.out_first = in_first, in_t, out_first
        except OverflowError:
            return False
        if run.frames < 0 or run.direction >> 1:
            return False
        PyObject_GetBuffer(received, &data, PyBUF_SIMPLE)
        run.data, run.size = <const unsigned char *>data.buf, data.len
        if filtered and self.run_filter is not None:
            added = self.run_filter.put(self, &run)
        else:
            added = self.append(&run, 0, NULL, 0)
        PyBuffer_Release(&data)
        if not added:
            raise MemoryError
        return True

    cdef int _add_frames(self, item) except -1:
        cdef Py_ssize_t frames = item.frames
        cdef uint32_t ops = item.ops
        cdef int64_t t = item.t
        if self.dropping:
            self._miss(t, frames, len(item.data))
            return 0
        self._append(frames_head(self.pack, item, self.mono0))
        self._append(item.data)
        if item.extra is not None:
            self._append(self.pack(item.extra))
        self.frames += frames
        self.ops |= ops
        self._seen(t - self.mono0)
        self._seen_any_conn(item.conn)
        return 0

    cdef int _append(self, data) except -1:
        cdef Py_buffer view
        cdef bint room
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        room = self._make_room(view.len)
        if room:
            memcpy(self.data + self.used, view.buf, view.len)
            self.used += view.len
        PyBuffer_Release(&view)
        if not room:
            raise MemoryError
        return 0

    cdef int _seen_any_conn(self, conn) except -1:
        if conn is None:
            return 0
        if 0 <= conn < 1 << 64:
            self._seen_conn(conn)
        elif len(self.odd_conns) <= CONNS:
            self.odd_conns.add(conn)
        return 0
