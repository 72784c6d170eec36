# cython: language_level=3
"""A table from byte strings to numbers that C reads and changes without the interpreter lock.

The entries stand in the order in which they were added, as in a dict; a second array has their places by
hash.  Keys are the peers' choice: the hash is the interpreter's own, with its random seed.
"""

from libc.stdint cimport int32_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

cdef extern from *:
    """
    #if PY_VERSION_HEX >= 0x030E0000
    #define natsproxy_hash(data, length) Py_HashBuffer(data, length)
    #else
    #define natsproxy_hash(data, length) _Py_HashBytes(data, length)
    #endif
    """
    Py_ssize_t natsproxy_hash(const void *data, Py_ssize_t length) nogil

cdef enum:
    FREE = -1
    REMOVED = -2


cdef struct Entry:
    unsigned char *key      # NULL: the entry was removed
    Py_ssize_t length
    Py_ssize_t hash
    Py_ssize_t value


cdef struct Table:
    Entry *entries
    Py_ssize_t used         # entries, the removed ones included
    Py_ssize_t count        # entries that are there
    Py_ssize_t room
    Py_ssize_t oldest       # no entry before this one is there
    int32_t *places
    Py_ssize_t slots        # a power of two; 0: nothing was added yet


cdef inline void _place(Table *table, Py_ssize_t number) noexcept nogil:
    cdef Py_ssize_t mask = table.slots - 1, slot = table.entries[number].hash & mask
    while table.places[slot] != FREE:
        slot = (slot + 1) & mask
    table.places[slot] = <int32_t>number


cdef inline bint _make_room(Table *table) noexcept nogil:
    """Close the gaps of removed entries, and grow where that is not enough; False without memory."""
    cdef Py_ssize_t room = table.room if 2 * table.count < table.room else 2 * table.room, at, kept = 0
    cdef Entry *entries = table.entries
    cdef int32_t *places
    if room == 0:
        room = 8
    for at in range(table.used):
        if entries[at].key != NULL:
            entries[kept] = entries[at]
            kept += 1
    table.used = kept
    table.oldest = 0
    if room != table.room:
        entries = <Entry *>realloc(table.entries, room * sizeof(Entry))
        if entries == NULL:
            return False  # the places still lead to the old numbers: the caller must not go on
        table.entries = entries
        table.room = room
        places = <int32_t *>realloc(table.places, 2 * room * sizeof(int32_t))
        if places == NULL:
            return False
        table.places = places
        table.slots = 2 * room
    memset(table.places, 0xFF, table.slots * sizeof(int32_t))
    for at in range(kept):
        _place(table, at)
    return True


cdef inline Entry *table_find(const Table *table, const unsigned char *key, Py_ssize_t length) noexcept nogil:
    """Return the entry of a key, NULL where there is none."""
    cdef Py_ssize_t mask, slot, hashed
    cdef int32_t number
    cdef Entry *entry
    if table.count == 0:
        return NULL
    hashed = natsproxy_hash(key, length)
    mask = table.slots - 1
    slot = hashed & mask
    while True:
        number = table.places[slot]
        if number == FREE:
            return NULL
        if number >= 0:
            entry = &table.entries[number]
            if entry.hash == hashed and entry.length == length and memcmp(entry.key, key, length) == 0:
                return entry
        slot = (slot + 1) & mask


cdef inline bint table_put(Table *table, const unsigned char *key, Py_ssize_t length, Py_ssize_t value) noexcept nogil:
    """Set the number of a key; False without memory, and then nothing changed."""
    cdef Entry *entry = table_find(table, key, length)
    cdef unsigned char *copy
    if entry != NULL:
        entry.value = value
        return True
    if table.used == table.room and not _make_room(table):
        table_clear(table)  # its places are not to be trusted any more
        return False
    copy = <unsigned char *>malloc(length + 1)
    if copy == NULL:
        return False
    memcpy(copy, key, length)
    entry = &table.entries[table.used]
    entry.key, entry.length, entry.hash, entry.value = copy, length, natsproxy_hash(key, length), value
    _place(table, table.used)
    table.used += 1
    table.count += 1
    return True


cdef inline void table_remove(Table *table, Entry *entry) noexcept nogil:
    """Remove an entry."""
    cdef Py_ssize_t mask = table.slots - 1, slot = entry.hash & mask, number = entry - table.entries
    while table.places[slot] != number:
        slot = (slot + 1) & mask
    table.places[slot] = REMOVED
    free(entry.key)
    entry.key = NULL
    table.count -= 1
    if table.count == 0:  # so that a table which fills and empties needs no look at the removed
        memset(table.places, 0xFF, table.slots * sizeof(int32_t))
        table.used = table.oldest = 0


cdef inline Entry *table_oldest(Table *table) noexcept nogil:
    """Return the entry that was added first, NULL where there is none."""
    if table.count == 0:
        return NULL
    while table.entries[table.oldest].key == NULL:
        table.oldest += 1
    return &table.entries[table.oldest]


cdef inline void table_clear(Table *table) noexcept nogil:
    """Remove all entries and give the memory back."""
    cdef Py_ssize_t at
    for at in range(table.used):
        free(table.entries[at].key)
    free(table.entries)
    free(table.places)
    memset(table, 0, sizeof(Table))


cdef class ByteTable:
    cdef Table table
    cdef Entry *_find(self, key)
