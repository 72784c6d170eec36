# cython: language_level=3, cdivision=True
"""The items of a block in C: a plain `Frames` item is read, any other msgpack value is measured.

Plain: what the recorder writes (`recordings/FORMAT.md`), integers nearer to zero than 2**62, an `extra` of short
names and scalars.  Anything else gives False or -1, and the Python code reads the item.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memset

cdef enum:
    FULL = 0x7FFFFFFF           # the most that 32 bits with a sign hold
    TEXT_MAX = 1 << 28          # arrow.TEXT_MAX


cdef struct Body:
    const unsigned char *p
    Py_ssize_t length


cdef struct Span:
    uint32_t start, stop


cdef struct Record:
    int64_t conn, direction, flags, frames, in_first, in_t, out_first, out_t, wall, of
    bint has_in_first, has_in_t, has_out_first, has_out_t, has_cause, has_of
    Span cause, data


cdef inline uint64_t big(const Body *body, Py_ssize_t at, int width) noexcept nogil:
    cdef uint64_t value = 0
    cdef int i
    for i in range(width):
        value = value << 8 | body.p[at + i]
    return value


cdef inline bint integer(const Body *body, Py_ssize_t *at, int64_t *value) noexcept nogil:
    """Read an integer that is not far from zero."""
    cdef Py_ssize_t here = at[0]
    cdef unsigned char first
    cdef int width
    cdef uint64_t raw
    if here >= body.length:
        return False
    first = body.p[here]
    if first < 0x80 or first >= 0xE0:
        value[0] = first if first < 0x80 else <int64_t>first - 256
        at[0] = here + 1
        return True
    if not (0xCC <= first <= 0xCF or 0xD0 <= first <= 0xD3):
        return False
    width = 1 << ((first - 0xCC) & 3)
    if here + 1 + width > body.length:
        return False
    raw = big(body, here + 1, width)
    if first < 0xD0:
        if raw >> 62:
            return False
        value[0] = <int64_t>raw
    else:
        value[0] = <int64_t>(raw << (64 - 8 * width)) >> (64 - 8 * width)
    if value[0] >> 62 != 0 and value[0] >> 62 != -1:
        return False
    at[0] = here + 1 + width
    return True


cdef inline bint maybe(const Body *body, Py_ssize_t *at, int64_t *value, bint *there) noexcept nogil:
    """Read an integer or nil."""
    if at[0] < body.length and body.p[at[0]] == 0xC0:
        at[0] += 1
        there[0] = False
        value[0] = 0
        return True
    there[0] = True
    return integer(body, at, value)


cdef inline bint sized(const Body *body, Py_ssize_t *at, unsigned char kind, Span *span) noexcept nogil:
    """Read bytes (kind 0xC4) or text (kind 0xD9): 8, 16 or 32 bits of length, or the short form of text."""
    cdef Py_ssize_t here = at[0], width, length
    cdef unsigned char first
    if here >= body.length:
        return False
    first = body.p[here]
    if kind == 0xD9 and 0xA0 <= first < 0xC0:
        width, length = 0, first & 31
    elif kind <= first < kind + 3:
        width = 1 << (first - kind)
        if here + 1 + width > body.length:
            return False
        length = <Py_ssize_t>big(body, here + 1, <int>width)
    else:
        return False
    here += 1 + width
    if length > body.length - here:
        return False
    span.start, span.stop = <uint32_t>here, <uint32_t>(here + length)
    at[0] = here + length
    return True


cdef inline bint read_extra(const Body *body, Py_ssize_t *at, Record *record) noexcept nogil:
    """Read the map after the data, if it is plain: short names, scalar values; `of` is a number."""
    cdef int64_t count, value
    cdef Span name, text
    cdef bint is_of
    if at[0] >= body.length or body.p[at[0]] & 0xF0 != 0x80:
        return False
    count = body.p[at[0]] & 15
    at[0] += 1
    for _ in range(count):
        if not sized(body, at, 0xD9, &name) or at[0] >= body.length:
            return False
        is_of = name.stop - name.start == 2 and memcmp(&body.p[name.start], b"of", 2) == 0
        if is_of:
            if not maybe(body, at, &record.of, &record.has_of):
                return False
        elif 0xC0 <= body.p[at[0]] <= 0xC3 and body.p[at[0]] != 0xC1:
            at[0] += 1
        elif not (integer(body, at, &value) or sized(body, at, 0xD9, &text) or sized(body, at, 0xC4, &text)):
            return False
    return True


cdef inline bint read_record(const Body *body, Py_ssize_t *at, Record *record) noexcept nogil:
    """Read a plain Frames item; False for any other, and `at` is undefined then."""
    cdef Py_ssize_t here = at[0] + 2
    cdef bint extra = body.p[at[0]] == 0x9C
    memset(record, 0, sizeof(Record))
    if here > body.length or not (extra or body.p[at[0]] == 0x9B) or body.p[here - 1] != 0:
        return False
    if not (
        integer(body, &here, &record.conn)
        and integer(body, &here, &record.direction)
        and integer(body, &here, &record.flags)
        and integer(body, &here, &record.frames)
        and maybe(body, &here, &record.in_first, &record.has_in_first)
        and maybe(body, &here, &record.in_t, &record.has_in_t)
        and maybe(body, &here, &record.out_first, &record.has_out_first)
        and maybe(body, &here, &record.out_t, &record.has_out_t)
    ):
        return False
    if here < body.length and body.p[here] == 0xC0:
        here += 1
    elif sized(body, &here, 0xD9, &record.cause):
        record.has_cause = True
    else:
        return False
    if not sized(body, &here, 0xC4, &record.data) or (extra and not read_extra(body, &here, record)):
        return False
    at[0] = here
    return 0 <= record.direction <= 1 and 0 <= record.flags < 128 and 0 <= record.frames <= FULL


cdef inline Py_ssize_t skip(const Body *body, Py_ssize_t at, int depth) noexcept nogil:
    """Return the end of any msgpack value; -1 for invalid or too deeply nested ones."""
    cdef unsigned char first
    cdef int64_t value, count
    cdef Py_ssize_t here = at
    cdef Span span
    if at >= body.length or depth == 0:
        return -1
    first = body.p[at]
    if first == 0xC0 or first == 0xC2 or first == 0xC3:
        return at + 1
    if first == 0xCA or first == 0xCB or first == 0xCF or first == 0xD3:
        at += 5 if first == 0xCA else 9
        return at if at <= body.length else -1
    if sized(body, &here, 0xC4, &span) or sized(body, &here, 0xD9, &span) or integer(body, &here, &value):
        return here
    if 0x80 <= first < 0xA0:
        count = (first & 15) * (1 if first & 0x10 else 2)
        at += 1
    elif 0xDC <= first <= 0xDF:
        if at + 1 + (2 if first & 1 == 0 else 4) > body.length:
            return -1
        count = <int64_t>big(body, at + 1, 2 if first & 1 == 0 else 4) * (1 if first < 0xDE else 2)
        at += 3 if first & 1 == 0 else 5
    else:
        return -1
    while count and at >= 0:
        at = skip(body, at, depth - 1)
        count -= 1
    return at
