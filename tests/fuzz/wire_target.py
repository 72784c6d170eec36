"""The target on the wire: any bytes, cut anywhere, to three readers that must agree.

The compiled scanner and the pure one give the same segments, and the same counters and tables.  The native
plane, between two sockets, passes on what the pure scanner covers, and lets the same wanted frames be seen.
Where it records, the capture has each whole frame of the stream once (`recording.py`).
"""

from __future__ import annotations

from typing import Any

from natsproxy.net import _plane  # type: ignore[attr-defined, unused-ignore]
from natsproxy.wire import _interest_py, _scanner_py
from natsproxy.wire.frames import Frame, FramingFault, Malformed, Run, Segment
from natsproxy.wire.scanner import Interest, Scanner
from tests.fuzz.choice import Choice, ends_frame, scan, scanner, unpack, wanted
from tests.fuzz.ride import KNOWN, Ride


def rows(segments: list[Segment]) -> list[Any]:
    """Return segments in a form that does not depend on their buffers."""
    found: list[Any] = []
    for one in segments:
        raw = one.buffer[one.start : one.end]
        if isinstance(one, Run):
            found.append(("run", raw, one.frames, one.ops))
        elif isinstance(one, Frame):
            found.append(("frame", raw, one.line_end - one.start, *one[4:]))
        elif isinstance(one, Malformed):
            found.append(("malformed", one.fault, one.offset, one.streaming))
        else:
            found.append((type(one).__name__, raw, getattr(one, "last", None)))
    return found


def state(one: Any) -> tuple[Any, ...]:
    """Return what a scanner has counted."""
    tables = (dict(one.tallies.items()), list(one.awaited))
    return one.ordinal, one.offset, list(one.counts), one.odd, one.mid_frame, one.held, tables


def unknown(lines: list[bytes]) -> list[bytes]:
    """Return the control lines of the frames on which the plane knows no decision."""
    return [line for line in lines if not line.startswith(KNOWN)]


def pure_scanner(choice: Choice) -> Any:
    """Return the scanner in Python."""
    return scanner(_scanner_py.Scanner, _interest_py.Interest, choice)


def same_segments(choice: Choice, pieces: list[bytes]) -> None:
    """Compare the scanners."""
    compiled, pure = scanner(Scanner, Interest, choice), pure_scanner(choice)
    for piece in pieces:
        one, other = rows(scan(compiled, piece)), rows(scan(pure, piece))
        assert one == other, (one, other)
        assert state(compiled) == state(pure), (state(compiled), state(pure))


class Covered:
    """What the pure scanner makes of the pieces.

    data: the bytes of its segments.  whole: how many of them are whole frames.  between: how many, up to the
    last end of a piece that is known to be between two frames.  seen, bad: as in `Ride`.
    """

    def __init__(self, choice: Choice) -> None:
        self.one = pure_scanner(choice)
        self.data = bytearray()
        self.whole = self.between = 0
        self.seen: list[bytes] = []
        self.bad: Malformed | None = None

    def take(self, piece: bytes) -> None:
        """Scan a piece."""
        for segment in scan(self.one, piece):
            if isinstance(segment, Malformed):
                self.bad = segment
                break
            self.data += segment.buffer[segment.start : segment.end]
            if isinstance(segment, Frame) and wanted(self.one, segment):
                self.seen.append(segment.line)
            if ends_frame(segment):
                self.whole = len(self.data)
        if self.one.idle:
            self.between = len(self.data)


def same_passage(plane: Any, choice: Choice, pieces: list[bytes]) -> None:
    """Compare what the plane passes, and records, with what the pure scanner covers."""
    covered, ride = Covered(choice), Ride(plane, choice)
    arrived = bytearray()
    try:
        for piece in pieces:
            covered.take(piece)
            arrived += ride.run(piece)
        ride.catch_up()
    finally:
        ride.leave()
    same_bytes(covered, b"".join(pieces), arrived)
    same_findings(covered, ride)
    if covered.bad is None and ride.bad is None and covered.one.idle:
        # What ends in a frame may have been passed on, and counted, as it came.
        assert arrived == covered.data
        assert state(ride.one) == state(covered.one), (state(ride.one), state(covered.one))
    if ride.recording is not None:
        ride.recording.check(choice.direction, bytes(covered.data[: covered.whole]), choice.selection)


def same_bytes(covered: Covered, stream: bytes, arrived: bytearray) -> None:
    """Compare what arrived with what was covered."""
    # A frame on which the plane knows a decision may wait for its end.
    waits = not covered.one.idle and any(known in covered.data[covered.between :] for known in KNOWN)
    least = covered.data[: covered.between] if waits else covered.data
    assert arrived[: len(least)] == least, (arrived, least)
    assert stream.startswith(arrived), (arrived, stream)


def same_findings(covered: Covered, ride: Ride) -> None:
    """Compare the frames that were seen, and where the stream ends that cannot be framed."""
    looked_at, wanted_lines = unknown(ride.seen), unknown(covered.seen)
    bad = covered.bad
    if ride.bad is not None and ride.bad.streaming and not (bad is not None and bad.streaming):
        # Of a frame whose end is wrong, the headers may be looked at before the end has come.
        looked_at = looked_at[: len(wanted_lines)]
    assert looked_at == wanted_lines, (ride.seen, covered.seen)
    if ride.bad is not None and (bad is None or ride.bad.streaming):
        # The end of a frame that went on as it came is wrong at its first byte; a line that was kept in
        # pieces is looked at once it is whole.
        assert bad.fault == ride.bad.fault if bad is not None else not covered.one.idle
    elif bad is not None:
        assert ride.bad is not None
        # A line that is kept in pieces may be too long before something else in it is seen.
        late = FramingFault.LINE_TOO_LONG in (bad.fault, ride.bad.fault)
        assert late or (bad.fault, bad.offset) == (ride.bad.fault, ride.bad.offset), (bad, ride.bad)


def new_plane() -> Any:
    """Return a native plane for many inputs; it leaves the records of large frames to their sessions."""
    plane = _plane.Plane(0, 1 << 20, 256)
    plane.recorded = lambda: None
    return plane


def one_input(plane: Any, data: bytes) -> None:
    """Try one input."""
    if len(data) > 2:
        choice, pieces = unpack(data)
        same_segments(choice, pieces)
        same_passage(plane, choice, pieces)
