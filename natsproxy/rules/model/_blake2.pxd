# cython: language_level=3
"""BLAKE2b with a digest of eight bytes, of a text whose beginning stays: the hash of `seeded_random.py`.

hashlib has no C interface that works without the interpreter lock, and a call of it costs several times as much as
the hash of such a short text.  A test compares the two.
"""

from libc.stdint cimport uint64_t
from libc.string cimport memcpy, memset

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>

    static const uint64_t natsproxy_blake2_iv[8] = {
        0x6a09e667f3bcc908ULL, 0xbb67ae8584caa73bULL, 0x3c6ef372fe94f82bULL, 0xa54ff53a5f1d36f1ULL,
        0x510e527fade682d1ULL, 0x9b05688c2b3e6c1fULL, 0x1f83d9abfb41bd6bULL, 0x5be0cd19137e2179ULL,
    };
    static const uint8_t natsproxy_blake2_sigma[10][16] = {
        {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
        {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
        {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
        {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
        {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
    };

    #define NATSPROXY_ROTATE(x, n) ((x) >> (n) | (x) << (64 - (n)))
    #define NATSPROXY_MIX(a, b, c, d, x, y) do { \\
        v[a] += v[b] + (x); v[d] = NATSPROXY_ROTATE(v[d] ^ v[a], 32); \\
        v[c] += v[d];       v[b] = NATSPROXY_ROTATE(v[b] ^ v[c], 24); \\
        v[a] += v[b] + (y); v[d] = NATSPROXY_ROTATE(v[d] ^ v[a], 16); \\
        v[c] += v[d];       v[b] = NATSPROXY_ROTATE(v[b] ^ v[c], 63); \\
    } while (0)

    /* One block of 128 bytes; size: the bytes of the text up to its end. */
    static void natsproxy_blake2_block(uint64_t *h, const unsigned char *p, uint64_t size, int last) {
        uint64_t v[16], m[16];
        int i, j;
        for (i = 0; i < 16; i++)
            for (m[i] = 0, j = 7; j >= 0; j--) m[i] = m[i] << 8 | p[8 * i + j];
        for (i = 0; i < 8; i++) v[i] = h[i], v[i + 8] = natsproxy_blake2_iv[i];
        v[12] ^= size;
        if (last) v[14] = ~v[14];
        #pragma GCC unroll 12
        for (i = 0; i < 12; i++) {
            const uint8_t *s = natsproxy_blake2_sigma[i % 10];
            NATSPROXY_MIX(0, 4, 8, 12, m[s[0]], m[s[1]]);
            NATSPROXY_MIX(1, 5, 9, 13, m[s[2]], m[s[3]]);
            NATSPROXY_MIX(2, 6, 10, 14, m[s[4]], m[s[5]]);
            NATSPROXY_MIX(3, 7, 11, 15, m[s[6]], m[s[7]]);
            NATSPROXY_MIX(0, 5, 10, 15, m[s[8]], m[s[9]]);
            NATSPROXY_MIX(1, 6, 11, 12, m[s[10]], m[s[11]]);
            NATSPROXY_MIX(2, 7, 8, 13, m[s[12]], m[s[13]]);
            NATSPROXY_MIX(3, 4, 9, 14, m[s[14]], m[s[15]]);
        }
        for (i = 0; i < 8; i++) h[i] ^= v[i] ^ v[i + 8];
    }
    static void natsproxy_blake2_begin(uint64_t *h) {
        memcpy(h, natsproxy_blake2_iv, sizeof(natsproxy_blake2_iv));
        h[0] ^= 0x01010000 ^ 8;  /* no key, eight bytes of digest */
    }
    """
    void _block "natsproxy_blake2_block"(uint64_t *h, const unsigned char *p, uint64_t size, bint last) nogil
    void _begin "natsproxy_blake2_begin"(uint64_t *h) nogil

cdef enum:
    BLOCK = 128


cdef struct Prefix:
    # The beginning of a text: the hash of its whole blocks, and the rest.
    uint64_t[8] hash
    unsigned char[BLOCK] rest
    Py_ssize_t rest_size
    uint64_t size


cdef inline void hash_prefix(Prefix *prefix, const unsigned char *p, Py_ssize_t size) noexcept nogil:
    """Begin a text; at least one byte is to follow."""
    cdef Py_ssize_t at = 0
    _begin(prefix.hash)
    while size - at >= BLOCK:
        at += BLOCK
        _block(prefix.hash, p + at - BLOCK, at, False)
    memset(prefix.rest, 0, BLOCK)
    memcpy(prefix.rest, p + at, size - at)
    prefix.rest_size, prefix.size = size - at, size


cdef inline uint64_t hash_with(const Prefix *prefix, const unsigned char *p, Py_ssize_t size) noexcept nogil:
    """Return the hash of the prefix with these bytes, fewer than a block, behind it: the digest as a number."""
    cdef uint64_t[8] hashed
    cdef unsigned char[BLOCK] block
    cdef Py_ssize_t room = BLOCK - prefix.rest_size
    cdef uint64_t word
    cdef int i
    memcpy(hashed, prefix.hash, sizeof(hashed))
    memcpy(block, prefix.rest, BLOCK)
    if size <= room:
        memcpy(block + prefix.rest_size, p, size)
    else:
        memcpy(block + prefix.rest_size, p, room)
        _block(hashed, block, prefix.size + room, False)
        memset(block, 0, BLOCK)
        memcpy(block, p + room, size - room)
    _block(hashed, block, prefix.size + size, True)
    # The digest is the word with its lowest byte first; as a number it is read with its highest byte first.
    word = 0
    for i in range(8):
        word = word << 8 | (hashed[0] >> 8 * i & 255)
    return word
