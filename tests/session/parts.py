"""The parts of one session without rules: what each of them does by itself."""

from __future__ import annotations

from natsproxy.capture.format.records import Frames
from natsproxy.rules.interface import EmptyChain
from natsproxy.session.direction import DirectionPipe
from natsproxy.session.session import Session
from natsproxy.session.values import UNLIMITED_WORK, Action, End, Record, Send, SessionSettings
from natsproxy.wire.frames import Frame, Run
from natsproxy.wire.interest import Clause
from natsproxy.wire.ops import ALL_OPS, C2S, Direction
from natsproxy.wire.scanner import Interest


class Parts:
    """The parts, and the actions that they have asked for."""

    def __init__(self, *, record: bool = False, **settings: object) -> None:
        self.session = Session(
            SessionSettings(**settings),  # type: ignore[arg-type]
            EmptyChain(),
            conn=1,
            ordinal=1,
            address="127.0.0.1:1",
            record=record,
            now=0,
        )
        self.fences = self.session.fences
        self.subscriptions = self.session.subscriptions
        self.c2s, self.s2c = self.session.pipes
        self.records: list[Frames] = []
        self.end: End | None = None
        self._out = [bytearray(), bytearray()]

    def take(self) -> int:
        """Take the actions since the last look; return their number."""
        actions = self.session.take_actions()
        for action in actions:
            self._do(action)
        return len(actions)

    def _do(self, action: Action) -> None:
        if isinstance(action, Send):
            self._out[action.direction] += action.data
        elif isinstance(action, Record) and isinstance(action.item, Frames):
            self.records.append(action.item._replace(data=bytes(action.item.data)))
        elif isinstance(action, End):
            self.end = action

    def sent(self, direction: Direction = C2S, now: int = 0) -> bytes:
        """Return the bytes that went in a direction since the last look."""
        self.session.pipes[direction].flush(now)
        self.take()
        out = bytes(self._out[direction])
        self._out[direction].clear()
        return out

    def kept(self) -> list[Frames]:
        """Return the records since the last look."""
        self.take()
        records, self.records = self.records, []
        return records

    def release(self, now: int, direction: Direction = C2S) -> bytes:
        """Return the bytes that leave the outbox at a time."""
        self.session.pipes[direction].sender.release(now, UNLIMITED_WORK)
        return self.sent(direction, now)


def frame(pipe: DirectionPipe, raw: bytes) -> Frame:
    """Return the next frame of a direction, as its scanner gives one that is wanted."""
    pipe.scanner.interest = Interest((Clause(ALL_OPS),))
    pipe.scanner.feed(raw)
    found = pipe.scanner.next()
    assert isinstance(found, Frame)
    return found


def run(pipe: DirectionPipe, raw: bytes) -> Run:
    """Return the next frames of a direction, as its scanner gives those that nobody wants."""
    pipe.scanner.interest, pipe.scanner.watch_ops = Interest(), 0
    pipe.scanner.feed(raw)
    found = pipe.scanner.next()
    assert isinstance(found, Run)
    return found
