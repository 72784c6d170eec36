# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The static decisions that the native plane applies, without the interpreter lock.

Theory
1. A key is the beginning of a control line as it is usually written: op, subject, and for a delivery the sid.
   A frame whose line begins otherwise (two blanks, small letters) is not found, nor is one whose key has not
   been decided yet: those go to `static_decisions.py`.
2. Only a decision that holds for each frame of its key stands here.  Two conditions are asked for each frame:
   bytes that must not be in its headers, and a reply subject that rewriting may change.
3. An owner (a batch) is told later which of its decisions were applied (`add`), in the order of the frames: each
   drop by itself, rewrites as one with their number.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp

from natsproxy.wire._table cimport Entry, table_clear, table_find, table_put
from natsproxy.wire._walk cimport is_watched

cdef enum:
    APPLIED_MOST = 1 << 16      # that nobody was told of; with more, Python decides

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


cdef inline Text text_of(bytes data):
    cdef Text text
    text.p, text.size = <const unsigned char *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data)
    return text


cdef class Decisions:
    """The decisions on one direction of one connection.

    prefixes: those of reply subjects that rewriting leaves alone (keeps), or else may change; None: it minds no
    replies.  decided: the frames since the last `tell`.
    """

    def __cinit__(self, prefixes=None, bint keeps=False):
        self.facts, self.owners, self.told = [], [], []
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
        free(self.applied)
        free(self.latest)
        free(self.prefix)

    def __len__(self):
        return self.table.count

    # -- for Python

    def put_pass(self, bytes key not None, bytes unless not None):
        """Let frames of a key pass."""
        self._put(key, PASS, None, None, b"", 0, unless, "")

    def put_drop(self, bytes key not None, owner, fact, str cause not None):
        """Drop frames of a key; the owner is told `fact`."""
        self._put(key, DROP, owner, fact, b"", 0, b"", cause)

    def put_rewrite(
        self, bytes key not None, owner, fact, bytes head not None, Py_ssize_t cut, bytes unless not None, str cause not None
    ):
        """Put `head` in the place of the first `cut` bytes of a key's frames."""
        self._put(key, REWRITE, owner, fact, head, cut, unless, cause)

    cdef int _put(self, bytes key, Verdict verdict, owner, fact, bytes head, Py_ssize_t cut, bytes unless, str cause) except -1:
        cdef Py_ssize_t place = len(self.facts)
        cdef bytes label = cause.encode()
        cdef Decision *item
        if place == self.room:
            self._make_room()
        item = &self.items[place]
        item.verdict = verdict
        item.owner = self._owner(owner)
        item.cut = cut
        item.head, item.unless, item.cause = text_of(head), text_of(unless), text_of(label)
        if not table_put(&self.table, <const unsigned char *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), place):
            raise MemoryError
        self.facts.append((fact, head, unless, label))
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

    cdef int _make_room(self) except -1:
        cdef Py_ssize_t room = 2 * self.room or 8
        cdef Decision *grown = <Decision *>realloc(self.items, room * sizeof(Decision))
        if grown == NULL:
            raise MemoryError
        self.items, self.room = grown, room
        return 0

    def clear(self):
        """Forget all decisions; what was applied is still told."""
        self._gather()
        table_clear(&self.table)
        free(self.items)
        free(self.latest)
        self.items, self.latest, self.room = NULL, NULL, 0
        self.facts.clear()
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
        """Gather for the owners what was applied: time, ordinal, count and fact."""
        cdef Py_ssize_t i
        cdef const Applied *each
        cdef int owner
        cdef list rows = [[] for _ in self.owners]
        for i in range(self.applied_count):
            each = &self.applied[i]
            owner = self.items[each.decision].owner
            (<list>rows[owner]).append((each.t, each.ordinal, each.count, (<tuple>self.facts[each.decision])[0]))
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
        if is_watched(p, watch, message):
            return NULL
        entry = table_find(&self.table, &p[at], message.line.stop[1 if watch.s2c else 0] - at)
        return NULL if entry == NULL else &self.items[entry.value]

    cdef const Decision *decide(
        self, const unsigned char *p, Py_ssize_t at, const Watch *watch, const Message *message,
        uint64_t ordinal, int64_t now
    ) noexcept nogil:
        cdef const Decision *found = self.find(p, at, watch, message)
        cdef int reply = message.first_size - 1
        if found == NULL:
            return NULL
        if found.unless.size and message.head and holds(&p[message.line.end], message.head, found.unless.p, found.unless.size):
            return NULL
        if self.minds_replies and message.has_reply and self._may_change(
            &p[message.line.start[reply]], message.line.stop[reply] - message.line.start[reply]
        ):
            return NULL
        if found.owner >= 0 and not self._note(found - self.items, ordinal, now):
            return NULL
        self.decided += 1
        return found

    cdef bint _may_change(self, const unsigned char *reply, Py_ssize_t size) noexcept nogil:
        cdef int i
        for i in range(self.prefix_count):
            if self.prefix[i].size <= size and memcmp(reply, self.prefix[i].p, self.prefix[i].size) == 0:
                return not self.keeps
        return self.keeps

    cdef bint _note(self, Py_ssize_t place, uint64_t ordinal, int64_t now) noexcept nogil:
        """Note that a decision was applied; False if there is no room."""
        cdef const Decision *decision = &self.items[place]
        cdef Py_ssize_t room
        cdef Applied *grown
        cdef Applied *new
        if decision.verdict == REWRITE and self.latest[decision.owner] >= 0:
            self.applied[self.latest[decision.owner]].count += 1
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
        new.decision, new.count, new.ordinal, new.t = place, 1, ordinal, now
        self.latest[decision.owner] = self.applied_count
        self.applied_count += 1
        return True
