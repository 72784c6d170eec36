# cython: language_level=3, cdivision=True
"""Token buckets that the native plane takes from without the interpreter lock.

Theory
1. A bucket has one owner of its tokens, this object: Python and C take from the same one.  Each take is one atomic
   exchange, so the threads of the plane and Python share a bucket exactly.
2. A bucket that is *unused* belongs to no key at present (`token_buckets.py`): C gives frames to Python then, which
   takes it into use, or finds no room for its key.
"""

from natsproxy.rules.model._bucket cimport LATEST, UNUSED, load_time, store_time, swap_time, take


cdef class Bucket:
    """The tokens of one key; times in ns, 2**62 at most.  A new one is unused."""

    def __cinit__(self):
        self.level.full_at = UNUSED

    @property
    def full_at(self):
        """When it will be full again; None if it is unused."""
        cdef int64_t found = load_time(&self.level.full_at)
        return None if found == UNUSED else found

    def use(self):
        """Take it into use, full."""
        store_time(&self.level.full_at, 0)

    def leave(self, int64_t now):
        """Make it unused if it is full, and tell whether it was."""
        cdef int64_t before = load_time(&self.level.full_at)
        while before <= now and not self.is_suspended(now):
            if swap_time(&self.level.full_at, &before, UNUSED):
                return True
        return False

    def take(self, int64_t need, int64_t cost, int64_t full, int64_t now):
        """Take tokens now if they are there, and tell whether they were; False if it is unused.

        need: the time in which those come that must be there; cost: in which those come that are taken; full: in
        which a whole bucket comes.
        """
        return take(&self.level, need, cost, full, now)

    def reserve(self, int64_t need, int64_t cost, int64_t full, int64_t now):
        """Take tokens as soon as they are there; return that time."""
        cdef int64_t before = load_time(&self.level.full_at), full_at
        while True:
            full_at = max(before, now)
            if swap_time(&self.level.full_at, &before, min(full_at + cost, LATEST)):
                return max(now, full_at + need - full)

    def suspend(self, int64_t until):
        """Let nobody take before a time, when it is full at the earliest."""
        cdef int64_t before = load_time(&self.level.full_at)
        store_time(&self.level.suspended, until)
        while not swap_time(&self.level.full_at, &before, max(before, until)):
            pass

    def is_suspended(self, int64_t now):
        """Tell whether nobody may take at a time."""
        return now < load_time(&self.level.suspended)
