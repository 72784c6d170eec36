# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The user's selection in C: it writes the selected frames of a run straight into a block.

`recording_filter.py` is the authority.  This code decides on ordinary frames, by tries and without the
interpreter lock; a line that needs more (a CONNECT, a SUB that may overlap with a selected subject) goes through
the Python filter on its own.  Everything does if the selection has a part that this code does not know: a filter
of secrets, a policy that is not in `ACTIONS`.  Neighbouring frames that stay whole share a record.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memchr, memcmp, memcpy, memset

from natsproxy.capture.filter._sha256 cimport sha256_available, sha256_digest
from natsproxy.capture.format._frames cimport BODY, HEADERS, SUBJECT, Row, read_frame
from natsproxy.capture.write._block cimport BlockBuilder, Run, RunFilter
from natsproxy.wire._interest cimport Patterns, Trie, has_empty_token, trie_matches
from natsproxy.wire._line cimport HMSG, HPUB, MSG, PUB, SUB, message_op
from natsproxy.wire._table cimport ByteTable, table_find

import hashlib

import msgpack

from natsproxy.capture.format.records import Flags, Frames
from natsproxy.errors import ProtocolError
from natsproxy.wire.ops import Direction, Op, op_mask
from natsproxy.wire.parse import frames as frames_in

cdef enum:
    DIGEST = 32
    EXTRA = 64                  # bytes of the longest `extra`

cdef uint32_t GREETING = op_mask(Op.INFO, Op.CONNECT)
cdef uint32_t MESSAGES = 1 << PUB | 1 << HPUB | 1 << MSG | 1 << HMSG
cdef int PAYLOAD = Flags.PAYLOAD
cdef object sha256 = hashlib.sha256
ACTIONS = frozenset(("keep", "hash", "truncate", "drop"))
"""The policies implemented here; `recording_filter.py` applies any other."""
cdef bint NATIVE_SHA = sha256_available()


cdef struct Policy:
    const Trie *match
    bint keep_all, truncate, hashed
    Py_ssize_t keep             # bytes of a body that are kept
    unsigned char[EXTRA] extra  # as msgpack; a digest is its end
    Py_ssize_t extra_size


cdef struct Progress:
    # The position in a run: the frames from `start` to `at` are kept, and not written yet.
    Py_ssize_t start, at        # bytes
    Py_ssize_t first, done      # the same places in frames
    uint32_t ops                # of those frames
    # The last frame that was decided on.  The next one often has the same control line and gets the same decision.
    Py_ssize_t before           # where it begins
    Py_ssize_t line             # bytes of its control line; 0: not a message
    Py_ssize_t whole            # bytes of it
    Py_ssize_t body, body_size  # relative to `before`
    int op
    bint left_out
    const Policy *policy        # that cuts its payload, or NULL


