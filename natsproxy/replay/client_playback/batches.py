"""A capture as a replay to a server reads it: in strides, frame by frame only where a frame says something.

What is said frame by frame (`Step`): all that a client frame may wait for, or that names something.  The
rest, which is nearly all of a busy capture, comes as stretches: `PlainBatch`, neighbouring publishes that
need
nothing but their turn, and `ReceivedBatch`, messages that are nothing but counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from natsproxy.capture.format.records import Frames
from natsproxy.errors import CaptureError, ProtocolError
from natsproxy.replay.client_playback.bulk_scan import PLAIN, BulkScanner, BulkSearch
from natsproxy.replay.conversation.steps import Ended, Event, Step, scan, whole_frames
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, Op


class PlainBatch(NamedTuple):
    """Neighbouring publishes that name nothing.  seq: of the first one."""

    seq: int
    conn: int
    t: int
    data: bytes
    frames: int


class ReceivedBatch(NamedTuple):
    """Messages on a subscription that name nothing.  seq: of the first one."""

    seq: int
    conn: int
    t: int
    sid: bytes
    frames: int


Batch = Event | PlainBatch | ReceivedBatch


def batches(path: Path | str) -> Iterator[Batch]:
    """Yield the conversation of a capture in strides; the order is that of `events`.

    Raises CaptureError as `events` does.
    """
    cutter = _Cutter(path)
    for _, _, found in scan(path, cutter.cut):
        for batch in found:
            cutter.note(batch)
            yield batch


class _Cutter:
    """Cuts records into strides."""

    def __init__(self, path: Path | str) -> None:
        self._path = path
        self._needles = BulkSearch()
        self._ears: dict[int, BulkScanner] = {}

    def cut(self, item: Frames, seq: int, t: int) -> tuple[list[Batch], int]:
        """Return the strides of a record and the number of its frames."""
        return (self._sent if item.direction == C2S else self._received)(item, seq, t)

    def note(self, batch: Batch) -> None:
        """Learn from what was read: which subscriptions there are, what replies look like."""
        if isinstance(batch, Step) and batch.direction == C2S:
            frame = batch.frame
            if frame.op == Op.SUB:
                self._scanner(batch.conn).subscribed(frame.sid, frame.subject)
            elif frame.reply:
                self._needles.learn(frame.reply)
        elif isinstance(batch, Ended):
            self._ears.pop(batch.conn, None)

    def _scanner(self, conn: int) -> BulkScanner:
        found = self._ears.get(conn)
        if found is None:
            found = self._ears[conn] = BulkScanner(self._needles)
        return found

    def _sent(self, item: Frames, seq: int, t: int) -> tuple[list[Batch], int]:
        """Cut what a client sent: the publishes that it begins with, then frame by frame."""
        data = bytes(item.data)
        end, count = plain_publishes(data, self._needles)
        found: list[Batch] = [PlainBatch(seq, item.conn, t, data[:end], count)] if count else []
        for frame in whole_frames(data[end:], C2S, self._path) if end < len(data) else ():
            found.append(Step(seq + count, item.conn, t, C2S, frame))
            count += 1
        return found, count

    def _received(self, item: Frames, seq: int, t: int) -> tuple[list[Batch], int]:
        scanner, count = self._scanner(item.conn), 0
        found: list[Batch] = []
        try:
            for heard in scanner.scan(bytes(item.data)):
                if isinstance(heard, Frame):
                    found.append(Step(seq + count, item.conn, t, item.direction, heard))
                    count += 1
                else:
                    found.append(ReceivedBatch(seq + count, item.conn, t, *heard))
                    count += heard[1]
        except ProtocolError as error:
            raise CaptureError(f"a record that holds no NATS frames: {error}", path=self._path) from None
        if scanner.held:
            raise CaptureError("a record that holds no NATS frames: one is cut short", path=self._path)
        return found, count


def plain_publishes(data: bytes, search: BulkSearch) -> tuple[int, int]:
    """Return where the publishes that name nothing end, which `data` begins with, and how many they are."""
    at = count = 0
    match, size = search.plain.match, len(data)
    while (line := match(data, at)) is not None:
        end = line.end() + int(line[2]) + 2
        if end > size or data[end - 2 : end] != b"\r\n":
            break
        at = end
        count += 1
    return at, count


def subjects_of(data: bytes) -> set[bytes]:
    """Return the subjects of the publishes of a `PlainBatch`."""
    at, found = 0, set()
    while (line := PLAIN.match(data, at)) is not None:
        found.add(line[1])
        at = line.end() + int(line[2]) + 2
    return found
