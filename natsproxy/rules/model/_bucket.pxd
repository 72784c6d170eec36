# cython: language_level=3
"""Token buckets from which C takes without the interpreter lock (`_bucket.pyx`)."""

from libc.stdint cimport int64_t

cdef extern from *:
    """
    #define natsproxy_unused INT64_MIN
    #define natsproxy_latest (INT64_C(1) << 62)
    #define natsproxy_load(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
    #define natsproxy_store(p, value) __atomic_store_n(p, value, __ATOMIC_RELEASE)
    #define natsproxy_swap(p, before, value) \\
        __atomic_compare_exchange_n(p, before, value, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)
    """
    const int64_t UNUSED "natsproxy_unused"     # instead of the time at which it is full
    const int64_t LATEST "natsproxy_latest"     # the latest such time, as in `_bucket_py.py`; a test compares the two
    int64_t load_time "natsproxy_load"(const int64_t *p) nogil
    void store_time "natsproxy_store"(int64_t *p, int64_t value) nogil
    # Store `value` if `before` is there, else set that to what is.
    bint swap_time "natsproxy_swap"(int64_t *p, int64_t *before, int64_t value) nogil


cdef struct Level:
    # Atomic: the threads of the plane take from it.
    int64_t full_at
    int64_t suspended           # until when


cdef struct Tokens:
    # What a frame takes, times in ns: `Rate` and `Tokens` of `token_buckets.py`.
    Level *level                # NULL: nothing
    bint sized                  # by its bytes, or one unit
    int64_t amount
    int64_t period
    int64_t burst
    int64_t full                # the time of the burst
    int64_t one                 # the time of one unit
    int64_t longest             # the time of any number of units, at most
    int64_t most                # units that can be multiplied by the period


cdef class Bucket:
    cdef object __weakref__
    cdef Level level


cdef inline bint take(Level *level, int64_t need, int64_t cost, int64_t full, int64_t now) noexcept nogil:
    """Take tokens: `Bucket.take`."""
    cdef int64_t before = load_time(&level.full_at), full_at
    if now < load_time(&level.suspended):
        return False
    while before != UNUSED:
        full_at = max(before, now)
        if full_at + need - now > full:
            return False
        if swap_time(&level.full_at, &before, min(full_at + cost, LATEST)):
            return True
    return False


cdef inline void give_back(Level *level, int64_t cost) noexcept nogil:
    """Undo a `take`."""
    cdef int64_t before = load_time(&level.full_at)
    while before != UNUSED and not swap_time(&level.full_at, &before, before - cost):
        pass


cdef inline int64_t cost_of(const Tokens *tokens, Py_ssize_t size) noexcept nogil:
    """Return the time in which the tokens of a frame come; -1 if only Python can tell.  size: its bytes."""
    if not tokens.sized:
        return tokens.one
    return -1 if size > tokens.most else min(size * tokens.period // tokens.amount, tokens.longest)


cdef inline bint take_tokens(const Tokens *tokens, Py_ssize_t size, int64_t now) noexcept nogil:
    """Take the tokens of a frame; False if Python is to decide: they are not there, or nobody uses the bucket."""
    cdef int64_t cost = cost_of(tokens, size)
    cdef int64_t need = tokens.full if (size if tokens.sized else 1) > tokens.burst else cost
    return cost >= 0 and take(tokens.level, need, cost, tokens.full, now)
