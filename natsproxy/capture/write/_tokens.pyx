# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The first subject tokens of ordinary frames, for the summary of a block (`capture/write/first_tokens.py`)."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.string cimport memchr, memcmp

from natsproxy.capture.format._frames cimport SUBJECT, Row, read_frame


def gather(const unsigned char[::1] data, bint s2c, set found, Py_ssize_t longest):
    """Add the first tokens of the subjects in `data` to `found`; False where a frame is no ordinary one.

    A token of more than `longest` bytes is none either.
    """
    cdef const unsigned char *p
    cdef const unsigned char *dot
    cdef Py_ssize_t at = 0, stop = data.shape[0], end, start, size, last = 0, last_size = -1
    cdef Row row
    if stop == 0:
        return True
    p = &data[0]
    while at < stop:
        end = read_frame(p, at, stop, s2c, &row)
        if end == 0:
            return False
        at = end
        start = row.part[SUBJECT].start
        size = row.part[SUBJECT].stop - start
        if size == 0:
            continue
        dot = <const unsigned char *>memchr(p + start, 46, size)
        if dot != NULL:
            size = dot - (p + start)
        if size == last_size and memcmp(p + start, p + last, size) == 0:
            continue  # neighbours mostly say the same
        if size > longest:
            return False
        last, last_size = start, size
        found.add(PyBytes_FromStringAndSize(<const char *>(p + start), size))
    return True
