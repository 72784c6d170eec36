"""The cached decisions of the fast path on one direction of one connection.

Subjects are hostile and inboxes never repeat, so a cache is bounded.  Between two reads it has `MAX_ENTRIES`
at most; and as many small reads as it has entries empty it, so that an idle connection holds few.

The native plane gets the same decisions as a table that it reads itself (`_decisions.pyx`).
"""

from __future__ import annotations

from typing import Any, Final

from natsproxy.rules.bounded_cache import MAX_ENTRIES as MOST_IN_A_READ
from natsproxy.rules.bounded_cache import MAX_KEY_BYTES
from natsproxy.rules.engine.batch import Batch
from natsproxy.rules.engine.cached_decision import REWRITE_CAUSE, CachedDecision, CachedPass, CachedRewrite
from natsproxy.rules.model.rule_state import subject_text
from natsproxy.rules.rewriting.subjects import SubjectRewriter
from natsproxy.wire.ops import C2S, OPS, Direction, Op

BASE_ENTRIES: Final = 32
MAX_ENTRIES: Final = 1024
SYSTEM: Final = b"$SYS."
"""The beginning of all subjects of the system."""
Key = tuple[Op, bytes, bytes]
"""Op, subject and sid."""


class DecisionCache(dict[Key, CachedDecision]):
    """The decisions by op, subject and sid.

    frames: those that were decided on since the last read.
    """

    def __init__(self, direction: Direction, rewriter: SubjectRewriter | None) -> None:
        super().__init__()
        self.frames = 0
        self._direction = direction
        self._rewriter = rewriter
        self._table: Any = None
        self._small_reads = 0

    def store(self, key: Key, decision: CachedDecision) -> CachedDecision:
        """Store a decision and return it."""
        if len(key[1]) <= MAX_KEY_BYTES:
            if len(self) >= MOST_IN_A_READ:
                self.forget()
            self[key] = decision
            if self._table is not None:
                self._share(key, decision)
        return decision

    def forget(self) -> None:
        """Forget all decisions."""
        self.clear()
        self._small_reads = 0
        if self._table is not None:
            self._table.clear()

    def end_read(self) -> None:
        """Tell the batches what the native plane has done, and shrink after small reads."""
        if self._table is not None:
            self.frames += self._table.tell()
        elif not self:
            self.frames = 0
            return
        frames, self.frames = self.frames, 0
        if frames and len(self) > BASE_ENTRIES + frames:
            self._small_reads += 1
        if len(self) > MAX_ENTRIES or self._small_reads > len(self):
            self.forget()

    # -- for the native plane

    def table(self) -> object:
        """Return the decisions as the native plane reads them."""
        if self._table is None:
            # Built with the plane that asks for it.
            from natsproxy.rules.engine import _decisions  # type: ignore[attr-defined, unused-ignore]

            self._table = _decisions.Decisions(*self._reply_prefixes())
            self.forget()  # those that it does not have would never come to it
        return self._table

    def _reply_prefixes(self) -> tuple[tuple[bytes, ...] | None, bool]:
        rewriter = self._rewriter
        if rewriter is None or not rewriter.replies:
            return None, False
        if self._direction == C2S:
            return rewriter.excluded_prefixes, True
        return rewriter.restored_prefixes, False

    def _share(self, key: Key, decision: CachedDecision) -> None:
        """Put a decision into the table if it is the same for all frames of its key."""
        op, subject, sid = key
        if subject.startswith(SYSTEM):  # the session looks at each for secrets
            return
        line = b" ".join(part for part in (OPS[op].token, subject, sid) if part)
        if isinstance(decision, CachedRewrite):
            head, cut, _, before, after, batch, unless = decision
            self._table.put_rewrite(line, batch, (before, after), head, cut, unless, REWRITE_CAUSE)
        elif isinstance(decision, Batch):
            if decision.drops_all:
                self._table.put_drop(line, decision, subject_text(subject), decision.name)
        elif isinstance(decision, CachedPass) and decision.admits is None:
            self._table.put_pass(line, decision.unless)
