"""The decision on one frame, built from the verdicts of the rules one by one.

`_APPLY` has one row per verdict: its effect on the builder.  A builder is `over` once the frame will not be
passed on: the actions of later rules do not run then.  `decision` makes the one frozen `Decision`, when all
rules and the rewriting are done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from natsproxy.events import Firing
from natsproxy.protocol.headers import HeaderEditor, is_bare
from natsproxy.rules.interface import Decision
from natsproxy.rules.model import verdicts
from natsproxy.rules.model.verdicts import Cut, Verdict
from natsproxy.rules.rewriting.frames import RewrittenFrame
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Direction
from natsproxy.wire.parse import frames as parse_frames

LARGE: Final = 65536
"""Bytes of a header block beyond which copying the frame is a step of its own."""


class DecisionBuilder:
    """The decision on one frame so far.

    changed: the frame differs from the frame as received; rewritten: it did so from the start (s2c, rewritten
    back).  extra: the frames behind the first of a replacement.  last_delay: the delay of the last verdict
    (ns), for its firing.
    """

    __slots__ = (
        "_block",
        "_edited",
        "_editor",
        "_frame",
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
        "extra",
        "firings",
        "last_delay",
        "latest",
        "now",
        "ok",
        "over",
        "overtake",
        "paces",
        "rewritten",
        "upstream_subject",
    )

    def __init__(self, frame: Frame, direction: Direction, now: int, rewritten: bool = False) -> None:
        self._frame = frame
        self._editor: HeaderEditor | None = None
        self._edited = False
        self._block: bytes | None = None
        self.direction = direction
        self.now = now
        self.changed = rewritten
        self.cause = "rewrite" if rewritten else ""
        self.extra: tuple[bytes, ...] = ()
        self.copies = 1
        self.before = self.after = self.answer = b""
        self.ok = self.over = self.overtake = self.conditions_changed = False
        self.delay = self.last_delay = self.defer = 0
        self.latest: int | None = None
        self.paces: tuple[Callable[[int], int], ...] = ()
        self.close: verdicts.Close | None = None
        self.firings: list[Firing] = []
        self.rewritten: tuple[bytes, ...] | None = None
        self.upstream_subject: bytes | None = None

    @property
    def frame(self) -> Frame:
        """The frame as the next rule sees it."""
        while not self.write_headers():
            pass
        return self._frame

    def apply(self, verdict: Verdict) -> None:
        """Add one verdict."""
        self.last_delay = 0
        _APPLY[type(verdict)](self, verdict)

    def deny(self, answer: bytes) -> None:
        """Add a denial: the frame ends here and its sender gets `answer`."""
        self.last_delay = 0
        self.over = True
        self.answer = answer

    def rewrite(self, result: RewrittenFrame, firings: tuple[Firing, ...]) -> None:
        """Add the rewriting of a c2s frame, which comes last."""
        self.rewritten = result.out
        self.answer += result.answer
        # The share that a weighted mapping drops: the server would have acknowledged such a publish.
        self.ok = not result.out and not result.answer
        self.upstream_subject = result.upstream_subject
        self.cause = result.cause or self.cause or "rewrite"
        self.firings += firings

    def add_firing(self, firing: Firing) -> None:
        """Add the firing of the last verdict."""
        self.firings.append(firing)
        self.cause = firing.rule

    def decision(self) -> Decision:
        """Return the sum of the verdicts."""
        if self.close is not None:
            return Decision(out=self._out(), close=self.close, cause=self.cause, firings=tuple(self.firings))
        until = self.now + self.delay if self.delay else None
        if self.latest is not None:
            until = max(self.latest, until or 0)
        return Decision(
            out=self._out(),
            answer=self.answer,
            ok=self.ok,
            upstream_subject=self.upstream_subject,
            before=self.before,
            after=self.after,
            until=None if self.over and not self.answer else until,
            overtake=self.overtake,
            defer=self.defer,
            cause=self.cause,
            firings=tuple(self.firings),
            conditions_changed=self.conditions_changed,
            paces=() if self.over else self.paces,
        )

    def _out(self) -> tuple[bytes, ...] | None:
        if self.rewritten is not None:
            return self.rewritten * self.copies
        if self.over:
            return ()
        if self.changed or self.copies > 1 or self.extra:
            return (self.frame.raw, *self.extra) * self.copies
        return None

    def replace(self, raw: bytes) -> None:
        """Put `raw` (one whole frame or several) in the frame's place."""
        found = list(parse_frames(raw, self.direction))
        self._frame, self.extra = found[0], tuple(frame.raw for frame in found[1:])
        self._editor = None
        self.changed = True

    # -- changes of headers, which are made together

    def read_headers(self, names: frozenset[bytes]) -> bool:
        """Read some of the frame's headers; return whether all were read.  names: those that may change."""
        if self._editor is None:
            self._editor = HeaderEditor(self._frame.headers, names)
        return self._editor.read_on()

    def change_headers(self, verdict: verdicts.ChangeHeaders) -> bool:
        """Add a change of headers, after `read_headers`; return whether it has an effect."""
        editor = self._editor
        assert editor is not None
        self.last_delay = 0
        effect = editor.change(verdict.remove, verdict.put)
        if effect:
            self._edited = self.changed = True
        return effect

    def write_headers(self) -> bool:
        """Make some of the changes in the frame; return whether all are made."""
        editor = self._editor
        if editor is None or not self._edited:
            return True
        if self._block is None:
            if not editor.write_on():
                return False
            self._block = editor.block()
            if len(self._block) > LARGE:
                return False  # the copy of the frame is a step of its own
        # If no header is left, the frame becomes one without headers.
        raw = encode.with_payload(self._frame, headers=b"" if is_bare(self._block) else self._block)
        self._frame = next(parse_frames(raw, self.direction))
        self._editor, self._block, self._edited = None, None, False
        return True


