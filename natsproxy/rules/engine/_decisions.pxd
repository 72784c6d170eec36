# cython: language_level=3
"""Decisions that C reads without the interpreter lock (`_decisions.pyx`).

`Effect` and `Verdict` mirror the decisions and verdicts of Python (`rules/interface.py`, `rules/model/verdicts.py`) as
far as C applies them.
"""

from libc.stdint cimport int64_t, uint64_t

from natsproxy.rules.model._blake2 cimport Prefix
from natsproxy.rules.model._bucket cimport Tokens
from natsproxy.rules.model._gates cimport GateTerms, Substream
from natsproxy.wire._table cimport Table
from natsproxy.wire._walk cimport Message, Watch

cdef enum Verdict:
    PASS                        # the frame goes on as it is, though a rule may report it
    REWRITE                     # `head` takes the place of its first `cut` bytes
    DROP
    DUPLICATE                   # it goes on, with `copies` behind it
    DAMAGE                      # up to `damage` bytes of its body change (`Decisions.damage`)
    HOLD                        # it goes on `delay` later
    ASK                         # what Python says of it: its own new bytes, a delay, or nothing


cdef struct Text:
    const unsigned char *p
    Py_ssize_t size


cdef struct Effect:
    # What is done with a frame.
    Verdict verdict
    int owner                   # the number of who is told of it; -1: nobody
    Py_ssize_t cut
    Text head
    int op                      # of what goes on; -1: as it came
    int copies
    int damage
    int64_t delay               # ns
    const Prefix *numbers       # those that choose the bytes
    Text cause                  # for records


cdef struct Test:
    # The conditions of a selector that depend on the frame.
    Py_ssize_t min_size         # of the payload
    Py_ssize_t max_size         # -1: no such condition
    Text header                 # a frame without these bytes in its headers is not selected; no bytes: any frame
    bint status                 # nor is one whose header block has no status
    bint python                 # whether a frame that meets these is selected, Python decides


cdef struct Step:
    # The part of one rule.
    Test test
    const GateTerms *gate
    const Prefix *numbers       # those that its gate draws from, or NULL
    Substream substream         # counts: NULL where the frames are of none
    bint python                 # where it acts, Python decides
    bint keeps                  # it changes no byte, whatever Python says where it is asked
    Effect effect               # where it acts, unless Python decides
    Tokens tokens               # of a limit: where they are not there, Python decides


cdef struct Decision:
    # The decision on the frames of one key.
    Py_ssize_t first            # of its steps
    int steps
    Text unless                 # a frame with these bytes in its headers is not decided here


cdef struct Applied:
    # An effect that was applied to `count` frames; the other fields are those of the first.
    Py_ssize_t step
    Py_ssize_t count
    uint64_t ordinal
    uint64_t m
    int64_t t


cdef class Decisions:
    cdef Table table            # from the beginning of a control line to the place of its decision
    cdef Decision *items
    cdef Py_ssize_t count, room
    cdef Step *steps
    cdef Py_ssize_t step_count, step_room
    cdef list facts             # by step: the owner's fact, and what it points to, to keep that alive
    cdef list kept              # what the decisions point to
    cdef Applied *applied
    cdef Py_ssize_t applied_count, applied_room
    cdef list owners
    cdef Py_ssize_t *latest     # by owner: the place in `applied` where its rewrites are counted, -1 for none
    cdef readonly Py_ssize_t decided
    cdef readonly bint per_proxy    # a gate looks at the counts of all connections
    cdef readonly bint holds        # a rule holds frames
    cdef bint known             # the last frame was of a key with a decision
    cdef Effect answer          # what Python said of the last frame, and the bytes that it points to
    cdef bytes answered
    cdef uint64_t drawn         # the number of the match by which its action draws
    cdef list told
    cdef tuple prefixes
    cdef Text *prefix
    cdef int prefix_count
    cdef bint minds_replies, keeps

    # The decision on a frame as far as its control line tells, NULL for none.
    cdef const Decision *find(self, const unsigned char *p, Py_ssize_t at, const Watch *watch, const Message *message) noexcept nogil
    # What is done with a whole frame, NULL if Python decides.  The frame is counted.  behind: others wait before it.
    # asks: how often an action may still be asked, which takes the interpreter lock.
    cdef const Effect *decide(
        self, const unsigned char *p, Py_ssize_t at, const Watch *watch, const Message *message,
        uint64_t ordinal, int64_t now, bint behind, int *asks
    ) noexcept nogil

    # Change some bytes of the body of the last frame.
    cdef void damage(self, const Effect *effect, unsigned char *body, Py_ssize_t size) noexcept nogil

    cdef bint _take(self, const Decision *found, uint64_t limits, Py_ssize_t size, int64_t now) noexcept nogil
    cdef void _give_back(self, const Decision *found, uint64_t limits, Py_ssize_t size) noexcept nogil
    cdef bint _may_change(self, const unsigned char *reply, Py_ssize_t size) noexcept nogil
    cdef const Effect *_ask(
        self, const Step *step, const unsigned char *p, Py_ssize_t at, const Message *message, uint64_t ordinal, int64_t now
    ) noexcept nogil
    cdef const Effect *_answer_of(
        self, const Step *step, const unsigned char *p, Py_ssize_t at, const Message *message, uint64_t ordinal, int64_t now
    ) except? NULL
    cdef bint _note(self, const Step *step, uint64_t ordinal, int64_t now) noexcept nogil
    cdef int _put_step(self, step) except -1
    cdef int _owner(self, owner) except -2
    cdef int _gather(self) except -1
