# cython: language_level=3, boundscheck=False, wraparound=False
"""Columns that grow row by row: the declarations of `_builders.pyx`, which describes them.

Methods that run once per value have their bodies here, so that they are inlined in `_columns.pyx` (saves a
tenth of the time of a block).
"""

from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy


cdef enum:
    # The source of a column's values, for each frame.
    SPAN, OP, TEMPLATE, CAUSE, NOTHING, PAYLOAD
    IDX, IN, OUT, HEADER_SIZE, SIZE, STATUS
    # The same for all frames of a record.
    T_NS, TS, CONN, DIR, DELAY, OF, FLAGS
    # JetStream columns: this plus the index of the field in `JetStreamMessage`.
    JETSTREAM = 64


cdef class ColumnBuilder:
    cdef object make            # the pure code's function that reads the value from a frame
    cdef int source
    cdef int ops                # bits of the ops (and of CAUSED, REPLACED) that have a value here at all
    cdef bytearray bits
    cdef char *bit              # where `bits` begins; below, where values, offsets and data begin
    cdef Py_ssize_t rows, nulls, room

    cdef int reserve(self, Py_ssize_t more) except -1
    cdef int grow(self) except -1

    cdef inline void mark(self, bint present) noexcept:
        """Set the row's bit; no bits are set before the first null."""
        if not present:
            if self.nulls == 0:
                self.first_null()
            self.nulls += 1
        elif self.nulls:
            self.bit[self.rows >> 3] |= 1 << (self.rows & 7)

    cdef void first_null(self) noexcept
    cdef int add_nulls(self, Py_ssize_t count) except -1


cdef class NumberBuilder(ColumnBuilder):
    cdef int width
    cdef bytearray values
    cdef char *value

    cdef inline bint add(self, int64_t value, bint present) noexcept:
        """Add a value; False where it does not fit."""
        if not present:
            value = 0
        if self.width == 8:
            (<int64_t *>self.value)[self.rows] = value
        elif value == <int32_t>value:
            (<int32_t *>self.value)[self.rows] = <int32_t>value
        else:
            return False
        self.mark(present)
        self.rows += 1
        return True


cdef class TextBuilder(ColumnBuilder):
    cdef int part
    cdef bint binary
    cdef bytearray offsets, data
    cdef int32_t *offset
    cdef char *start
    cdef Py_ssize_t used, space

    cdef char *place(self, Py_ssize_t more) except NULL

    cdef inline int end_row(self, bint present) except -1:
        """End the row after the bytes written at `place`."""
        self.mark(present)
        self.rows += 1
        self.offset[self.rows] = <int32_t>self.used
        return 0

    cdef inline int add_bytes(self, const char *text, Py_ssize_t length) except -1:
        """Add bytes as they are; a text column takes only UTF-8 here."""
        memcpy(self.place(length + 1), text, length)  # one more, so that the result is never NULL
        self.used += length
        return self.end_row(True)

    cdef int add_text(self, const unsigned char *text, Py_ssize_t length) except -1
    cdef int add_value(self, value) except -1
    cdef int add_template(self, const unsigned char *s, Py_ssize_t length) except -1
