# cython: language_level=3
"""Ordinary control lines in C, shared by the compiled scanner and the compiled columns of captures.

Ordinary: what real clients and servers send.  What these functions do not read is left to the pure scanner,
which alone knows the whole grammar; so a byte that one reader takes no other reads differently.
"""

from libc.stdint cimport uint32_t

cdef extern from *:
    """
    #include <stdint.h>
    static inline uint32_t natsproxy_few_low_bytes(const unsigned char *p, Py_ssize_t count) {
        uint32_t bits = 0;
        Py_ssize_t i;
        for (i = 0; i < count; i++) bits |= (uint32_t)(p[i] <= 32) << i;
        return bits;
    }
    #if defined(__SSE2__)
    #include <emmintrin.h>
    static inline uint32_t natsproxy_low_bytes(const unsigned char *p) {
        const __m128i bytes = _mm_loadu_si128((const __m128i *)p);
        return (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_min_epu8(bytes, _mm_set1_epi8(32)), bytes));
    }
    #else
    #define natsproxy_low_bytes(p) natsproxy_few_low_bytes(p, 16)
    #endif
    #if defined(__GNUC__) || defined(__clang__)
    #define natsproxy_lowest_bit(bits) __builtin_ctz(bits)
    #else
    static inline int natsproxy_lowest_bit(uint32_t bits) { int i = 0; while (!(bits >> i & 1)) i++; return i; }
    #endif
    """
    # A bit for each byte up to 32, of sixteen bytes or fewer.
    uint32_t low_bytes "natsproxy_low_bytes"(const unsigned char *p) nogil
    uint32_t few_low_bytes "natsproxy_few_low_bytes"(const unsigned char *p, Py_ssize_t count) nogil
    int lowest_bit "natsproxy_lowest_bit"(uint32_t bits) nogil


# The op numbers of `wire/ops.py`, for the ops that C reads; an op that is not here takes the general path.
# `_scanner.OP_NUMBERS` shows them to the test that holds them equal to the table.
cdef enum:
    PUB = 0, HPUB = 1, SUB = 2, UNSUB = 3, MSG = 4, HMSG = 5, INFO = 6, CONNECT = 7, PING = 8, PONG = 9, OK = 10
    OPS_ROOM = 16               # room for op numbers in arrays


cdef struct Line:
    int op
    int count            # tokens of the arguments
    Py_ssize_t start[5]
    Py_ssize_t stop[5]
    Py_ssize_t end       # just after LF; 0: not an ordinary line


cdef inline bint letter(unsigned char byte, unsigned char upper) noexcept nogil:
    return byte & 0xDF == upper


cdef inline int message_op(const unsigned char *p, Py_ssize_t at, Py_ssize_t length, bint s2c) noexcept nogil:
    """Return the op of a message frame and 32 times the length of its name, -1 for anything else."""
    if length - at < 5:
        return -1
    if s2c:
        if letter(p[at], 77) and letter(p[at + 1], 83) and letter(p[at + 2], 71):
            return MSG + 32 * 3
        if letter(p[at], 72) and letter(p[at + 1], 77) and letter(p[at + 2], 83) and letter(p[at + 3], 71):
            return HMSG + 32 * 4
        return -1
    if letter(p[at], 80) and letter(p[at + 1], 85) and letter(p[at + 2], 66):
        return PUB + 32 * 3
    if letter(p[at], 72) and letter(p[at + 1], 80) and letter(p[at + 2], 85) and letter(p[at + 3], 66):
        return HPUB + 32 * 4
    return -1


cdef inline void read_line(const unsigned char *p, Py_ssize_t at, Py_ssize_t length, Py_ssize_t limit, Line *line) noexcept nogil:
    """Read the arguments from `at` (just after the op's name) to LF; at most five tokens.

    Sixteen bytes at a time: blanks and ends of lines are among the low bytes, and there are few of those.
    """
    cdef Py_ssize_t begin = at, here
    cdef uint32_t low
    line.end = 0
    line.count = 0
    if at >= length or (p[at] != 32 and p[at] != 9):
        return
    if length - at > limit:
        length = at + limit
    while at < length:
        low = low_bytes(p + at) if length - at >= 16 else few_low_bytes(p + at, length - at)
        while low:
            here = at + lowest_bit(low)
            low &= low - 1
            if p[here] != 32 and p[here] != 9 and p[here] != 13 and p[here] != 10:
                continue  # a byte of a token, like those that are not low
            if p[here] == 13 and (here + 1 >= length or p[here + 1] != 10):
                return
            if here > begin:
                if line.count == 5:
                    return
                line.start[line.count] = begin
                line.stop[line.count] = here
                line.count += 1
            if p[here] == 13 or p[here] == 10:
                line.end = here + (2 if p[here] == 13 else 1)
                return
            begin = here + 1
        at += 16


cdef inline Py_ssize_t number(const unsigned char *p, Py_ssize_t start, Py_ssize_t stop) noexcept nogil:
    """Return a number of one to nine digits, -1 for anything else."""
    cdef Py_ssize_t value = 0
    if stop - start > 9 or stop == start:
        return -1
    while start < stop:
        if p[start] < 48 or p[start] > 57:
            return -1
        value = value * 10 + (p[start] - 48)
        start += 1
    return value
