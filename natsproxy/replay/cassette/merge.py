"""The merge of new episodes into a cassette: one capture with both replaces the old one.

Every item of the old capture stays as it is, in its block.  A record of several frames is split where an
addition belongs between them, and the ordinals after it move up.  The recorded end of a connection moves
behind its additions.  The new file is written beside the old one, synced, and renamed over it: after a crash
one of the two is there, whole.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from natsproxy import close_reasons
from natsproxy.capture.filter.filters import NO_FILTERS, Filters
from natsproxy.capture.filter.recording_filter import RecordingFilter, Selection
from natsproxy.capture.filter.redact import Secrets
from natsproxy.capture.format.records import CloseRecord, Frames, Item, OpenRecord, Preamble
from natsproxy.capture.read.reader import open_capture
from natsproxy.capture.read.segment import BlockRef, CaptureFile
from natsproxy.capture.write.builder import BLOCK_SIZE, BlockBuilder
from natsproxy.capture.write.writer import CaptureWriter, SegmentInfo
from natsproxy.errors import CaptureError
from natsproxy.replay.cassette.cassette_file import beside, replace
from natsproxy.replay.conversation.steps import Event, Step, walk
from natsproxy.replay.server_playback.new_episodes import Addition
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, S2C, Direction
from natsproxy.wire.parse import frames


def merge(path: Path, additions: Sequence[Addition], filters: Filters = NO_FILTERS) -> int:
    """Add frames to the capture at `path`; return the number of added frames.

    filters: redact the added frames, and are stored in the capture.  Raises CaptureError if it cannot be
    done; the capture is unchanged then.
    """
    if not additions:
        return 0
    if path.is_dir():
        raise CaptureError(
            "frames cannot be added to a folder of segments: a cassette is one file", path=path
        )
    fresh = beside(path)
    with CaptureFile(path) as file:
        old = file.segment
    boot = bytes(16)  # no reader may compare times of two recordings as one clock's
    settings = dict(old.settings)
    if filters:
        settings["cassette"] = {**settings.get("cassette", {}), **filters.described()}
    info = SegmentInfo(old.recorder, boot, old.wall, old.mono, old.seed, old.rules, settings)
    writer = CaptureWriter(fresh, info)
    try:
        writer.open_segment()
        _Merge(path, additions, filters).write(writer)
        writer.close()
        filters.check(path)
        replace(fresh, path)
    except OverflowError:
        raise CaptureError("a time or a number in it is out of range", path=path) from None
    finally:
        writer.abandon()  # after an error; a closed one stays as it is
        fresh.unlink(missing_ok=True)
    return sum(1 for addition in additions if addition.data)  # ends of connections have no data


class _Clocks(NamedTuple):
    """The clocks at the beginning of a block, and the op bits of its records as they were read."""

    mono: int
    wall: int
    ops: int


class _Merge:
    """One merge: the old items in order, with the additions in their places."""

    def __init__(self, path: Path, additions: Sequence[Addition], filters: Filters) -> None:
        self._path = path
        self._filter = RecordingFilter(Selection(filters=filters))
        self._at: defaultdict[int, deque[Addition]] = defaultdict(deque)
        self._left: Counter[int] = Counter()
        for addition in additions:
            self._at[addition.after].append(addition)
            self._left[addition.conn] += 1
        self._next: Counter[tuple[int, Direction, str]] = Counter()
        self._shift: Counter[tuple[int, Direction]] = Counter()
        self._new: dict[int, int] = {}
        self._closes: dict[int, CloseRecord] = {}
        self._secrets: defaultdict[int, Secrets] = defaultdict(Secrets)
        self._last = 0

    def write(self, writer: CaptureWriter) -> None:
        """Write the merged capture."""
        everything = open_capture(self._path).items()
        self._top = max((getattr(item, "conn", 0) or 0 for _, item in everything), default=0)
        builder, block = BlockBuilder(), _Clocks(0, 0, 0)
        for clocks, item in self._items(_Clocks(writer.info.mono, writer.info.wall, 0)):
            if builder.begun and (clocks is not block or builder.size >= BLOCK_SIZE):
                _seal(writer, builder, block)
            if not builder.begun:
                builder.begin(clocks.mono, clocks.wall)
                block = clocks
            builder.add(item)
        if builder.begun:
            _seal(writer, builder, block)

    def _items(self, clocks: _Clocks) -> Iterator[tuple[_Clocks, Item]]:
        """Yield all items with the clocks of their block."""
        block: BlockRef | None = None
        for ref, item, found in walk(self._path):
            if ref is not block:
                block, clocks = ref, _Clocks(ref.summary.mono0, ref.summary.wall0, ref.summary.ops)
            if not self._last:  # the first item: additions without a recorded frame before them
                yield from ((clocks, one) for one in self._added(-1, item.t))
            self._last = max(self._last, item.t)
            yield from ((clocks, one) for one in self._kept(item, found))
        for after in sorted(self._at):
            yield from ((clocks, one) for one in self._added(after, self._last or clocks.mono))
        for close in self._closes.values():
            yield clocks, close._replace(t=max(close.t, self._last))

    def _kept(self, item: Item, found: list[Event]) -> Iterator[Item]:
        """Yield an item of the old capture and the additions after it."""
        steps = [event for event in found if isinstance(event, Step)]
        for step in steps:
            # Run only so that the filter learns its reply subject, on which a secret may come.
            if step.frame.subject.startswith(b"$SYS."):
                conn = step.conn.number  # a cassette that grows is one file of one run
                list(self._secrets[conn].clean(_record(conn, step.direction, step.frame, 0, 0, 0)))
        if isinstance(item, Frames):
            yield from self._cut(item, steps)
            return
        if isinstance(item, CloseRecord) and self._left[item.conn]:  # additions to this connection follow
            self._closes[item.conn] = item
            return
        if isinstance(item, Preamble):
            for name, ordinal in (item.info.get("ordinals") or {}).items():
                direction, _, side = name.partition("_")
                self._next[item.conn, C2S if direction == "c2s" else S2C, f"{side}_first"] = ordinal
        yield item
        for step in steps:
            yield from self._added(step.seq, item.t)

    def _cut(self, item: Frames, steps: list[Step]) -> Iterator[Item]:
        """Yield a record, split where additions belong between its frames."""
        done, start = 0, 0
        for n, step in enumerate(steps):
            if step.seq in self._at:
                end = step.frame.end
                yield self._moved(item, done, n + 1 - done, start, end)
                yield from self._added(step.seq, item.t)
                done, start = n + 1, end
        if done < item.frames:
            yield self._moved(item, done, item.frames - done, start, len(item.data))

    def _moved(self, item: Frames, first: int, count: int, start: int, end: int) -> Frames:
        """Return a part of a record with its ordinals raised by the number of additions before it."""
        moved = self._shift[item.conn, item.direction]
        fields: dict[str, Any] = {"data": bytes(item.data)[start:end], "frames": count}
        for name in ("in_first", "out_first"):
            ordinal = getattr(item, name)
            if ordinal is not None:
                fields[name] = ordinal + first + moved
                self._next[item.conn, item.direction, name] = fields[name] + count
        if item.extra is not None and "of" in item.extra:
            fields["extra"] = {**item.extra, "of": item.extra["of"] + moved}
        return item._replace(**fields)

    def _added(self, after: int, t: int) -> Iterator[Item]:
        for addition in self._at.pop(after, ()):
            at = t + addition.delay
            self._last = max(self._last, at)
            yield from self._one(addition, at)
            self._left[addition.conn] -= 1
            close = self._closes.get(addition.conn)
            if close is not None and not self._left[addition.conn]:
                del self._closes[addition.conn]
                yield close._replace(t=at)

    def _one(self, addition: Addition, t: int) -> Iterator[Item]:
        conn, direction = addition.conn, addition.direction
        if conn < 0:
            if conn not in self._new:
                self._top += 1
                self._new[conn] = self._top
                yield OpenRecord(self._top, t, {"key": "new episode"})
            conn = self._new[conn]
        if not addition.data:
            yield CloseRecord(conn, t, close_reasons.CLIENT_CLOSED, {})
            return
        (frame,) = frames(addition.data, direction)
        in_first = self._next[conn, direction, "in_first"]
        out_first = self._next[conn, direction, "out_first"]
        for clean in self._secrets[conn].clean(_record(conn, direction, frame, in_first, out_first, t)):
            yield from self._filter.apply(clean)
        self._next[conn, direction, "in_first"] += 1
        self._next[conn, direction, "out_first"] += 1
        self._shift[conn, direction] += 1


def _record(conn: int, direction: Direction, frame: Frame, in_first: int, out_first: int, t: int) -> Frames:
    return Frames(conn, direction, frame.raw, 1, frame.op.bit, in_first, t, out_first, t)


def _seal(writer: CaptureWriter, builder: BlockBuilder, clocks: _Clocks) -> None:
    block = builder.seal()
    block.summary[6] |= clocks.ops  # records read from a file carry no op bits of their own
    writer.write(block)
