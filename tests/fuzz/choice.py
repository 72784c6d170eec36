"""How an input of the fuzzer is read, and the scanners that it chooses.

Its first byte chooses what `Choice` has, the second the number of cuts, then there are two bytes for the
place of each cut, then the stream.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from natsproxy.capture.filter.recording_filter import PayloadPolicy, Selection
from natsproxy.wire.frames import Body, Frame, Need, Run, Segment
from natsproxy.wire.interest import Clause
from natsproxy.wire.ops import ALL_OPS, MESSAGE_OPS, Direction, Op, op_mask

_MESSAGES: Final = op_mask(*MESSAGE_OPS)
WANTS: Final[tuple[tuple[Clause, ...], ...]] = (
    (),
    (Clause(_MESSAGES, Need.LINE, (b"a.*", b"b.>", b"*.c")),),
    (Clause(_MESSAGES, Need.PAYLOAD, (b">",), (b"a", b"FOO.>")),),
    (Clause(op_mask(Op.PING, Op.SUB, Op.OK)), Clause(_MESSAGES, Need.HEADERS, (b"FOO",))),
    (Clause(ALL_OPS, Need.PAYLOAD),),
)
_MOST_CUTS: Final = 8
RECORDING: Final = 0x80
SELECTIONS: Final = (
    None,
    Selection(subjects=(b"FOO.>", b"FOO", b"*.b")),
    Selection(payloads=(PayloadPolicy(b"FOO", "keep"), PayloadPolicy(b">", "truncate", 3))),
    Selection(
        subjects=(b"FOO", b"a.>"), payloads=(PayloadPolicy(b"FOO", "hash"), PayloadPolicy(b">", "drop"))
    ),
)


class Choice(NamedTuple):
    """How an input is read: by the bits of its first byte.

    watched: whether sids and subjects are watched.  selection: of the frames that are recorded.
    """

    direction: Direction
    watched: bool
    clauses: tuple[Clause, ...]
    selection: Selection | None
    recording: bool


def unpack(data: bytes) -> tuple[Choice, list[bytes]]:
    """Return what was chosen, and the pieces."""
    choice, cuts, stream = data[0], data[1] % (_MOST_CUTS + 1), data[2:]
    places = sorted(int.from_bytes(stream[2 * n : 2 * n + 2], "big") for n in range(cuts))
    stream = stream[2 * cuts :]
    if stream:
        places = sorted(place % len(stream) for place in places)
    ends = [*places, len(stream)]
    pieces = [stream[start:end] for start, end in zip([0, *places], ends, strict=True)]
    chosen = Choice(
        direction=Direction(choice & 1),
        watched=bool(choice & 2),
        clauses=WANTS[(choice >> 2 & 7) % len(WANTS)],
        selection=SELECTIONS[choice >> 5 & 3],
        recording=bool(choice & RECORDING),
    )
    return chosen, [piece for piece in pieces if piece]


def scanner(kind: Any, interest: Any, choice: Choice) -> Any:
    """Return a scanner that has small limits, and tables with something in them."""
    made = kind(choice.direction, interest(choice.clauses), line_limit=128, hold=64, buffer_limit=256)
    made.awaited = made.Table()
    if choice.watched and choice.direction:
        made.watch_sids[b"9"] = Need.LINE
        made.tallies[b"1"] = made.tallies[b"9"] = 0
    if choice.watched:
        made.watch_subjects[b"_INBOX.a"] = Need.PAYLOAD
        made.awaited[b"FOO"] = 0
    return made


def scan(one: Any, data: bytes) -> list[Segment]:
    """Feed a piece; return the segments."""
    one.feed(data)
    found: list[Segment] = []
    while (segment := one.next()) is not None:
        found.append(segment)
    return found


def ends_frame(segment: Segment) -> bool:
    """Return whether the last byte of a segment ends a frame."""
    if isinstance(segment, Frame):
        return not segment.missing
    return isinstance(segment, Run) or (isinstance(segment, Body) and segment.last)


def wanted(one: Any, frame: Frame) -> bool:
    """Return whether somebody wants a frame; others are told of when they are not whole."""
    watched = one.watch_subjects.get(frame.subject, 0)
    if one.direction:
        watched = max(watched, one.watch_sids.get(frame.sid, 0))
    return bool(one.interest.need(frame.op, frame.subject) or (watched and frame.op in MESSAGE_OPS))
