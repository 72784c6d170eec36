# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Counts, gates and random numbers that the native plane asks without the interpreter lock.

Theory
1. The counts have one owner: Python's gates and C's count in the same `Count` and the same `RecentCounts`.  Random
   numbers have no state (`seeded_random.py`).  So a match has the same numbers whoever asks, and to ask about one
   changes nothing: it is counted when its frame is dealt with.
2. The threads of the plane count matches of a rule at the same time, so its counts are atomic.  A gate that *looks
   at* those (`per = "proxy"`) is asked by the control thread alone.
3. `native_gate` takes the gates that C knows, and no others: those are asked by Python.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc

from natsproxy._lock cimport add_big, load_big
from natsproxy.rules.model._blake2 cimport hash_prefix
from natsproxy.wire._table cimport Entry, table_clear, table_find

cdef extern from *:
    """
    #define natsproxy_set(p, value) __atomic_store_n(p, value, __ATOMIC_RELEASE)
    """
    void store_big "natsproxy_set"(uint64_t *p, uint64_t value) nogil


cdef class Count:
    """The numbers of matches and firings since a time (ns)."""

    def __init__(self, int64_t since=0, uint64_t matched=0, uint64_t fired=0):
        self.numbers.since, self.numbers.matched, self.numbers.fired = since, matched, fired

    @property
    def since(self):
        return self.numbers.since

    @since.setter
    def since(self, int64_t value):
        self.numbers.since = value

    @property
    def matched(self):
        return load_big(&self.numbers.matched)

    @property
    def fired(self):
        return load_big(&self.numbers.fired)

    @fired.setter
    def fired(self, uint64_t value):
        store_big(&self.numbers.fired, value)

    def match(self, uint64_t size=1):
        """Count matches; return the number of the first, from 1, where no other thread counts."""
        cdef uint64_t before = load_big(&self.numbers.matched)
        add_big(&self.numbers.matched, size)
        return before + 1

    def __repr__(self):
        return f"Count(since={self.since}, matched={self.matched}, fired={self.fired})"


cdef class RecentCounts:
    """Counts by digest, of the `limit` that were counted last."""

    def __init__(self, Py_ssize_t limit):
        self.limit = limit

    def __dealloc__(self):
        table_clear(&self.table)

    def __len__(self):
        return self.table.count

    def add(self, bytes digest not None, Py_ssize_t count):
        """Count matches; return how many there were before."""
        cdef const unsigned char *key = <const unsigned char *>PyBytes_AS_STRING(digest)
        cdef uint64_t before
        if PyBytes_GET_SIZE(digest) != DIGEST:
            raise ValueError(f"a digest has {DIGEST} bytes")
        before = recent_count(&self.table, key)
        add_recent(&self.table, self.limit, key, count)
        return before


cdef class NativeDice:
    """The random numbers of `SeededRandom`.  prefix: the text that they depend on."""

    def __init__(self, bytes prefix not None):
        hash_prefix(&self.prefix, <const unsigned char *>PyBytes_AS_STRING(prefix), PyBytes_GET_SIZE(prefix))

    def draw(self, uint64_t m, unsigned int k=0):
        """Return the k-th number of the m-th match."""
        return draw(&self.prefix, m, k)


cdef class NativeGate:
    """A gate on one connection and direction; made by `native_gate`."""

    def __dealloc__(self):
        free(self.listed)

    @property
    def per_proxy(self):
        """True if it looks at the counts of all connections."""
        return self.terms.counted == self.terms.shared and not self.terms.open


def native_gate(gate, Count own not None, Count shared not None, keys, str direction not None):
    """Return a gate as C asks it; own, shared: its counts.  keys, direction: as for `Gate.admits`."""
    cdef NativeGate made = NativeGate.__new__(NativeGate)
    cdef GateTerms *terms = &made.terms
    cdef Py_ssize_t at
    made.kept = own, shared
    terms.own, terms.shared = &own.numbers, &shared.numbers
    terms.counted = terms.shared if gate.per_proxy else terms.own
    terms.open = gate.open
    terms.after = gate.after
    terms.first = -1 if gate.first is None else gate.first
    terms.every = 0 if gate.every is None else gate.every
    terms.limit = -1 if gate.limit is None else gate.limit
    terms.timed = gate.between is not None
    if terms.timed:
        terms.start = gate.between.start
        terms.end = -1 if gate.between.end is None else gate.between.end
    terms.probability = -1.0 if gate.probability is None else gate.probability
    if gate.only is not None:
        listed = sorted({
            m for key in keys for name in (key, f"{direction} {key}") for m in gate.only.get(name, ())
        })
        made.listed = <int64_t *>malloc(max(1, len(listed)) * sizeof(int64_t))
        if made.listed == NULL:
            raise MemoryError
        for at in range(len(listed)):
            made.listed[at] = listed[at]
        terms.listed, terms.listed_size = made.listed, len(listed)
    return made
