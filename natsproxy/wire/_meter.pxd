# cython: language_level=3
"""Whom the compiled walk tells of requests and of their answers: the C side of `awaited.Meter`."""

from libc.stdint cimport int64_t


cdef struct Meter:
    # Called by any thread without the interpreter lock, and by one at a time for one connection.
    int64_t (*requested)(Meter *meter, const unsigned char *subject, Py_ssize_t length, int64_t now) noexcept nogil
    void (*answered)(Meter *meter, int64_t ticket, int64_t now, bint no_responders) noexcept nogil


cdef class NativeMeter:
    cdef Meter *meter
    cdef public int64_t now
