# cython: language_level=3
"""Gates, counts and random numbers that C asks without the interpreter lock (`_gates.pyx`)."""

from libc.stdint cimport int64_t, uint64_t

from natsproxy._lock cimport add_big, load_big
from natsproxy.rules.model._blake2 cimport Prefix, hash_with
from natsproxy.wire._table cimport Entry, Table, table_find, table_oldest, table_put, table_remove

cdef enum:
    DIGEST = 8                  # bytes that identify a substream


cdef struct Numbers:
    int64_t since
    # Atomic: the threads of the plane count in them.
    uint64_t matched
    uint64_t fired


cdef struct GateTerms:
    Numbers *own                # of the connection and direction
    Numbers *shared             # of the rule
    Numbers *counted            # those that the conditions look at: one of the two
    bint open                   # it lets everything through, and counts no firings
    int64_t after
    int64_t first               # -1: no such condition, as below
    int64_t every               # 0: no such condition
    int64_t limit
    bint timed
    int64_t start
    int64_t end
    const int64_t *listed       # the only matches that may pass, in order; NULL: any
    Py_ssize_t listed_size
    double probability          # negative: no such condition


cdef struct Substream:
    # Where a match draws from, unless from the numbers of the direction by its own number.
    Table *counts
    Py_ssize_t limit
    unsigned char[DIGEST] digest


cdef class Count:
    cdef Numbers numbers


cdef class RecentCounts:
    cdef Table table
    cdef readonly Py_ssize_t limit


cdef class NativeDice:
    cdef Prefix prefix


cdef class NativeGate:
    cdef GateTerms terms
    cdef tuple kept
    cdef int64_t *listed


# -- counts of substreams: the table has the one that was counted last at its end

cdef inline uint64_t recent_count(const Table *table, const unsigned char *digest) noexcept nogil:
    cdef Entry *entry = table_find(table, digest, DIGEST)
    return 0 if entry == NULL else entry.value


cdef inline void add_recent(Table *table, Py_ssize_t limit, const unsigned char *digest, Py_ssize_t count) noexcept nogil:
    """Count matches of a substream; without memory it begins anew, as a forgotten one."""
    cdef Entry *entry = table_find(table, digest, DIGEST)
    if entry != NULL:
        if entry == &table.entries[table.used - 1]:
            entry.value += count
            return
        count += entry.value
        table_remove(table, entry)
    table_put(table, digest, DIGEST, count)
    if table.count > limit:
        table_remove(table, table_oldest(table))


# -- random numbers

cdef inline int write_number(unsigned char *p, uint64_t number) noexcept nogil:
    """Write a number in decimal digits; return how many."""
    cdef unsigned char[20] digits
    cdef int size = 0, i
    while True:
        digits[size] = <unsigned char>(48 + number % 10)
        number //= 10
        size += 1
        if number == 0:
            break
    for i in range(size):
        p[i] = digits[size - 1 - i]
    return size


cdef inline double draw(const Prefix *numbers, uint64_t m, unsigned int k) noexcept nogil:
    """Return a number in (0, 1): `SeededRandom.draw`."""
    cdef unsigned char[40] text
    cdef int size = write_number(text, m)
    text[size] = 46
    size += 1 + write_number(text + size + 1, k)
    # 53 bits, as many as a float has; the half keeps the number away from 0 and 1.
    return (<double>(hash_with(numbers, text, size) >> 11) + 0.5) * (1.0 / 9007199254740992.0)


# -- gates

cdef inline bint is_listed(const GateTerms *gate, int64_t m) noexcept nogil:
    cdef Py_ssize_t low = 0, high = gate.listed_size, middle
    while low < high:
        middle = (low + high) // 2
        if gate.listed[middle] < m:
            low = middle + 1
        else:
            high = middle
    return low < gate.listed_size and gate.listed[low] == m


cdef inline uint64_t number_to_draw(const GateTerms *gate, const Substream *substream) noexcept nogil:
    """Return the number by which the next match draws."""
    if substream != NULL:
        return recent_count(substream.counts, substream.digest) + 1
    return load_big(&gate.own.matched) + 1


cdef inline bint lets_through(const GateTerms *gate, const Prefix *numbers, const Substream *substream, int64_t now) noexcept nogil:
    """Tell whether the next match passes, and count nothing: `Gate.admits`.

    numbers: NULL if the gate draws none.  substream: NULL if they are drawn by the number of the match.
    """
    cdef int64_t place, age
    if gate.open:
        return True
    place = <int64_t>load_big(&gate.counted.matched) + 1 - gate.after
    if place <= 0 or (gate.first >= 0 and place > gate.first) or (gate.every and place % gate.every):
        return False
    if gate.limit >= 0 and <int64_t>load_big(&gate.counted.fired) >= gate.limit:
        return False
    if gate.timed:
        age = now - gate.counted.since
        if age < gate.start or (gate.end >= 0 and age >= gate.end):
            return False
    if gate.listed != NULL and not is_listed(gate, load_big(&gate.own.matched) + 1):
        return False
    return gate.probability < 0 or draw(numbers, number_to_draw(gate, substream), 0) < gate.probability


cdef inline void count_match(const GateTerms *gate, const Substream *substream, bint passed) noexcept nogil:
    """Count a match; passed: what `lets_through` said of it."""
    add_big(&gate.own.matched, 1)
    add_big(&gate.shared.matched, 1)
    if substream != NULL:
        add_recent(substream.counts, substream.limit, substream.digest, 1)
    if passed and not gate.open:
        add_big(&gate.counted.fired, 1)
