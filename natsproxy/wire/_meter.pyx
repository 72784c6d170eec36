# cython: language_level=3
"""The base of meters that the compiled walk can tell of requests; a subclass sets the functions of `meter`."""


cdef class NativeMeter:
    """A meter of the requests of one connection."""
