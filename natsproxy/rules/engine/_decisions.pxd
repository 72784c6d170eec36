# cython: language_level=3
"""Decisions that C reads without the interpreter lock (`_decisions.pyx`).

`Decision` and `Verdict` mirror those of Python (`rules/interface.py`, `rules/model/verdicts.py`) as far as C applies
them.
"""

from libc.stdint cimport int64_t, uint64_t

from natsproxy.wire._table cimport Table
from natsproxy.wire._walk cimport Message, Watch

cdef enum Verdict:
    PASS                        # the frame goes on as it is
    REWRITE                     # `head` takes the place of its first `cut` bytes
    DROP


cdef struct Text:
    const unsigned char *p
    Py_ssize_t size


cdef struct Decision:
    Verdict verdict
    int owner                   # the number of who is told that it was applied; -1: nobody
    Py_ssize_t cut
    Text head
    Text unless                 # a frame with these bytes in its headers is not decided here
    Text cause                  # for records


cdef struct Applied:
    # A decision that was applied to `count` frames; the other fields are those of the first.
    Py_ssize_t decision
    Py_ssize_t count
    uint64_t ordinal
    int64_t t


cdef class Decisions:
    cdef Table table            # from the beginning of a control line to the place of its decision
    cdef Decision *items
    cdef Py_ssize_t room
    cdef list facts             # by place: the owner's fact, and the texts, to keep them alive
    cdef Applied *applied
    cdef Py_ssize_t applied_count, applied_room
    cdef list owners
    cdef Py_ssize_t *latest     # by owner: the place in `applied` where its rewrites are counted, -1 for none
    cdef readonly Py_ssize_t decided
    cdef list told
    cdef tuple prefixes
    cdef Text *prefix
    cdef int prefix_count
    cdef bint minds_replies, keeps

    # The decision on a frame as far as its control line tells, NULL for none.
    cdef const Decision *find(self, const unsigned char *p, Py_ssize_t at, const Watch *watch, const Message *message) noexcept nogil
    # The decision on a whole frame, NULL for none.  It is counted as applied.
    cdef const Decision *decide(
        self, const unsigned char *p, Py_ssize_t at, const Watch *watch, const Message *message,
        uint64_t ordinal, int64_t now
    ) noexcept nogil

    cdef bint _may_change(self, const unsigned char *reply, Py_ssize_t size) noexcept nogil
    cdef bint _note(self, Py_ssize_t place, uint64_t ordinal, int64_t now) noexcept nogil
    cdef int _put(self, bytes key, Verdict verdict, owner, fact, bytes head, Py_ssize_t cut, bytes unless, str cause) except -1
    cdef int _owner(self, owner) except -2
    cdef int _make_room(self) except -1
    cdef int _gather(self) except -1
