"""A capture in batches: what the playback of clients reads.

A frame comes alone (`Step`) where a client frame may wait for it, or where it names something (an inbox, a
consumer).  All other frames, nearly all of a busy capture, come in batches: `PlainBatch`, neighbouring
publishes that require nothing but their order, and `ReceivedBatch`, messages that are only counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from natsproxy.capture.format.connection import ConnectionId
from natsproxy.capture.format.records import Frames
from natsproxy.errors import CaptureError, ProtocolError
from natsproxy.replay.client_playback.bulk_scan import PLAIN, BulkScanner, BulkSearch
from natsproxy.replay.conversation.steps import Ended, Event, Step, scan, whole_frames
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, Op


class PlainBatch(NamedTuple):
    """Neighbouring publishes without a reply.  seq: of the first one; t: ns."""

    seq: int
    conn: ConnectionId
    t: int
    data: bytes
    frames: int


class ReceivedBatch(NamedTuple):
    """Messages on a subscription that are only counted.  seq: of the first one; t: ns."""

    seq: int
    conn: ConnectionId
    t: int
    sid: bytes
    frames: int


Batch = Event | PlainBatch | ReceivedBatch


def batches(path: Path | str) -> Iterator[Batch]:
    """Yield the conversation of a capture in batches; the order is that of `events`.

    Raises CaptureError as `events` does.
    """
    cutter = _Cutter(path)
    for _, _, found in scan(path, cutter.cut):
        for batch in found:
            cutter.note(batch)
            yield batch


class _Cutter:
    """Cuts records into batches."""

    def __init__(self, path: Path | str) -> None:
        self._path = path
        self._search = BulkSearch()
        self._scanners: dict[ConnectionId, BulkScanner] = {}

    def cut(self, conn: ConnectionId, item: Frames, seq: int, t: int) -> tuple[list[Batch], int]:
        """Return the batches of a record and the number of its frames."""
        return (self._sent if item.direction == C2S else self._received)(conn, item, seq, t)

    def note(self, batch: Batch) -> None:
        """Learn the subscriptions and the reply prefixes of a batch."""
        if isinstance(batch, Step) and batch.direction == C2S:
            frame = batch.frame
            if frame.op == Op.SUB:  # before its messages: the scanner decides by sid how to count
                self._scanner(batch.conn).subscribed(frame.sid, frame.subject)
            elif frame.reply:
                self._search.learn(frame.reply)
        elif isinstance(batch, Ended):
            self._scanners.pop(batch.conn, None)

    def _scanner(self, conn: ConnectionId) -> BulkScanner:
        found = self._scanners.get(conn)
        if found is None:
            found = self._scanners[conn] = BulkScanner(self._search)
        return found

    def _sent(self, conn: ConnectionId, item: Frames, seq: int, t: int) -> tuple[list[Batch], int]:
        """Cut client frames: the plain publishes at the beginning, then frame by frame."""
        data = bytes(item.data)
        end, count = plain_publishes(data, self._search)
        found: list[Batch] = [PlainBatch(seq, conn, t, data[:end], count)] if count else []
        for frame in whole_frames(data[end:], C2S, self._path) if end < len(data) else ():
            found.append(Step(seq + count, conn, t, C2S, frame))
            count += 1
        return found, count

    def _received(self, conn: ConnectionId, item: Frames, seq: int, t: int) -> tuple[list[Batch], int]:
        scanner, count = self._scanner(conn), 0
        found: list[Batch] = []
        try:
            for part in scanner.scan(bytes(item.data)):
                if isinstance(part, Frame):
                    found.append(Step(seq + count, conn, t, item.direction, part))
                    count += 1
                else:
                    found.append(ReceivedBatch(seq + count, conn, t, *part))
                    count += part[1]
        except ProtocolError as error:
            raise CaptureError(f"a record holds no NATS frames: {error}", path=self._path) from None
        if scanner.held:
            raise CaptureError("a record holds no NATS frames: the last is cut", path=self._path)
        return found, count


def plain_publishes(data: bytes, search: BulkSearch) -> tuple[int, int]:
    """Return the end of the plain publishes that `data` begins with, and their number."""
    at = count = 0
    match, size = search.plain.match, len(data)
    while (line := match(data, at)) is not None:
        end = line.end() + int(line[2]) + 2
        if end > size or data[end - 2 : end] != b"\r\n":  # the parser reports the damage
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
