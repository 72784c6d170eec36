# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Flat JSON objects in C, such as the CONNECT of nearly all clients; `gojson.fill` has the rule, and is authoritative.

ASCII only, without escapes, nested values, negative or broken numbers, and large ones.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from libc.string cimport memcmp

cdef extern from "Python.h":
    ctypedef struct PyObject
    object PyUnicode_DecodeASCII(const char *text, Py_ssize_t size, const char *errors)

cdef enum:
    LONGEST = 32            # bytes of a key that may be wanted
    DIGITS = 18             # of a number


cdef inline const unsigned char *_blanks(const unsigned char *at, const unsigned char *end) noexcept nogil:
    """Pass over blanks."""
    while at < end and (at[0] == 32 or at[0] == 9 or at[0] == 10 or at[0] == 13):
        at += 1
    return at


cdef inline const unsigned char *_text(const unsigned char *at, const unsigned char *end) noexcept nogil:
    """Return the end of a string whose first byte is at `at`, its quote; NULL where it is not a plain one."""
    while at < end and at[0] != 34:
        if at[0] < 32 or at[0] > 126 or at[0] == 92:
            return NULL
        at += 1
    return at if at < end else NULL


cdef inline const unsigned char *_word(
    const unsigned char *at, const unsigned char *end, const char *word, Py_ssize_t size
) noexcept nogil:
    """Return the end of a word; NULL where there is another one."""
    return at + size if end - at >= size and memcmp(at, word, size) == 0 else NULL


cdef object _name(const unsigned char *text, Py_ssize_t size):
    """Return a key in lower case."""
    cdef char[LONGEST] lower
    cdef Py_ssize_t at
    for at in range(size):
        lower[at] = text[at] + 32 if 65 <= text[at] <= 90 else text[at]
    return PyUnicode_DecodeASCII(lower, size, NULL)


def fill(bytes raw, dict fields):
    """Return what `gojson.fill` returns; None where that is to read it, or to say what is wrong."""
    cdef const unsigned char *at = <const unsigned char *>PyBytes_AS_STRING(raw)
    cdef const unsigned char *end = at + PyBytes_GET_SIZE(raw)
    cdef const unsigned char *key
    cdef const unsigned char *stop
    cdef PyObject *kind
    cdef object wanted, name, value
    cdef long long number
    cdef dict found = {}
    at = _blanks(at, end)
    if at == end or at[0] != 123:
        return None
    at = _blanks(at + 1, end)
    if at < end and at[0] == 125:
        return found if _blanks(at + 1, end) == end else None
    while True:
        if at == end or at[0] != 34:
            return None
        key = at + 1
        stop = _text(key, end)
        if stop == NULL:
            return None
        name, kind = None, NULL
        if stop - key <= LONGEST:
            name = _name(key, stop - key)
            kind = PyDict_GetItem(fields, name)
        wanted = None if kind == NULL else <object>kind
        at = _blanks(stop + 1, end)
        if at == end or at[0] != 58:
            return None
        at = _blanks(at + 1, end)
        if at == end:
            return None
        value = None
        if at[0] == 34:
            key = at + 1
            stop = _text(key, end)
            if stop == NULL or (kind != NULL and wanted is not str):
                return None
            if kind != NULL:
                value = PyUnicode_DecodeASCII(<const char *>key, stop - key, NULL)
            at = stop + 1
        elif at[0] == 116 or at[0] == 102:
            stop = _word(at, end, "true", 4) if at[0] == 116 else _word(at, end, "false", 5)
            if stop == NULL or (kind != NULL and wanted is not bool):
                return None
            value = at[0] == 116
            at = stop
        elif at[0] == 110:
            at = _word(at, end, "null", 4)
            if at == NULL:
                return None
        elif 48 <= at[0] <= 57:
            if kind != NULL and wanted is not int:
                return None
            number, key = 0, at
            while at < end and 48 <= at[0] <= 57 and at - key <= DIGITS:
                number = number * 10 + at[0] - 48
                at += 1
            # A fraction, an exponent or a further digit is no end of a member; nor may a zero stand first.
            if at - key > DIGITS or (key[0] == 48 and at - key > 1):
                return None
            value = number
        else:
            return None
        if kind != NULL and value is not None:
            found[name] = value
        at = _blanks(at, end)
        if at == end:
            return None
        if at[0] == 125:
            return found if _blanks(at + 1, end) == end else None
        if at[0] != 44:
            return None
        at = _blanks(at + 1, end)
