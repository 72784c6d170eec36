"""The records of a fuzzed connection: which frames are in them, and that both builders and filters agree.

The plane writes into the compiled builder.  Its blocks are read again: what they hold must be the whole
frames of the stream, each once and with its ordinals.  The same records go through the pure builder, and
through both filters; the blocks must be alike.
"""

from __future__ import annotations

from typing import Any

from natsproxy.capture.filter.recording_filter import RecordingFilter, Selection
from natsproxy.capture.format.records import Frames
from natsproxy.capture.read.segment import decode_items
from natsproxy.capture.write import _builder_py
from natsproxy.capture.write.builder import BlockBuilder
from natsproxy.capture.write.first_tokens import MOST, parsed
from natsproxy.wire import _interest_py, _scanner_py
from natsproxy.wire.frames import NO_LIMIT, Run
from natsproxy.wire.ops import Direction


class Recording:
    """The builder that a plane records into, and the blocks that were taken out of it."""

    def __init__(self, plane: Any) -> None:
        self.builder = BlockBuilder()
        self.blocks: list[Any] = []
        self._plane = plane
        plane.set_builder(self.builder)
        plane.recorded = self.seal

    def add(self, direction: Direction, data: bytes, frames: int, ops: int, ordinal: int) -> None:
        """Record whole frames that the plane left to the session."""
        if not self.builder.begun:
            self.builder.begin(0, 0)
        self.builder.put(Frames(1, direction, data, frames, ops, ordinal, 0, ordinal, 0))

    def seal(self) -> None:
        """Take out what was recorded."""
        if self.builder.begun:
            self.blocks.append(self.builder.seal())

    def leave(self) -> None:
        """Record no more."""
        self.seal()
        self._plane.set_builder(None)

    def check(self, direction: Direction, whole: bytes, selection: Selection | None) -> None:
        """Compare what was recorded with the whole frames of the stream."""
        records = [record for block in self.blocks for record in same_block(block)]
        ordinal, data = 0, b""
        for record in records:
            assert (record.conn, record.direction, record.flags) == (1, direction, 0)
            assert (record.in_first, record.out_first) == (ordinal, ordinal), records
            assert record.in_t == record.out_t, record
            ordinal += record.frames
            data += record.data
        assert data == whole, (data, whole)
        if selection is not None:
            same_selection(selection, records)


def measured(data: bytes, direction: Direction) -> tuple[int, int]:
    """Return how many frames bytes are, and their ops, by the pure scanner."""
    scanner = _scanner_py.Scanner(
        direction, _interest_py.Interest(()), line_limit=1 << 20, hold=NO_LIMIT, buffer_limit=NO_LIMIT
    )
    scanner.feed(data)
    frames = ops = 0
    while isinstance(segment := scanner.next(), Run):
        frames, ops = frames + segment.frames, ops | segment.ops
    assert (segment, scanner.offset) == (None, len(data)), data
    return frames, ops


def same_block(block: Any) -> list[Frames]:
    """Return the records of a block; the pure builder makes the same block of them."""
    mono, wall = block.summary[:2]
    body = b"".join(block.buffers)
    pure = _builder_py.BlockBuilder()
    pure.begin(mono, wall)
    records, tokens = [], set()
    for item in decode_items(body, mono):
        assert isinstance(item, Frames)
        frames, ops = measured(bytes(item.data), item.direction)
        assert frames == item.frames, item
        records.append(item._replace(ops=ops))
        tokens |= parsed(bytes(item.data), item.direction, item.flags)
        pure.put(records[-1])
    other = pure.seal()
    assert body == b"".join(other.buffers), (body, other.buffers)
    assert block.summary[:9] == other.summary[:9], (block.summary, other.summary)
    known = len(tokens) <= MOST and all(len(token) <= MOST for token in tokens)
    assert block.summary[9] == (sorted(tokens) if known else None), (block.summary, tokens)
    return records


def same_selection(selection: Selection, records: list[Frames]) -> None:
    """Give records to both filters, each before its builder."""
    blocks = []
    for kind in (BlockBuilder, _builder_py.BlockBuilder):
        builder = kind(RecordingFilter(selection))
        for record in records:
            builder.begin(0, 0)
            builder.put(record)
        blocks.append(builder.seal())
    kept = [joined(block) for block in blocks]
    assert kept[0] == kept[1], kept
    facts = [(block.summary[5:7], block.summary[8]) for block in blocks]
    assert facts[0] == facts[1], facts


def joined(block: Any) -> list[Frames]:
    """Return the records of a block; neighbours that are parts of one run are put together."""
    found: list[Frames] = []
    for item in decode_items(b"".join(block.buffers), 0):
        assert isinstance(item, Frames)
        if found and follows(item, found[-1]):
            data = bytes(found[-1].data) + bytes(item.data)
            found[-1] = found[-1]._replace(data=data, frames=found[-1].frames + item.frames)
        else:
            found.append(item)
    return found


def follows(record: Frames, last: Frames) -> bool:
    """Tell whether a record is the next part of a run."""
    assert last.in_first is not None
    return not (record.flags or last.flags) and record.in_first == last.in_first + last.frames
