# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Columns that grow row by row, in the buffers that Arrow reads: a validity bitmap, and values or texts.

A column grows in two steps: `reserve` makes room for a whole table of rows, then the `add` methods write one
row each without checking the room again.  The buffers are bytearrays, which pyarrow takes without a copy.

The bitmap is only written from the first null on: most columns have none, and Arrow needs no bitmap for them.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memset

from natsproxy.protocol._subjects cimport is_ascii
from natsproxy.protocol._template cimport template_room, write_template
from natsproxy.capture.format._items cimport TEXT_MAX

from natsproxy.protocol.template import template


class Unsure(Exception):
    """The pure twin must decode this block."""


cdef class ColumnBuilder:
    """One column as it grows: a bit and a value for each row."""

    cdef int reserve(self, Py_ssize_t more) except -1:
        """Make room for `more` rows."""
        cdef Py_ssize_t have = len(self.bits)
        if self.rows + more > self.room:
            self.room = max(self.room + self.room // 2, self.rows + more)
            PyByteArray_Resize(self.bits, (self.room + 7) // 8)
            self.bit = PyByteArray_AS_STRING(self.bits)
            # `mark` only sets bits, so new ones must be zero.
            memset(self.bit + have, 0, len(self.bits) - have)
            self.grow()
        return 0

    cdef int grow(self) except -1:
        return 0

    cdef void first_null(self) noexcept:
        """Set the bits of all rows so far, since each of them has a value."""
        memset(self.bit, 0xFF, self.rows >> 3)
        if self.rows & 7:  # else the next byte may be beyond the room
            self.bit[self.rows >> 3] |= (1 << (self.rows & 7)) - 1

    cdef int add_nulls(self, Py_ssize_t count) except -1:
        """Add rows without a value."""
        if self.nulls == 0:
            self.first_null()
        self.nulls += count
        self.rows += count
        return 0

    def validity(self):
        """Return the bitmap, None where no value is absent."""
        PyByteArray_Resize(self.bits, (self.rows + 7) // 8)
        return self.bits if self.nulls else None


cdef class NumberBuilder(ColumnBuilder):
    """A column of integers of 4 or 8 bytes."""

    def __init__(self, make, int source, int width, int ops):
        self.make, self.source, self.width, self.ops = make, source, width, ops
        self.bits, self.values = bytearray(), bytearray()

    cdef int grow(self) except -1:
        PyByteArray_Resize(self.values, self.room * self.width)
        self.value = PyByteArray_AS_STRING(self.values)
        return 0

    cdef int add_nulls(self, Py_ssize_t count) except -1:
        memset(self.value + self.rows * self.width, 0, count * self.width)
        return ColumnBuilder.add_nulls(self, count)

    def finish(self):
        """Return (nulls, validity bitmap or None, None, values)."""
        PyByteArray_Resize(self.values, self.rows * self.width)
        return self.nulls, self.validity(), None, self.values


cdef class TextBuilder(ColumnBuilder):
    """A column of strings or bytes: offsets and data.

    Its data grows on demand, since the length of the texts is not known in advance.
    """

    def __init__(self, make, int source, int part, int ops):
        self.make, self.source, self.part, self.ops = make, source, part, ops
        self.binary = source == PAYLOAD
        self.bits, self.offsets, self.data = bytearray(), bytearray(4), bytearray()

    cdef int grow(self) except -1:
        PyByteArray_Resize(self.offsets, 4 * (self.room + 1))
        self.offset = <int32_t *>PyByteArray_AS_STRING(self.offsets)
        return 0

    cdef int add_nulls(self, Py_ssize_t count) except -1:
        cdef Py_ssize_t i
        for i in range(self.rows + 1, self.rows + 1 + count):
            self.offset[i] = <int32_t>self.used
        return ColumnBuilder.add_nulls(self, count)

    cdef char *place(self, Py_ssize_t more) except NULL:
        """Return where `more` bytes may be written; raises Unsure beyond `TEXT_MAX`."""
        if self.used + more > TEXT_MAX:
            raise Unsure
        if self.used + more > self.space:
            self.space = 2 * self.space + more + 64
            PyByteArray_Resize(self.data, self.space)
            self.start = PyByteArray_AS_STRING(self.data)
        return self.start + self.used

    cdef int add_text(self, const unsigned char *text, Py_ssize_t length) except -1:
        """Add bytes from the wire; a text column replaces those that are not UTF-8."""
        if self.binary or is_ascii(text, length):
            return self.add_bytes(<const char *>text, length)
        cdef bytes whole = PyBytes_FromStringAndSize(<const char *>text, length)
        return self.add_value(whole.decode("utf-8", "replace"))

    cdef int add_value(self, value) except -1:
        """Add a Python value: str, bytes or None."""
        if value is None:
            return self.end_row(False)
        cdef bytes encoded = value if self.binary else value.encode()
        return self.add_bytes(PyBytes_AS_STRING(encoded), PyBytes_GET_SIZE(encoded))

    cdef int add_template(self, const unsigned char *s, Py_ssize_t length) except -1:
        """Add the template of a subject, by the rule of `protocol/template.py`."""
        if is_ascii(s, length):
            self.used += write_template(s, length, self.place(template_room(length)))
            return self.end_row(True)
        return self.add_value(template(PyBytes_FromStringAndSize(<const char *>s, length)).decode("utf-8", "replace"))

    def finish(self):
        """Return (nulls, validity bitmap or None, offsets, data)."""
        PyByteArray_Resize(self.offsets, 4 * (self.rows + 1))
        PyByteArray_Resize(self.data, self.used)
        return self.nulls, self.validity(), self.offsets, self.data
