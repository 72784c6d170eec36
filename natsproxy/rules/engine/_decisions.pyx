# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The static decisions that the native plane applies, without the interpreter lock.

Theory
1. A key is the beginning of a control line as it is usually written: op, subject, and for a delivery the sid.
   A frame whose line begins otherwise (two blanks, small letters) is not found, nor is one whose key has not
   been decided yet: those go to `static_decisions.py`.
2. A decision has a step for each rule that selects the frames of its key; none: they pass.  All gates are asked
   first, and then the frame is counted by all of them: nothing is counted of a frame that goes to Python, which asks
   the same gates and gets the same answers.  The rule that acts says what is done; where C does not know that, or
   another one acts as well on a frame that goes on, Python decides.
3. A selector that looks at the frame is asked for each.  C rules out most frames: a header is not there where its
   name is nowhere in the block.  Where it cannot, Python decides.
4. A limit has tokens that the frame takes, unless a rule before it drops the frame.  Where they are not there, those
   of other limits are given back, and Python decides: it takes from the same buckets.
5. Two conditions are asked for each frame: bytes that must not be in its headers, and a reply subject that rewriting
   may change.
6. An action that changes one frame or holds it (`Action.on_frame`) is asked where it acts, about that frame alone: the
   session has no part in it.  It is asked before the frame is counted: where that fails, the session asks it again.
7. An owner (a batch) is told later which of its steps acted (`add`), in the order of the frames: rewrites, and frames
   that a rule without a gate holds, as one with their number, all else frame by frame.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, int64_t, uint64_t
from libc.stdlib cimport free, malloc, qsort, realloc
from libc.string cimport memcmp, memcpy

from natsproxy._lock cimport load_big
from natsproxy.rules.model._bucket cimport Bucket, Tokens, cost_of, give_back, take_tokens
from natsproxy.rules.model._gates cimport (
    NativeDice, NativeGate, RecentCounts, Substream, count_match, draw, lets_through, number_to_draw,
)
from natsproxy.wire._line cimport Line
from natsproxy.wire._table cimport Entry, table_clear, table_find, table_put
from natsproxy.wire._walk cimport is_too_large, is_watched

from natsproxy.rules.model.token_buckets import LONGEST

cdef enum:
    APPLIED_MOST = 1 << 16      # that nobody was told of; with more, Python decides
    STEPS_MOST = 64             # of one decision: a bit for each
    DAMAGE_MOST = 1000          # bytes, as in `kinds/corrupt.py`; a test compares the two
    LONG = 16384                # bytes of headers on which Python decides in steps, as in `session.py`; a test compares the two
    ACTION = 1                  # the first number of a match that is its action's, as in `seeded_random.py`

cdef extern from *:
    """
    #include <string.h>
    static int natsproxy_holds(const unsigned char *p, Py_ssize_t size, const unsigned char *part, Py_ssize_t length) {
        const unsigned char *end = p + size - length;
        for (; p <= end && (p = memchr(p, part[0], end - p + 1)) != NULL; p++)
            if (memcmp(p, part, length) == 0) return 1;
        return 0;
    }
    """
    bint holds "natsproxy_holds"(const unsigned char *p, Py_ssize_t size, const unsigned char *part, Py_ssize_t length) nogil


cdef Effect PASSES
PASSES.verdict, PASSES.owner, PASSES.op = PASS, -1, -1


cdef inline Text text_of(bytes data):
    cdef Text text
    text.p, text.size = <const unsigned char *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data)
    return text


cdef inline const Substream *substream_of(const Step *step) noexcept nogil:
    return NULL if step.substream.counts == NULL else <const Substream *>&step.substream


cdef inline bint may_select(const Test *test, const unsigned char *p, const Message *message) noexcept nogil:
    """False for a frame that a selector does not select; True for one that it selects, or may."""
    cdef const unsigned char *head = &p[message.line.end]
    if message.size < test.min_size or (test.max_size >= 0 and message.size > test.max_size):
        return False
    if test.header.size and not (message.head and holds(head, message.head, test.header.p, test.header.size)):
        return False
    return not test.status or (
        message.head and (message.head < 10 or memcmp(head, b"NATS/1.0\r\n", 10) != 0)
    )


cdef inline bint is_told_as_one(const Step *step) noexcept nogil:
    """True if the owner is told of many frames as of one with their number."""
    return step.effect.verdict == REWRITE or (step.effect.verdict == HOLD and step.gate.open)


cdef int compare(const void *a, const void *b) noexcept nogil:
    cdef Py_ssize_t first = (<const Py_ssize_t *>a)[0], second = (<const Py_ssize_t *>b)[0]
    return (first > second) - (first < second)