cdef class SelectionFilter(RunFilter):
    """The twin of a `RecordingFilter` for runs; `owner` is that filter."""

    cdef object owner
    cdef Patterns subjects      # None: all are selected
    cdef Patterns cut           # of the policies that cut payloads; None: no policy does
    cdef list tries
    cdef Policy *policies
    cdef int policy_count
    cdef ByteTable unwanted     # connections
    cdef readonly bint in_python    # the Python filter looks at all frames

    def __init__(self, owner, selection):
        cut = [policy.pattern for policy in selection.payloads if policy.action != "keep"]
        self.owner = owner
        self.subjects = Patterns(selection.subjects) if selection.subjects else None
        self.cut = Patterns(cut) if cut else None
        self.tries = []
        self.unwanted = ByteTable()
        self.in_python = bool(selection.filters) or any(policy.action not in ACTIONS for policy in selection.payloads)
        self.policies = <Policy *>calloc(len(selection.payloads) or 1, sizeof(Policy))
        if self.policies == NULL:
            raise MemoryError
        for policy in () if self.in_python else selection.payloads:
            self._add_policy(policy)

    def __dealloc__(self):
        free(self.policies)

    cdef int _add_policy(self, policy) except -1:
        cdef Policy *made = &self.policies[self.policy_count]
        cdef Patterns trie = Patterns([policy.pattern])
        cdef bytes extra
        self.tries.append(trie)
        made.match = &trie.trie
        made.keep_all = policy.action == "keep"
        made.hashed = policy.action == "hash"
        made.truncate = policy.action == "truncate"
        made.keep = min(policy.keep, 1 << 30)
        extra = msgpack.packb({"policy": policy.action, **({"sha256": bytes(DIGEST)} if made.hashed else {})})
        made.extra_size = len(extra)
        assert made.extra_size <= EXTRA
        memcpy(made.extra, <const unsigned char *>extra, made.extra_size)
        self.policy_count += 1
        return 0

    def leave_out(self, conn):
        """Record no more frames of a connection."""
        self.unwanted[(<uint64_t>conn).to_bytes(8, "little")] = 0

    def take_in(self, conn):
        """Record the frames of a connection."""
        self.unwanted.pop((<uint64_t>conn).to_bytes(8, "little"), None)

    cdef bint put(self, BlockBuilder to, const Run *run) noexcept nogil:
        if self.in_python or run.ops & GREETING:
            return self._by_python(to, run, 0, 0, run.size, run.frames, run.ops)
        if self.unwanted.table.count and table_find(&self.unwanted.table, <const unsigned char *>&run.conn, 8) != NULL:
            return True
        if self.subjects is None and self.cut is None:
            return to.append(run, 0, NULL, 0)
        return self._cut(to, run)

    cdef bint _cut(self, BlockBuilder to, const Run *run) noexcept nogil:
        """Add the selected frames of a run, each with the part that its policy keeps."""
        cdef Progress progress
        cdef Py_ssize_t end
        memset(&progress, 0, sizeof(Progress))
        while progress.at < run.size:
            if not _is_like_the_last(run, &progress) and not self._judge(run, &progress):
                progress.line = 0
                if not self._flush(to, run, &progress) or not self._add_odd(to, run, &progress):
                    return False
                continue
            end = progress.at + progress.whole
            progress.before = progress.at
            if progress.left_out or progress.policy != NULL:
                if not self._flush(to, run, &progress):
                    return False
                if progress.policy != NULL and not self._add_by_policy(to, run, &progress):
                    return False
                _move_behind(&progress, end)
            else:
                progress.ops |= 1u << progress.op
                progress.at = end
                progress.done += 1
        return self._flush(to, run, &progress)

    cdef bint _judge(self, const Run *run, Progress *progress) noexcept nogil:
        """Read a frame and decide about it; False where that is left to the Python filter."""
        cdef Row row
        cdef Py_ssize_t end = read_frame(run.data, progress.at, run.size, run.direction, &row)
        cdef const unsigned char *subject = run.data + row.part[SUBJECT].start
        cdef Py_ssize_t size = row.part[SUBJECT].stop - row.part[SUBJECT].start
        cdef bint is_message = MESSAGES >> row.op & 1, selected
        if end == 0:
            return False
        progress.whole = end - progress.at
        progress.op = row.op
        progress.policy = NULL
        progress.left_out = False
        progress.line = 0
        if not (is_message or row.op == SUB):
            return True
        selected = self.subjects is None or (
            not has_empty_token(subject, size) and trie_matches(&self.subjects.trie, 1, subject, 0, size)
        )
        if not is_message:
            return selected  # a SUB may overlap with what is selected
        progress.left_out = not selected
        progress.line = row.part[HEADERS].start - progress.at
        progress.body = row.part[BODY].start - progress.at
        progress.body_size = row.part[BODY].stop - row.part[BODY].start
        if selected and self.cut is not None:
            progress.policy = self._policy(subject, size)
            if progress.policy != NULL and progress.policy.truncate and progress.body_size <= progress.policy.keep:
                progress.policy = NULL
        return True

    cdef const Policy *_policy(self, const unsigned char *subject, Py_ssize_t size) noexcept nogil:
        """Return the policy that cuts the payloads on a subject; NULL if none does."""
        cdef int i
        if has_empty_token(subject, size) or not trie_matches(&self.cut.trie, 1, subject, 0, size):
            return NULL
        for i in range(self.policy_count):
            if trie_matches(self.policies[i].match, 1, subject, 0, size):
                return NULL if self.policies[i].keep_all else &self.policies[i]
        return NULL

    cdef bint _flush(self, BlockBuilder to, const Run *run, Progress *progress) noexcept nogil:
        """Write the frames that are kept and not written yet."""
        cdef Run part = run[0]
        cdef bint added
        if progress.done == progress.first:
            return True
        part.data, part.size, part.frames, part.ops = run.data + progress.start, progress.at - progress.start, progress.done - progress.first, progress.ops
        part.in_first += progress.first
        part.out_first += progress.first
        added = to.append(&part, 0, NULL, 0)
        progress.start, progress.first, progress.ops = progress.at, progress.done, 0
        return added

    cdef bint _add_by_policy(self, BlockBuilder to, const Run *run, const Progress *progress) noexcept nogil:
        cdef Run part = run[0]
        cdef unsigned char[EXTRA] extra
        cdef const Policy *policy = progress.policy
        part.data, part.size = run.data + progress.at, progress.body + (policy.keep if policy.truncate else 0)
        part.frames, part.ops = 1, 1u << progress.op
        part.in_first += progress.done
        part.out_first += progress.done
        memcpy(extra, policy.extra, policy.extra_size)
        if policy.hashed:
            hash_body(part.data + progress.body, progress.body_size, extra + policy.extra_size - DIGEST)
        return to.append(&part, PAYLOAD, extra, policy.extra_size)

    cdef bint _add_odd(self, BlockBuilder to, const Run *run, Progress *progress) noexcept with gil:
        """Pass a frame that C does not read to the Python filter: one line, or all that is left of the run."""
        cdef Py_ssize_t stop = run.size, count = run.frames - progress.done
        cdef uint32_t ops = run.ops
        cdef bint added
        cdef const unsigned char *lf = <const unsigned char *>memchr(run.data + progress.at, 10, run.size - progress.at)
        if lf != NULL and message_op(run.data, progress.at, run.size, run.direction) < 0:
            line = PyBytes_FromStringAndSize(<const char *>run.data + progress.at, lf + 1 - run.data - progress.at)
            try:
                (frame,) = frames_in(line, Direction(run.direction))
                stop, count, ops = progress.at + len(line), 1, frame.op.bit
            except ProtocolError:
                pass  # the rest goes through the Python filter, which records it as a length
        added = self._by_python(to, run, progress.at, progress.done, stop, count, ops)
        progress.done += count - 1
        _move_behind(progress, stop)
        return added

    cdef bint _by_python(
        self, BlockBuilder to, const Run *run, Py_ssize_t start, Py_ssize_t first, Py_ssize_t stop, Py_ssize_t count,
        uint32_t ops
    ) noexcept with gil:
        """Add the records that the Python filter makes of a part of a run."""
        data = PyBytes_FromStringAndSize(<const char *>run.data + start, stop - start)
        record = Frames(
            run.conn, Direction(run.direction), data, count, ops, run.in_first + first, run.t, run.out_first + first, run.t
        )
        for kept in self.owner.apply(record):
            to.add_kept(kept)
        return True


cdef inline bint _is_like_the_last(const Run *run, const Progress *progress) noexcept nogil:
    cdef Py_ssize_t end = progress.at + progress.whole
    return (
        progress.line and end <= run.size and memcmp(run.data + progress.at, run.data + progress.before, progress.line) == 0
        and run.data[end - 2] == 13 and run.data[end - 1] == 10
    )


cdef inline void _move_behind(Progress *progress, Py_ssize_t end) noexcept nogil:
    """Move past a frame that was written or left out."""
    progress.at = progress.start = end
    progress.done += 1
    progress.first = progress.done


cdef inline void hash_body(const unsigned char *data, Py_ssize_t size, unsigned char *digest) noexcept nogil:
    if NATIVE_SHA:
        sha256_digest(data, size, digest)
    else:
        hash_by_python(data, size, digest)


cdef void hash_by_python(const unsigned char *data, Py_ssize_t size, unsigned char *digest) noexcept with gil:
    cdef bytes made = sha256(PyBytes_FromStringAndSize(<const char *>data, size)).digest()
    memcpy(digest, <const unsigned char *>made, DIGEST)