def _replace(builder: DecisionBuilder, verdict: Any) -> None:
    builder.replace(verdict.raw)


def _drop(builder: DecisionBuilder, verdict: Any) -> None:
    builder.over = builder.ok = True


def _answer(builder: DecisionBuilder, verdict: Any) -> None:
    builder.over = True
    builder.answer += verdict.raw


def _hold(builder: DecisionBuilder, verdict: Any) -> None:
    builder.last_delay = max(0, verdict.delay)
    builder.delay += builder.last_delay
    builder.overtake = builder.overtake or verdict.overtake


def _pace(builder: DecisionBuilder, verdict: Any) -> None:
    builder.paces += (verdict.reserve,)


def _inject(builder: DecisionBuilder, verdict: Any) -> None:
    builder.before += verdict.before
    builder.after += verdict.after


def _duplicate(builder: DecisionBuilder, verdict: Any) -> None:
    builder.copies *= 1 + verdict.copies


def _reorder(builder: DecisionBuilder, verdict: Any) -> None:
    builder.defer = max(builder.defer, verdict.by)
    builder.latest = max(builder.latest or 0, verdict.until)


def _close(builder: DecisionBuilder, verdict: Any) -> None:
    builder.over = verdict.at is Cut.BEFORE  # else later rules still see it, and it is rewritten
    builder.close = builder.close or verdict


def _start_condition(builder: DecisionBuilder, verdict: Any) -> None:
    builder.conditions_changed = True


_APPLY: Final[dict[type, Callable[[DecisionBuilder, Any], None]]] = {
    verdicts.Replace: _replace,
    verdicts.Drop: _drop,
    verdicts.Answer: _answer,
    verdicts.Hold: _hold,
    verdicts.Pace: _pace,
    verdicts.Inject: _inject,
    verdicts.Duplicate: _duplicate,
    verdicts.Reorder: _reorder,
    verdicts.Close: _close,
    verdicts.StartCondition: _start_condition,
}
"""The effect of each verdict but two: the answer of Deny depends on the connection (`DecisionBuilder.deny`),
and ChangeHeaders takes several steps (`read_headers`, `change_headers`, `write_headers`)."""
