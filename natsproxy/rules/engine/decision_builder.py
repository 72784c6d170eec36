"""A draft: what will become of one frame, while the rules have their say.

Verdicts are applied one by one; `decision` gives the sum.  One row per verdict in `_APPLY`: how it changes
the draft.  A draft is over when nothing of the frame will go on: later actions are not asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from natsproxy.events import Firing
from natsproxy.rules.interface import Decision
from natsproxy.rules.model import verdicts
from natsproxy.rules.model.verdicts import Verdict
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Direction
from natsproxy.wire.parse import frames as parse_frames


class DecisionBuilder:
    """One frame on its way through the rules.

    frame: as it would go on now.  changed: it is no longer what was received (`rewritten` at the start).
    """

    __slots__ = (
        "after",
        "answer",
        "before",
        "cause",
        "changed",
        "close",
        "conditions_changed",
        "copies",
        "defer",
        "delay",
        "direction",
        "events",
        "extra",
        "frame",
        "last_delay",
        "latest",
        "now",
        "ok",
        "over",
        "overtake",
    )

    def __init__(self, frame: Frame, direction: Direction, now: int, rewritten: bool = False) -> None:
        self.frame = frame
        self.direction = direction
        self.now = now
        self.changed = rewritten
        self.cause = "rewrite" if rewritten else ""
        self.extra: tuple[bytes, ...] = ()  # more frames of a replacement, behind the first
        self.copies = 1
        self.before = self.after = self.answer = b""
        self.ok = self.over = self.overtake = self.conditions_changed = False
        self.delay = self.last_delay = self.defer = 0
        self.latest: int | None = None
        self.close: verdicts.Close | None = None
        self.events: list[Firing] = []

    def apply(self, verdict: Verdict) -> None:
        """Add one verdict."""
        self.last_delay = 0
        _APPLY[type(verdict)](self, verdict)

    def fired(self, event: Firing) -> None:
        """Note the firing of the verdict that was applied last."""
        self.events.append(event)
        self.cause = event.rule

    def decision(self) -> Decision:
        """Return the sum of the verdicts."""
        if self.close is not None:
            return Decision(out=(), close=self.close, cause=self.cause, firings=tuple(self.events))
        until = self.now + self.delay if self.delay else None
        if self.latest is not None:
            until = max(self.latest, until or 0)
        out: tuple[bytes, ...] | None = None
        if self.over:
            out = ()
        elif self.changed or self.copies > 1 or self.extra:
            out = (self.frame.raw, *self.extra) * self.copies
        return Decision(
            out=out,
            answer=self.answer,
            ok=self.ok,
            before=self.before,
            after=self.after,
            until=None if self.over and not self.answer else until,
            overtake=self.overtake,
            defer=self.defer,
            cause=self.cause,
            firings=tuple(self.events),
            conditions_changed=self.conditions_changed,
        )

    def replace(self, raw: bytes) -> None:
        """Let `raw` (one whole frame or several) go on in the frame's place."""
        found = list(parse_frames(raw, self.direction))
        self.frame, self.extra = found[0], tuple(frame.raw for frame in found[1:])
        self.changed = True


def _replace(builder: DecisionBuilder, verdict: Any) -> None:
    builder.replace(verdict.raw)


def _drop(builder: DecisionBuilder, verdict: Any) -> None:
    builder.over = builder.ok = True


def _deny(builder: DecisionBuilder, verdict: Any) -> None:
    builder.over = True  # the text was put into `answer` by the chain, which knows about pedantic clients


def _answer(builder: DecisionBuilder, verdict: Any) -> None:
    builder.over = True
    builder.answer += verdict.raw


def _hold(builder: DecisionBuilder, verdict: Any) -> None:
    builder.last_delay = max(0, verdict.until - builder.now)
    builder.delay += builder.last_delay
    builder.overtake = builder.overtake or verdict.overtake


def _inject(builder: DecisionBuilder, verdict: Any) -> None:
    builder.before += verdict.before
    builder.after += verdict.after


def _duplicate(builder: DecisionBuilder, verdict: Any) -> None:
    builder.copies *= 1 + verdict.copies


def _reorder(builder: DecisionBuilder, verdict: Any) -> None:
    builder.defer = max(builder.defer, verdict.by)
    builder.latest = max(builder.latest or 0, verdict.until)


def _close(builder: DecisionBuilder, verdict: Any) -> None:
    builder.over = True
    builder.close = verdict


def _bend(builder: DecisionBuilder, verdict: Any) -> None:
    builder.conditions_changed = True


_APPLY: Final[dict[type, Callable[[DecisionBuilder, Any], None]]] = {
    verdicts.Replace: _replace,
    verdicts.Drop: _drop,
    verdicts.Deny: _deny,
    verdicts.Answer: _answer,
    verdicts.Hold: _hold,
    verdicts.Inject: _inject,
    verdicts.Duplicate: _duplicate,
    verdicts.Reorder: _reorder,
    verdicts.Close: _close,
    verdicts.StartCondition: _bend,
}
