"""What a lane tells the recorder: records of what came and what went.

One record says both where it can: what passed untouched is one record with both ordinals and its bytes once.
What came and did not go has no `out`, what went and never came has no `in`, and a changed frame is two
records tied by the ordinal (`of`).

Whoever gets records gets them without secrets: all of them leave through `_put`, which takes those out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from natsproxy.capture.filter.redact import SECRET_OPS, Secrets, needs_look
from natsproxy.capture.format.records import Flags, Frames, Opaque
from natsproxy.session.actions import Action, Record
from natsproxy.session.outbox import Item
from natsproxy.wire.frames import NO_LIMIT, Frame, Run
from natsproxy.wire.interest import Clause
from natsproxy.wire.ops import Direction
from natsproxy.wire.scanner import Interest, Scanner

UNSENT: Final = "unsent"
"""The cause of what was read and not sent when the connection ended."""
_GREETINGS: Final = Interest((Clause(SECRET_OPS),))


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
    """The recorder's side of a lane; `actions` is where it puts records, nothing where `record` is off.

    secrets: of the connection, for both of its lanes.
    """

    def __init__(
        self, direction: Direction, scanner: Scanner, conn: int, record: bool, secrets: Secrets
    ) -> None:
        self.direction = direction
        self.scanner = scanner
        self.actions: list[Action] = []
        self.record = record
        self._conn = conn
        self._secrets = secrets

    def _put(self, record: Frames) -> None:
        if self.scanner.odd or self._secrets.alert or needs_look(record):
            self.actions += map(Record, self._secrets.clean(record))
        else:
            self.actions.append(Record(record))

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
            self._put(record)

    def _stayed(
        self, data: bytes | memoryview, frames: int, ops: int, first: int, t: int | None, cause: str
    ) -> None:
        """Record whole frames that came and do not go."""
        if self.record:
            record = Frames(self._conn, self.direction, data, frames, ops, first, t, None, None, cause)
            self._put(record)

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
            self._conn,
            self.direction,
            opened.head_in + opened.tail,
            1,
            1 << opened.op,
            opened.ordinal,
            now,
            went if same else None,
            now if same and went is not None else None,
            opened.cause,
            flags,
            extra or None,
        )
        self._put(record)
        if not same and opened.head_out is not None and went is not None:
            extra["of"] = opened.ordinal
            data = opened.head_out + opened.tail
            record = record._replace(
                data=data, in_first=None, in_t=None, out_first=went, out_t=now, extra=extra
            )
            self._put(record)

    def _changes(self, ordinal: int, forms: Sequence[bytes]) -> None:
        """Learn that a frame that came goes in other forms, before any of them is recorded."""
        if self.record:
            self._secrets.changed(self.direction, ordinal, forms)

    def _cut_short(self, rest: bytes, first: int, out_first: int | None, now: int) -> None:
        """Record what there is of a frame that never ended; out_first: its number there, None if unsent."""
        if self.record and rest:
            sent = out_first is not None
            record = Frames(
                self._conn,
                self.direction,
                rest,
                1,
                0,
                first,
                now,
                out_first,
                now if sent else None,
                None if sent else UNSENT,
                Flags.CUT,
            )
            self._put(record)

    def _left(self, rest: bytes, first: int, now: int) -> None:
        """Record what was received and never looked at: whole frames perhaps, and one that never ended."""
        if not self.record:
            return
        scanner = Scanner(
            self.direction, _GREETINGS, line_limit=1 << 20, hold=NO_LIMIT, buffer_limit=NO_LIMIT
        )
        scanner.feed(rest)
        read = 0
        while isinstance(found := scanner.next(), Run | Frame):
            frames, ops = (found.frames, found.ops) if isinstance(found, Run) else (1, 1 << found.op)
            self._stayed(rest[read : scanner.offset], frames, ops, first, now, UNSENT)
            first, read = first + frames, scanner.offset
        self._cut_short(rest[read:], first, None, now)

    def _unread(self, length: int, now: int) -> None:
        """Record that bytes passed without being framed."""
        if self.record:
            self.actions.append(Record(Opaque(self._conn, self.direction, now, length)))
