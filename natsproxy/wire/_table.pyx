# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The Python side of a table from byte strings to numbers: it is used like a dict (see `_table.pxd`)."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

from collections.abc import MutableMapping

from natsproxy.wire._table cimport Entry, table_clear, table_find, table_put, table_remove


cdef class ByteTable:
    """A mapping from bytes to int in the order of insertion."""

    def __dealloc__(self):
        table_clear(&self.table)

    cdef Entry *_find(self, key):
        if type(key) is not bytes:
            return NULL
        return table_find(&self.table, <const unsigned char *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))

    def __len__(self):
        return self.table.count

    def __contains__(self, key):
        return self._find(key) != NULL

    def __getitem__(self, key):
        cdef Entry *entry = self._find(key)
        if entry == NULL:
            raise KeyError(key)
        return entry.value

    def get(self, key, default=None):
        """Return the number of a key, or the default."""
        cdef Entry *entry = self._find(key)
        return default if entry == NULL else entry.value

    def __setitem__(self, bytes key not None, Py_ssize_t value):
        if not table_put(&self.table, <const unsigned char *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), value):
            raise MemoryError

    def __delitem__(self, key):
        cdef Entry *entry = self._find(key)
        if entry == NULL:
            raise KeyError(key)
        table_remove(&self.table, entry)

    def pop(self, key, *default):
        """Remove a key and return its number, or the default."""
        cdef Entry *entry = self._find(key)
        if entry != NULL:
            value = entry.value
            table_remove(&self.table, entry)
            return value
        if not default:
            raise KeyError(key)
        return default[0]

    def setdefault(self, key, value=0):
        """Return the number of a key; set it first where the key is not there."""
        if key not in self:
            self[key] = value
        return self[key]

    def update(self, items):
        """Set the numbers of all keys of a mapping."""
        for key, value in items.items():
            self[key] = value

    def clear(self):
        """Remove all keys."""
        table_clear(&self.table)

    def __iter__(self):
        cdef Py_ssize_t at = 0
        while at < self.table.used:  # asked anew each time: the caller may change the table
            if self.table.entries[at].key != NULL:
                yield PyBytes_FromStringAndSize(<const char *>self.table.entries[at].key, self.table.entries[at].length)
            at += 1

    def keys(self):
        """Return the keys, oldest first."""
        return list(self)

    def items(self):
        """Return keys and numbers, oldest first."""
        return [(key, self[key]) for key in self]

    def values(self):
        """Return the numbers, oldest first."""
        return [self[key] for key in self]

    def __eq__(self, other):
        return isinstance(other, (ByteTable, dict)) and dict(self.items()) == dict(other.items())

    __hash__ = None

    def __repr__(self):
        return f"ByteTable({dict(self.items())!r})"


MutableMapping.register(ByteTable)
