"""Records of one direction: which frames came, which went, and when.

One record says both where it can: frames that passed untouched are one record with both ordinals and their
bytes once.  Frames that came and did not go have no `out`, frames that went and never came have no `in`, and
a changed frame is two records tied by the ordinal (`of`).

All records leave through `put`, which takes secrets out of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from natsproxy.capture.filter.redact import SECRET_OPS, needs_look
from natsproxy.capture.format.records import Flags, Frames, Opaque
from natsproxy.session.actions import Record
from natsproxy.session.outbox import Item
from natsproxy.session.pipe_context import PipeContext
from natsproxy.wire import encode
from natsproxy.wire.frames import NO_LIMIT, Frame, Run
from natsproxy.wire.interest import Clause
from natsproxy.wire.ops import Direction
from natsproxy.wire.parse import frames as parse_frames
from natsproxy.wire.scanner import Interest, Scanner

UNSENT: Final = "unsent"
"""The cause of frames that were read and not sent when the connection ended."""
_GREETINGS: Final = Interest((Clause(SECRET_OPS),))


@dataclass(slots=True, eq=False)
class OpenFrame:
    """A frame whose payload is still coming.

    head_in, head_out: its first bytes as they came and as they went (None: they did not go).  secret: one of
    the two makes a secret of both.  tail: the bytes since then, as far as they are recorded; cut: no more of
    them are.  item: its place in the outbox, if it is held.
    """

    op: int
    ordinal: int
    head_in: bytes
    head_out: bytes | None
    cause: str | None
    size: int
    out_first: int | None
    secret: bool = False
    tail: bytearray = field(default_factory=bytearray)
    cut: bool = False
    item: Item | None = None


class DirectionRecords:
    """The records of one direction.

    on: whether records are wanted; callers of `put` ask first, and build none otherwise.
    """

    __slots__ = ("_actions", "_conn", "_direction", "_scanner", "_secrets", "on")

    def __init__(self, direction: Direction, scanner: Scanner, context: PipeContext) -> None:
        self.on = context.record
        self._direction = direction
        self._scanner = scanner
        self._conn = context.conn
        self._secrets = context.secrets
        self._actions = context.actions

    @property
    def suspicious(self) -> bool:
        """True if each frame has to be looked at: what was seen before may make any of them a secret."""
        return self._secrets.alert or (self.on and self._scanner.odd)

    def put(self, record: Frames, *, secret: bool = False) -> None:
        """Give a record to the recorder, without its secrets; secret: another form of its frame is one."""
        # The scanner has seen every frame of it: only where one was odd does each have to be looked at.
        if secret or self._scanner.odd or self._secrets.alert or needs_look(record):
            self._actions += map(Record, self._secrets.clean(record, secret=secret))
        else:
            self._actions.append(Record(record))

    def split(self, raw: bytes, ops: int) -> list[tuple[bytes, int]]:
        """Return frames of ours one by one, with their ops, because records and counters say how many."""
        if raw == encode.PING:  # by far the most of them: fences
            return [(raw, ops)]
        return [(bytes(frame.raw), 1 << frame.op) for frame in parse_frames(raw, self._direction)]

    def stayed(
        self,
        data: bytes | memoryview,
        came: Run | Frame,
        first: int,
        t: int | None,
        cause: str,
        *,
        secret: bool = False,
    ) -> None:
        """Record whole frames that came and do not go; first: the ordinal of the first, t: when (ns)."""
        if self.on:
            frames, ops = (came.frames, came.ops) if isinstance(came, Run) else (1, 1 << came.op)
            record = Frames(self._conn, self._direction, data, frames, ops, first, t, None, None, cause)
            self.put(record, secret=secret)

    def open_ended(self, opened: OpenFrame, now: int, flags: int = 0) -> None:
        """Record a frame that came in pieces, at its end."""
        if not self.on:
            return
        went = opened.out_first
        extra: dict[str, Any] = {}
        if len(opened.head_in) + len(opened.tail) != opened.size:
            flags |= 0 if flags else Flags.TRUNCATED
            extra["size"] = opened.size
        same = opened.head_out == opened.head_in
        record = Frames(
            conn=self._conn,
            direction=self._direction,
            data=opened.head_in + opened.tail,
            frames=1,
            ops=1 << opened.op,
            in_first=opened.ordinal,
            in_t=now,
            out_first=went if same else None,
            out_t=now if same and went is not None else None,
            cause=opened.cause,
            flags=flags,
            extra=extra or None,
        )
        self.put(record, secret=opened.secret)
        if not same and opened.head_out is not None and went is not None:
            extra["of"] = opened.ordinal
            data = opened.head_out + opened.tail
            record = record._replace(
                data=data, in_first=None, in_t=None, out_first=went, out_t=now, extra=extra
            )
            self.put(record, secret=opened.secret)

    def changes(self, forms: Sequence[bytes]) -> bool:
        """Learn that a frame goes on in other forms; return whether they are secret."""
        return self._secrets.changed(self._direction, forms)

    def cut_short(self, rest: bytes, first: int, out_first: int | None, now: int) -> None:
        """Record the bytes of a frame that never ended; out_first: its ordinal there, None if unsent."""
        if self.on and rest:
            sent = out_first is not None
            record = Frames(
                conn=self._conn,
                direction=self._direction,
                data=rest,
                frames=1,
                ops=0,
                in_first=first,
                in_t=now,
                out_first=out_first,
                out_t=now if sent else None,
                cause=None if sent else UNSENT,
                flags=Flags.CUT,
            )
            self.put(record)

    def left(self, rest: bytes, first: int, now: int) -> None:
        """Record bytes that were received and never scanned: whole frames perhaps, and one that is cut."""
        if not self.on:
            return
        # A scanner of its own: that of the direction has its limits, and stands somewhere else.
        scanner = Scanner(
            self._direction, _GREETINGS, line_limit=1 << 20, hold=NO_LIMIT, buffer_limit=NO_LIMIT
        )
        scanner.feed(rest)
        read = 0
        while isinstance(found := scanner.next(), Run | Frame):
            self._scanner.odd |= scanner.odd  # `put` asks that one, which has not seen them
            self.stayed(rest[read : scanner.offset], found, first, now, UNSENT)
            first, read = first + (found.frames if isinstance(found, Run) else 1), scanner.offset
        self.cut_short(rest[read:], first, None, now)

    def unframed(self, length: int, now: int) -> None:
        """Record that bytes passed without being framed."""
        if self.on:
            self._actions.append(Record(Opaque(self._conn, self._direction, now, length)))
