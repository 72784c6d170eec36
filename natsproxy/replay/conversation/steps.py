"""The steps of a capture: the frames of each client connection, in recording order.

Steps show the client leg.  A client frame counts as it arrived at the proxy, a server frame as it left for
the client.  Frames that rules made for the server, or dropped on the way to the client, are left out.

The recording order respects causality: one loop recorded each read before it handled the next one.  Several
runs come by time.  The capture is read block by block, so memory follows the block and not the capture.

Frames whose payload a recording policy withheld cannot be played; the CaptureError names the file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from natsproxy import close_reasons
from natsproxy.capture.filter.filters import NO_FILTERS, Filters
from natsproxy.capture.filter.scrub import Scrubber
from natsproxy.capture.format import records
from natsproxy.capture.format.connection import ConnectionId
from natsproxy.capture.format.records import Flags
from natsproxy.capture.read.reader import CaptureReader, open_capture
from natsproxy.capture.read.runs import CaptureRun
from natsproxy.capture.read.segment import BlockRef
from natsproxy.errors import CaptureError, ConfigError, ProtocolError
from natsproxy.replay.conversation.match_options import Given, read
from natsproxy.wire import parse
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, Direction, Op

PUBLISHES: Final = (Op.PUB, Op.HPUB)
_UNPLAYABLE: Final = Flags.TRUNCATED | Flags.PAYLOAD


class Step(NamedTuple):
    """One frame that a client sent or received.  seq: its number; t: ns since the capture's first item."""

    seq: int
    conn: ConnectionId
    t: int
    direction: Direction
    frame: Frame


class Began(NamedTuple):
    """A connection was accepted; late: it was open before the capture began, its live SUBs follow."""

    conn: ConnectionId
    t: int
    late: bool = False


class Ended(NamedTuple):
    """A connection ended; cause: one of `close_reasons.py`."""

    conn: ConnectionId
    t: int
    cause: str


Event = Step | Began | Ended
S = TypeVar("S")


def stored_options(path: Path | str) -> Given:
    """Return the options of the comparison that were given while a capture was recorded.

    Raises CaptureError where they cannot be read.
    """
    segment = next(open_capture(path).segments(), None)
    given = {} if segment is None else segment.settings.get("cassette") or {}
    try:
        found = read(given)
        if any(not one.kept for one in (*found.get("match_as", ()), *found.get("match_command", ()))):
            why = "it names a program to run: give match_command yourself if you trust it"
            raise CaptureError(why, path=path)
        return found
    except (ConfigError, AttributeError, TypeError) as error:
        raise CaptureError(f"its options cannot be read: {error}", path=path) from None


def events(path: Path | str, filters: Filters = NO_FILTERS) -> Iterator[Event]:
    """Yield the conversation of a capture, without filtered values.

    A function that scrubs payloads is not called: it was, when they were recorded.
    Raises CaptureError for a file that is no capture, is damaged, or has payloads withheld by a policy.
    """
    filters = filters.of_recorded()
    scrubber = Scrubber(filters) if filters else None
    for _, _, found in walk(path):
        for event in found:
            if scrubber is not None and isinstance(event, Step):
                event = event._replace(frame=scrubber.seen(event.frame, event.direction))
            yield event


def walk(path: Path | str) -> Iterator[tuple[BlockRef, records.Item, list[Event]]]:
    """Yield each item of a capture with the events that it holds.

    Raises CaptureError as `events` does.
    """

    def singly(conn: ConnectionId, item: records.Frames, seq: int, t: int) -> tuple[list[Step], int]:
        steps = [
            Step(seq + n, conn, t, item.direction, frame)
            for n, frame in enumerate(whole_frames(item.data, item.direction, path))
        ]
        return steps, len(steps)

    return scan(path, singly)