cdef int set_tokens(Tokens *made, tokens) except -1:
    """Set what a step takes; tokens: `Tokens` of `token_buckets.py`, or None."""
    cdef Bucket bucket
    if tokens is None:
        made.level = NULL
        return 0
    bucket, rate, made.sized = tokens
    made.amount, made.period, made.burst = rate
    made.one, made.full, made.longest = rate.time(1), rate.time(rate.burst), LONGEST
    made.most = INT64_MAX // made.period
    made.level = &bucket.level
    return 0


cdef class Decisions:
    """The decisions on one direction of one connection.

    prefixes: those of reply subjects that rewriting leaves alone (keeps), or else may change; None: it minds no
    replies.  decided: the frames since the last `tell`.
    """

    def __cinit__(self, prefixes=None, bint keeps=False):
        self.facts, self.kept, self.owners, self.told = [], [], [], []
        self.minds_replies, self.keeps = prefixes is not None, keeps
        self.prefixes = prefixes or ()
        self.prefix_count = len(self.prefixes)
        self.prefix = <Text *>malloc(max(1, len(self.prefixes)) * sizeof(Text))
        if self.prefix == NULL:
            raise MemoryError
        for place, each in enumerate(self.prefixes):
            self.prefix[<Py_ssize_t>place] = text_of(each)

    def __dealloc__(self):
        table_clear(&self.table)
        free(self.items)
        free(self.steps)
        free(self.applied)
        free(self.latest)
        free(self.prefix)

    def __len__(self):
        return self.table.count

    # -- for Python

    def put(self, bytes key not None, bytes unless not None, steps):
        """Decide on the frames of a key by these steps (`NativeStep` of `native_steps.py`); none: they pass."""
        cdef Py_ssize_t place = self.count, first = self.step_count
        cdef Decision *grown
        if len(steps) > STEPS_MOST:
            return
        if place == self.room:
            grown = <Decision *>realloc(self.items, (2 * self.room or 8) * sizeof(Decision))
            if grown == NULL:
                raise MemoryError
            self.items, self.room = grown, 2 * self.room or 8
        for step in steps:
            self._put_step(step)
        self.items[place].first, self.items[place].steps = first, len(steps)
        self.items[place].unless = text_of(unless)
        self.kept.append(unless)
        if not table_put(&self.table, <const unsigned char *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), place):
            raise MemoryError
        self.count += 1

    cdef int _put_step(self, step) except -1:
        cdef NativeGate gate = step.gate
        cdef NativeDice dice = step.dice
        cdef RecentCounts counts
        cdef bytes digest, header = step.header, head = step.head or b"", cause = step.cause.encode()
        cdef Py_ssize_t room = 2 * self.step_room or 8
        cdef Step *made
        if self.step_count == self.step_room:
            made = <Step *>realloc(self.steps, room * sizeof(Step))
            if made == NULL:
                raise MemoryError
            self.steps, self.step_room = made, room
        made = &self.steps[self.step_count]
        made.test.min_size = step.min_size
        made.test.max_size = -1 if step.max_size is None else step.max_size
        made.test.header = text_of(header)
        made.test.status, made.test.python = step.status, step.unsure
        made.gate = &gate.terms
        made.numbers = NULL if dice is None else &dice.prefix
        made.substream.counts = NULL
        if step.substream is not None:
            counts, digest = step.substream
            made.substream.counts, made.substream.limit = &counts.table, counts.limit
            if PyBytes_GET_SIZE(digest) != sizeof(made.substream.digest):
                raise ValueError("not the digest of a substream")
            memcpy(made.substream.digest, PyBytes_AS_STRING(digest), sizeof(made.substream.digest))
        made.python = step.owner is None or step.damage > DAMAGE_MOST
        made.effect.verdict = (
            ASK if step.asks else PASS if step.passes else REWRITE if step.head is not None else DUPLICATE if step.copies else DAMAGE if step.damage
            else HOLD if step.delay else DROP
        )
        made.effect.delay, made.effect.op = step.delay, -1
        made.keeps = step.holds or made.effect.verdict == HOLD or made.effect.verdict == PASS
        made.effect.copies, made.effect.damage, made.effect.numbers = step.copies, step.damage, made.numbers
        made.effect.owner = self._owner(step.owner)
        made.effect.cut = step.cut
        made.effect.head, made.effect.cause = text_of(head), text_of(cause)
        set_tokens(&made.tokens, step.tokens)
        self.facts.append(step.fact)
        self.kept.append((gate, dice, step.substream, header, head, cause, step.tokens))
        self.per_proxy |= gate.per_proxy
        self.holds |= step.holds or made.effect.verdict == HOLD
        self.step_count += 1
        return 0

    cdef int _owner(self, owner) except -2:
        """Return the number of an owner."""
        cdef Py_ssize_t *grown
        cdef int count = len(self.owners), number
        if owner is None:
            return -1
        for number in range(count):
            if self.owners[number] is owner:
                return number
        grown = <Py_ssize_t *>realloc(self.latest, (count + 1) * sizeof(Py_ssize_t))
        if grown == NULL:
            raise MemoryError
        self.latest = grown
        self.latest[count] = -1
        self.owners.append(owner)
        return count

    def clear(self):
        """Forget all decisions; what was applied is still told."""
        self._gather()
        table_clear(&self.table)
        free(self.items)
        free(self.steps)
        free(self.latest)
        self.items, self.steps, self.latest = NULL, NULL, NULL
        self.count = self.room = self.step_count = self.step_room = 0
        self.per_proxy = self.holds = False
        self.facts.clear()
        self.kept.clear()
        self.owners.clear()

    def tell(self):
        """Tell the owners what was applied since the last call; return the number of frames."""
        cdef list told = self.told
        decided, self.decided = self.decided, 0
        if not self.applied_count and not told:
            return decided
        self._gather()
        self.told = []
        for owner, rows in told:
            owner.add(rows)
        return decided

    cdef int _gather(self) except -1:
        """Gather for the owners what was applied: time, ordinal, count, number of the match and fact."""
        cdef Py_ssize_t i
        cdef const Applied *each
        cdef int owner
        cdef list rows = [[] for _ in self.owners]
        for i in range(self.applied_count):
            each = &self.applied[i]
            owner = self.steps[each.step].effect.owner
            (<list>rows[owner]).append((each.t, each.ordinal, each.count, each.m, self.facts[each.step]))
        self.told += [(self.owners[i], rows[i]) for i in range(len(rows)) if rows[i]]
        for i in range(len(self.owners)):
            self.latest[i] = -1
        free(self.applied)
        self.applied = NULL
        self.applied_count = self.applied_room = 0
        return 0

    # -- for the plane

    cdef const Decision *find(self, const unsigned char *p, Py_ssize_t at, const Watch *watch, const Message *message) noexcept nogil:
        cdef Entry *entry
        if is_watched(p, watch, message) or is_too_large(watch, message):
            return NULL
        entry = table_find(&self.table, &p[at], message.line.stop[1 if watch.s2c else 0] - at)
        return NULL if entry == NULL else &self.items[entry.value]

    cdef const Effect *decide(
        self, const unsigned char *p, Py_ssize_t at, const Watch *watch, const Message *message,
        uint64_t ordinal, int64_t now, bint behind, int *asks
    ) noexcept nogil:
        cdef const Decision *found = self.find(p, at, watch, message)
        cdef int reply = message.first_size - 1, i
        cdef const Step *step
        cdef const Step *acts = NULL
        cdef const Effect *effect = &PASSES
        cdef uint64_t selected = 0, passed = 0  # the steps that select the frame, and whose gates let it through
        cdef uint64_t limits = 0  # those whose tokens it takes
        self.known = found != NULL
        if found == NULL:
            return NULL
        if found.unless.size and message.head and holds(&p[message.line.end], message.head, found.unless.p, found.unless.size):
            return NULL
        if self.minds_replies and message.has_reply and self._may_change(
            &p[message.line.start[reply]], message.line.stop[reply] - message.line.start[reply]
        ):
            return NULL
        for i in range(found.steps):
            step = &self.steps[found.first + i]
            if not may_select(&step.test, p, message):
                continue
            if step.test.python:
                return NULL
            if step.tokens.level != NULL:
                limits |= <uint64_t>1 << i
                continue
            selected |= <uint64_t>1 << i
            if lets_through(step.gate, step.numbers, substream_of(step), now):
                passed |= <uint64_t>1 << i
                if step.effect.verdict == DAMAGE and not step.python and message.size == message.head:
                    continue  # there is no body
                if acts == NULL:
                    if step.python or (step.effect.verdict == ASK and (asks[0] == 0 or message.head > LONG)):
                        return NULL
                    acts = step
                elif acts.effect.verdict != DROP:
                    return NULL
        if behind and acts != NULL and acts.effect.verdict != DROP and not acts.keeps:
            return NULL
        if acts != NULL and acts.effect.verdict == DROP:
            limits = 0  # a limit counts what would pass
        if not self._take(found, limits, message.end - at, now):
            return NULL
        if acts != NULL:
            self.drawn = number_to_draw(acts.gate, substream_of(acts))
            if acts.effect.verdict == ASK:
                asks[0] -= 1
                effect = self._ask(acts, p, at, message, ordinal, now)
            else:
                effect = &acts.effect if self._note(acts, ordinal, now) else NULL
            if effect == NULL:
                self._give_back(found, limits, message.end - at)
                return NULL
        for i in range(found.steps):
            step = &self.steps[found.first + i]
            if selected >> i & 1:
                count_match(step.gate, substream_of(step), passed >> i & 1)
        self.decided += 1
        return effect

    cdef bint _take(self, const Decision *found, uint64_t limits, Py_ssize_t size, int64_t now) noexcept nogil:
        """Take the tokens of a frame from the buckets of these steps; False, and none, if one lacks them."""
        cdef int i
        for i in range(found.steps):
            if limits >> i & 1 and not take_tokens(&self.steps[found.first + i].tokens, size, now):
                self._give_back(found, limits & ((<uint64_t>1 << i) - 1), size)
                return False
        return True

    cdef void _give_back(self, const Decision *found, uint64_t limits, Py_ssize_t size) noexcept nogil:
        cdef int i
        for i in range(found.steps):
            if limits >> i & 1:
                give_back(self.steps[found.first + i].tokens.level, cost_of(&self.steps[found.first + i].tokens, size))

    cdef void damage(self, const Effect *effect, unsigned char *body, Py_ssize_t size) noexcept nogil:
        cdef Py_ssize_t[DAMAGE_MOST] places
        cdef int i, k = 0
        for i in range(effect.damage):
            places[i] = <Py_ssize_t>(draw(effect.numbers, self.drawn, ACTION + 2 * i) * size)
        qsort(places, effect.damage, sizeof(Py_ssize_t), compare)
        for i in range(effect.damage):
            if i and places[i] == places[i - 1]:
                continue
            # Never 0, so that each of these bytes changes.
            body[places[i]] ^= 1 + <unsigned char>(draw(effect.numbers, self.drawn, ACTION + 2 * k + 1) * 255)
            k += 1

    cdef bint _may_change(self, const unsigned char *reply, Py_ssize_t size) noexcept nogil:
        cdef int i
        for i in range(self.prefix_count):
            if self.prefix[i].size <= size and memcmp(reply, self.prefix[i].p, self.prefix[i].size) == 0:
                return not self.keeps
        return self.keeps

    cdef const Effect *_ask(
        self, const Step *step, const unsigned char *p, Py_ssize_t at, const Message *message, uint64_t ordinal, int64_t now
    ) noexcept nogil:
        """Have Python say what is done with a frame; NULL: the session asks again, and does it."""
        cdef const Effect *effect = NULL
        with gil:
            try:
                effect = self._answer_of(step, p, at, message, ordinal, now)
            except Exception:
                effect = NULL  # SessionDecides; or a bug, which the session meets again, and reports
        return effect

    cdef const Effect *_answer_of(
        self, const Step *step, const unsigned char *p, Py_ssize_t at, const Message *message, uint64_t ordinal, int64_t now
    ) except? NULL:
        cdef const Line *line = &message.line
        cdef int reply = message.first_size - 1
        cdef Effect *answer = &self.answer
        found = self.owners[step.effect.owner].act(
            self.facts[step - self.steps],
            PyBytes_FromStringAndSize(<const char *>&p[at], message.end - at),
            PyBytes_FromStringAndSize(<const char *>&p[line.start[reply]], line.stop[reply] - line.start[reply])
            if message.has_reply else b"",
            line.end - at, message.head, message.size, ordinal, load_big(&step.gate.own.matched) + 1, self.drawn, now,
        )
        if found is None:
            return &PASSES
        answer[0] = step.effect
        if isinstance(found, int):
            answer.verdict, answer.delay = HOLD, found
        else:
            self.answered, answer.op = found
            answer.verdict, answer.cut, answer.head = REWRITE, message.end - at, text_of(self.answered)
        return answer

    cdef bint _note(self, const Step *step, uint64_t ordinal, int64_t now) noexcept nogil:
        """Note that a step acts on the next match; False if there is no room."""
        cdef int owner = step.effect.owner
        cdef Py_ssize_t room
        cdef Applied *grown
        cdef Applied *new
        if is_told_as_one(step) and self.latest[owner] >= 0:
            self.applied[self.latest[owner]].count += 1
            return True
        if self.applied_count == self.applied_room:
            room = 2 * self.applied_room if self.applied_room else 4
            if room > APPLIED_MOST:
                return False
            grown = <Applied *>realloc(self.applied, room * sizeof(Applied))
            if grown == NULL:
                return False
            self.applied, self.applied_room = grown, room
        new = &self.applied[self.applied_count]
        new.step, new.count, new.ordinal, new.t = step - self.steps, 1, ordinal, now
        new.m = load_big(&step.gate.own.matched) + 1
        self.latest[owner] = self.applied_count
        self.applied_count += 1
        return True
