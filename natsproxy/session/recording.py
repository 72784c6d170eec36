"""What a lane tells the recorder: records of what came and what went.

One record says both where it can: what passed untouched is one record with both ordinals and its bytes once.
What came and did not go has no `out`, what went and never came has no `in`, and a changed frame is two
records tied by the ordinal (`of`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from natsproxy.capture.records import Flags, Frames, Opaque
from natsproxy.session.actions import Action, Record
from natsproxy.session.outbox import Item
from natsproxy.wire.ops import Direction

UNSENT: Final = "unsent"
"""The cause of what was read and not sent when the connection ended."""


@dataclass(slots=True, eq=False)
class OpenFrame:
    """A frame whose payload is still coming.

    head_in, head_out: its first bytes as they came and as they went (None: they did not go).  tail: what came
    since, as far as it is recorded; cut: no more of it is.  item: where it waits, if it is held.
    """

    op: int
    ordinal: int
    head_in: bytes
    head_out: bytes | None
    cause: str | None
    size: int
    out_first: int | None
    tail: bytearray = field(default_factory=bytearray)
    cut: bool = False
    item: Item | None = None


class Recording:
    """The recorder's side of a lane; `actions` is where it puts records, nothing where `record` is off."""

    def __init__(self, direction: Direction, conn: int, record: bool) -> None:
        self.direction = direction
        self.actions: list[Action] = []
        self.record = record
        self._conn = conn

    def _went(
        self,
        data: bytes | memoryview,
        frames: int,
        ops: int,
        in_first: int | None,
        in_t: int | None,
        out_first: int,
        now: int,
        cause: str | None,
        of: int | None,
    ) -> None:
        """Record whole frames that go, and came where `in_first` says so."""
        if self.record and frames:
            extra = None if of is None else {"of": of}
            record = Frames(
                self._conn, self.direction, data, frames, ops, in_first, in_t, out_first, now, cause, 0, extra
            )
            self.actions.append(Record(record))

    def _stayed(
        self, data: bytes | memoryview, frames: int, ops: int, first: int, t: int | None, cause: str
    ) -> None:
        """Record whole frames that came and do not go."""
        if self.record:
            record = Frames(self._conn, self.direction, data, frames, ops, first, t, None, None, cause)
            self.actions.append(Record(record))

    def _was_open(self, opened: OpenFrame, now: int, flags: int) -> None:
        """Record a frame that came in pieces, at its end."""
        if not self.record:
            return
        went = opened.out_first
        extra: dict[str, Any] = {}
        if len(opened.head_in) + len(opened.tail) != opened.size:
            flags |= 0 if flags else Flags.TRUNCATED
            extra["size"] = opened.size
        same = opened.head_out == opened.head_in
        record = Frames(
            self._conn, self.direction, opened.head_in + opened.tail, 1, 1 << opened.op, opened.ordinal, now,
            went if same else None, now if same and went is not None else None, opened.cause, flags,
            extra or None,
        )  # fmt: skip
        self.actions.append(Record(record))
        if not same and opened.head_out is not None and went is not None:
            extra["of"] = opened.ordinal
            data = opened.head_out + opened.tail
            record = record._replace(
                data=data, in_first=None, in_t=None, out_first=went, out_t=now, extra=extra
            )
            self.actions.append(Record(record))

    def _cut_short(self, rest: bytes, first: int, out_first: int | None, now: int) -> None:
        """Record what there is of a frame that never ended; out_first: its number there, None if unsent."""
        if self.record and rest:
            sent = out_first is not None
            record = Frames(
                self._conn, self.direction, rest, 1, 0, first, now, out_first, now if sent else None,
                None if sent else UNSENT, Flags.CUT,
            )  # fmt: skip
            self.actions.append(Record(record))

    def _unread(self, length: int, now: int) -> None:
        """Record that bytes passed without being framed."""
        if self.record:
            self.actions.append(Record(Opaque(self._conn, self.direction, now, length)))