def scan(
    path: Path | str, cut: Callable[[ConnectionId, records.Frames, int, int], tuple[list[S], int]]
) -> Iterator[tuple[BlockRef, records.Item, list[S | Step | Began | Ended]]]:
    """Yield each item of a capture with its events; `cut(conn, record, seq, t)` makes the events of records.

    `cut` returns them with the number of frames that they stand for.  Of several runs, the end of one is the
    end of its connections: their proxy was killed, or the next recorder has them under other numbers.
    """
    first: int | None = None
    seq = 0
    seen: defaultdict[int, set[ConnectionId]] = defaultdict(set)  # the connections that are open, by run
    for ref, item, is_last in _items(open_capture(path)):
        conn, run, t = ref.connection(item), ref.segment.run, ref.wall(item.t)
        first = t if first is None else first
        t -= first
        found: list[S | Step | Began | Ended] = []
        if conn is None:
            pass
        elif isinstance(item, records.Frames):
            if _plays(item, path):
                cuts, count = cut(conn, item, seq, t)
                found += cuts
                seq += count
        elif isinstance(item, records.OpenRecord):
            seen[run].add(conn)
            found.append(Began(conn, t))
        elif isinstance(item, records.CloseRecord):
            seen[run].discard(conn)
            found.append(Ended(conn, t, item.cause))
        # Each segment of a capture repeats the preambles of open connections: only the first is news.
        elif isinstance(item, records.Preamble) and conn not in seen[run]:
            seen[run].add(conn)
            found.append(Began(conn, t, late=True))
            try:
                found += _preamble(conn, item, t, seq)
            except (ProtocolError, TypeError, ValueError) as error:
                raise CaptureError(f"a preamble cannot be read: {error}", path=path) from None
            seq += len(found) - 1
        if is_last:
            found += [Ended(one, t, close_reasons.DRAINED) for one in sorted(seen.pop(run, ()))]
        yield ref, item, found


def _items(reader: CaptureReader) -> Iterator[tuple[BlockRef, records.Item, bool]]:
    """Yield the items of a capture by time; of several runs, True with the last one of each."""
    if len(reader.runs) == 1:
        return ((ref, item, False) for ref, item in reader.items())

    def of_run(run: CaptureRun) -> Iterator[tuple[BlockRef, records.Item, bool]]:
        held: tuple[BlockRef, records.Item] | None = None
        for following in reader.items_of(run):
            if held is not None:
                yield *held, False
            held = following
        if held is not None:
            yield *held, True

    return reader.by_time(of_run, lambda found: found[0].wall(found[1].t))


def _plays(item: records.Frames, path: Path | str) -> bool:
    """Return whether a record holds frames that a client sent or received."""
    ordinal = item.in_first if item.direction == C2S else item.out_first
    if not item.flags:  # nearly always, and combinations of flags are slow
        return ordinal is not None
    if ordinal is None or item.flags & Flags.CUT:
        return False
    if item.flags & _UNPLAYABLE:
        raise CaptureError(
            "payloads were withheld when it was recorded (a payload policy or record_frame_max): "
            "record with payloads kept to replay",
            path=path,
        )
    return True


def whole_frames(data: bytes | memoryview, direction: Direction, path: Path | str) -> Iterator[Frame]:
    """Yield the frames of a record.  Raises CaptureError where the bytes are not NATS."""
    try:
        yield from parse.frames(bytes(data), direction)
    except ProtocolError as error:
        raise CaptureError(f"a record holds no NATS frames: {error}", path=path) from None


def preamble_frames(item: records.Preamble) -> Iterator[Frame]:
    """Yield what a preamble stands for: the CONNECT of its connection, and a SUB for each live subscription.

    Raises ProtocolError, TypeError or ValueError where it cannot be read.
    """
    data = bytes(item.info.get("connect") or b"")
    for sid, subject, queue, *_ in item.info.get("subs") or ():
        fields = [
            field.encode() if isinstance(field, str) else bytes(field or b"")
            for field in (subject, queue, sid)
        ]
        data += b"SUB " + b" ".join(field for field in fields if field) + b"\r\n"
    yield from parse.frames(data, C2S)


def _preamble(conn: ConnectionId, item: records.Preamble, t: int, seq: int) -> Iterator[Step]:
    """Yield the state of a connection that was open already as if just sent."""
    for frame in preamble_frames(item):
        yield Step(seq, conn, t, C2S, frame)
        seq += 1
