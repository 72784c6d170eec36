"""The frames that reached a proxy, for tests to inspect: a ring of records, bounded in bytes.

The trio thread adds records as they arrive.  Frames are parsed only when a test reads or waits, so
that a test which does neither pays almost nothing.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import trio

from natsproxy.capture.filter.filters import NO_FILTERS
from natsproxy.capture.filter.recording_filter import RecordingFilter, Selection
from natsproxy.capture.format.records import Flags, Frames, Item
from natsproxy.errors import NatsproxyError
from natsproxy.protocol.headers import parse as parse_headers
from natsproxy.protocol.subjects import matches
from natsproxy.wire.ops import Direction
from natsproxy.wire.parse import frames as parse_frames
from natsproxy.wire.parse import head

RING: Final = 8 << 20  # bytes of frames that are kept
_RECORD: Final = 256  # memory overhead of a record, in bytes
_SHOWN: Final = 60  # bytes of a payload in a line of text
_NOT_WHOLE: Final = Flags.CUT | Flags.TRUNCATED
_QUIET: Final = frozenset({"PING", "PONG", "+OK"})


class WaitTimeout(NatsproxyError):
    """A frame that a test waited for did not arrive in time; the message shows the last frames."""


@dataclass(frozen=True, slots=True)
class SeenFrame:
    """One frame that reached the proxy, as it arrived.

    conn: the connection's number, from 1.  direction: "c2s" or "s2c".  op: "PUB", "MSG", ...
    passed: True if it was passed on unchanged; otherwise `cause` names the rule that changed or stopped it.
    payload: b"" for a secret one (auth callout), as in captures.
    ordinal: its number on its connection and direction, from 0, as in `Firing`.  t: when it came (ns), on the
    clock of `Firing.t`.
    """

    conn: int
    direction: str
    op: str
    subject: str
    reply: str
    headers: bytes
    payload: bytes
    passed: bool
    cause: str | None
    ordinal: int
    t: int

    def header(self, name: str) -> str | None:
        """Return the first value of a header, None if there is none of that name (case-sensitive)."""
        value = parse_headers(self.headers).first(name.encode())
        return None if value is None else value.decode("utf-8", "replace")

    def __str__(self) -> str:
        words = [f"#{self.conn}", self.direction, self.op, self.subject]
        if self.reply:
            words.append(f"reply {self.reply}")
        if self.headers:
            words.append(f"headers {len(self.headers)} B")
        if self.payload or self.op in ("PUB", "HPUB", "MSG", "HMSG"):
            more = "" if len(self.payload) <= _SHOWN else f"... {len(self.payload)} B"
            words.append(repr(self.payload[:_SHOWN])[1:] + more)
        if not self.passed:
            words.append(f"({self.cause or 'not passed on'})")
        return " ".join(filter(None, words))


@dataclass(frozen=True, slots=True)
class FrameFilter:
    """A condition on frames; every given field must match, None matches all."""

    subject: str | None = None
    op: str | None = None
    direction: str | None = None

    def matches(self, one: SeenFrame) -> bool:
        """Return True if a frame fulfils the condition."""
        if self.op is not None and one.op != self.op.upper():
            return False
        if self.direction is not None and one.direction != self.direction:
            return False
        if self.subject is None:
            return True
        return bool(one.subject) and matches(self.subject.encode(), one.subject.encode())

    def __str__(self) -> str:
        return " ".join(filter(None, (self.op, self.subject, self.direction))) or "any frame"


class FrameLog:
    """A ring of records.  `add` and `wait` are for the trio thread only, `frames` and `last` for any thread.

    filters: applied to the texts that `last` returns, since these end up in logs of test runs.
    """

    def __init__(self, size: int = RING) -> None:
        self.filters = NO_FILTERS
        self._size = size
        self._lock = threading.Lock()
        self._records: deque[Frames] = deque()
        self._bytes = 0
        self._watching: list[tuple[FrameFilter, list[SeenFrame]]] = []
        self._changed: trio.Event | None = None

    def add(self, item: Item) -> None:
        """Add a record if it has whole frames that arrived at the proxy."""
        if not isinstance(item, Frames) or item.in_first is None or item.flags & _NOT_WHOLE:
            return
        item = item._replace(data=bytes(item.data))  # a memoryview would keep its whole buffer alive
        with self._lock:
            self._records.append(item)
            self._bytes += len(item.data) + _RECORD
            while self._bytes > self._size:
                self._bytes -= len(self._records.popleft().data) + _RECORD
        if self._watching:
            for one in _parse(item):
                for wanted, found in self._watching:
                    if wanted.matches(one):
                        found.append(one)
            if self._changed is not None:
                self._changed.set()

    def frames(self, wanted: FrameFilter) -> list[SeenFrame]:
        """Return the frames that match, oldest first."""
        with self._lock:
            records = list(self._records)
        return [one for item in records for one in _parse(item) if wanted.matches(one)]

    def last(self, count: int) -> list[str]:
        """Return the last frames as text, oldest first, without keep-alives."""
        with self._lock:
            records = list(self._records)
        if self.filters:
            shown = RecordingFilter(Selection(filters=self.filters))
            records = [one for item in records for one in shown.apply(item) if isinstance(one, Frames)]
        found: list[str] = []
        for item in reversed(records):
            found += [str(one) for one in reversed(list(_parse(item))) if one.op not in _QUIET]
            if len(found) >= count:
                break
        return found[:count][::-1]

    async def wait(self, wanted: FrameFilter, count: int, timeout: float) -> list[SeenFrame]:
        """Wait until `count` matching frames were in the ring or have arrived since; return them.

        timeout: seconds.  Raises WaitTimeout.
        """
        found = self.frames(wanted)
        watch = (wanted, found)
        self._watching.append(watch)
        try:
            with trio.move_on_after(timeout):
                while len(found) < count:
                    if self._changed is None or self._changed.is_set():
                        self._changed = trio.Event()
                    await self._changed.wait()
                return found
        finally:
            self._watching = [one for one in self._watching if one is not watch]
        last = "\n  ".join(self.last(8))
        shown = f"the last frames:\n  {last}" if last else "nothing passed"
        raise WaitTimeout(f"waited {timeout:g} s for {count} of {wanted}, saw {len(found)}; {shown}")


def _parse(item: Frames) -> Iterator[SeenFrame]:
    assert item.in_first is not None  # `add` takes no others
    passed = item.out_first is not None
    data = bytes(item.data)
    withheld = head(data, item.direction) if item.flags & Flags.PAYLOAD else None
    found = (withheld,) if withheld is not None else parse_frames(data, item.direction)
    for ordinal, frame in enumerate(found, item.in_first):
        yield SeenFrame(
            item.conn,
            Direction(item.direction).label,
            frame.op.label,
            frame.subject.decode("utf-8", "replace"),
            frame.reply.decode("utf-8", "replace"),
            frame.headers,
            frame.body,
            passed,
            item.cause,
            ordinal,
            item.in_t or 0,
        )
