"""Both scanners against the table, against each other, and against whatever bytes there are."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, MutableMapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.wire import _input_py, _interest_py, _scanner_py, awaited
from natsproxy.wire.frames import Body, Frame, Malformed, Need, Opaque, Run, Segment
from natsproxy.wire.interest import Clause
from natsproxy.wire.ops import ALL_OPS, C2S, MESSAGE_OPS, S2C, Direction, Op, op_mask
from natsproxy.wire.scanner import COMPILED, Interest, Scanner
from tests.wire.cases import BAD, GOOD, Bad, Good

TWINS: dict[str, tuple[Any, Any]] = {"pure": (_interest_py.Interest, _scanner_py.Scanner)}
if COMPILED:
    TWINS["compiled"] = (Interest, Scanner)

ALL = (Clause(ALL_OPS, Need.PAYLOAD),)
twins = pytest.mark.parametrize("twin", TWINS)


@pytest.mark.skipif(not COMPILED, reason="not compiled")
def test_the_compiled_op_numbers_are_those_of_the_table() -> None:
    numbers = pytest.importorskip("natsproxy.wire._scanner").OP_NUMBERS
    assert {name: Op[name].value for name in numbers} == numbers


def test_the_compiled_bounds_of_awaited_answers_are_those_of_the_module() -> None:
    compiled = pytest.importorskip("natsproxy.wire._scanner").AWAITED
    assert compiled == (awaited.MOST, awaited.FORGOTTEN, awaited.LONGEST)


def scan(
    twin: str,
    direction: Direction,
    pieces: Iterable[bytes],
    clauses: tuple[Clause, ...] = (),
    table: MutableMapping[bytes, int] | None = None,
    **options: Any,
) -> tuple[Any, list[Segment]]:
    """Feed pieces to a fresh scanner; return it and all its segments."""
    interest, scanner_type = TWINS[twin]
    scanner = scanner_type(direction, interest(clauses), **options)
    scanner.awaited = table
    found: list[Segment] = []
    for piece in pieces:
        scanner.feed(piece)
        while (segment := scanner.next()) is not None:
            found.append(segment)
    return scanner, found


@twins
def test_a_read_is_let_go_once_its_last_frame_is_taken(twin: str) -> None:
    data = bytes(bytearray(b"PUB a 5\r\nhello\r\n"))
    before = sys.getrefcount(data)
    scanner, found = scan(twin, C2S, [data])
    assert len(found) == 1
    found.clear()
    assert sys.getrefcount(data) == before
    assert (scanner.idle, scanner.offset, scanner.held) == (True, len(data), 0)


def cut(data: bytes, rng: random.Random, most: int = 8) -> list[bytes]:
    """Cut data at random places."""
    points = sorted(rng.randint(0, len(data)) for _ in range(rng.randint(0, most)))
    return [data[start:end] for start, end in zip([0, *points], [*points, len(data)], strict=True)]


def covered(segments: Iterable[Segment]) -> bytes:
    """Return the bytes that segments cover."""
    return b"".join(s.buffer[s.start : s.end] for s in segments if not isinstance(s, Malformed))


def normal(segments: Iterable[Segment]) -> list[Any]:
    """Return segments in a form that does not depend on buffers."""
    rows: list[Any] = []
    for s in segments:
        raw = s.buffer[s.start : s.end]
        if isinstance(s, Run):
            rows.append(("run", raw, s.frames, s.ops))
        elif isinstance(s, Frame):
            rows.append(("frame", raw, s.line_end - s.start, *s[4:]))
        elif isinstance(s, Malformed):
            rows.append(("bad", s.fault, s.offset, s.streaming))
        else:
            rows.append((type(s).__name__, raw, getattr(s, "last", None)))
    return rows


@twins
@pytest.mark.parametrize("case", GOOD, ids=lambda case: case.name)
def test_each_frame_whole_byte_by_byte_and_with_company(twin: str, case: Good) -> None:
    """The fields are those of the table however the bytes come."""
    company = b"PING\r\n"
    for pieces in (
        [case.raw],
        [case.raw[i : i + 1] for i in range(len(case.raw))],
        [company + case.raw + company],
    ):
        _, segments = scan(twin, case.direction, pieces, ALL)
        frames = [s for s in segments if isinstance(s, Frame)]
        (frame,) = [f for f in frames if f.raw == case.raw] if case.op != Op.PING else frames[:1]
        assert covered(segments) == b"".join(pieces)
        assert frame.op is case.op
        got = {name: getattr(frame, name) for name in case.fields}
        assert got == case.fields
        empty = {"subject", "reply", "sid", "queue", "args"} - case.fields.keys()
        assert all(getattr(frame, name) == b"" for name in empty)
        assert frame.missing == 0


@twins
@pytest.mark.parametrize("case", BAD, ids=lambda case: case.name)
def test_each_bad_stream_ends_where_the_server_ends_it(twin: str, case: Bad) -> None:
    """What came before passes; the fault and the byte are the server's; nothing comes after."""
    before = b"PUB a 1\r\nx\r\n"
    for pieces in ([before + case.raw], [before, *(case.raw[i : i + 1] for i in range(len(case.raw)))]):
        scanner, segments = scan(twin, C2S, [*pieces, b"PUB evil 1\r\nx\r\n"])
        last = segments[-1]
        assert isinstance(last, Malformed)
        assert last.fault is case.fault
        assert covered(segments) == before
        if case.end:
            assert last.offset == len(before) + case.end - 1
        scanner.feed(b"PING\r\n")
        assert scanner.next() is None


@twins
def test_unknown_server_op_makes_the_rest_opaque(twin: str) -> None:
    """The frames before it are framed, all bytes pass."""
    data = b"MSG a 1 1\r\nx\r\nHMSG FOO.BAR 34 45\r\n"
    _, segments = scan(twin, S2C, [b"+OK\r\nNEW 1\r\n", b"PING\r\n"])
    assert normal(segments) == [
        ("run", b"+OK\r\n", 1, Op.OK.bit),
        ("Opaque", b"NEW 1\r\n", None),
        ("Opaque", b"PING\r\n", None),
    ]

    _, segments = scan(twin, S2C, [data])  # the documents' HMSG without a sid
    assert isinstance(segments[-1], Malformed)


@twins
def test_a_large_frame_streams_when_nobody_needs_its_payload(twin: str) -> None:
    """Held up to `hold`, streamed beyond; memory stays small; the terminator is checked."""
    payload = b"z" * 5_000
    frame = b"PUB big 5000\r\n" + payload + b"\r\n"
    scanner, segments = scan(twin, C2S, [frame[i : i + 7] for i in range(0, len(frame), 7)], hold=1_000)

    assert isinstance(segments[0], Frame)
    assert segments[0].missing > 0
    assert all(isinstance(s, Body) for s in segments[1:])
    assert covered(segments) == frame
    assert isinstance(segments[-1], Body)
    assert segments[-1].last
    assert not scanner.mid_frame

    _, segments = scan(twin, C2S, [frame[:-2], b"\rX"], hold=1_000)
    assert isinstance(segments[-1], Malformed)
    assert segments[-1].streaming


@twins
def test_needs_are_met(twin: str) -> None:
    """A line streams, headers come with their block, a payload is whole; beyond buffer_limit it is short."""
    block = b"NATS/1.0\r\nA: b\r\n\r\n"
    frame = b"HPUB x %d 3000\r\n" % len(block) + block + b"p" * (3000 - len(block)) + b"\r\n"
    pieces = [frame[i : i + 10] for i in range(0, len(frame), 10)]
    for need, least in ((Need.LINE, 16), (Need.HEADERS, 16 + len(block)), (Need.PAYLOAD, len(frame))):
        _, segments = scan(twin, C2S, pieces, (Clause(ALL_OPS, need),), hold=10)
        first = segments[0]
        assert isinstance(first, Frame)
        assert first.end - first.start >= least
        assert not first.short
        assert covered(segments) == frame

    _, segments = scan(twin, C2S, pieces, ALL, hold=10, buffer_limit=100)
    assert isinstance(segments[0], Frame)
    assert segments[0].short
    assert covered(segments) == frame


@twins
@pytest.mark.parametrize("clauses", [(), ALL])
def test_unwanted_payloads_are_not_held(twin: str, clauses: tuple[Clause, ...]) -> None:
    interest, scanner_type = TWINS[twin]
    scanner = scanner_type(C2S, interest(clauses))
    scanner.max_payload = 10
    scanner.feed(b"PUB a 10\r\n0123456789\r\nHPUB a 9 11\r\n")
    whole, large = scanner.next(), scanner.next()
    assert isinstance(whole, Frame if clauses else Run)
    assert isinstance(large, Frame)
    assert (large.end - large.start, large.size, large.missing) == (13, 11, 13)
    scanner.feed(b"NATS")
    assert isinstance(scanner.next(), Body)


@twins
def test_deliveries_on_a_sid_are_counted_wanted_or_not(twin: str) -> None:
    """Tallies hold the message frames of their sids, but for the core's own 503."""
    interest, scanner_type = TWINS[twin]
    nobody, status = b"NATS/1.0 503\r\n\r\n", b"NATS/1.0 408 Gone\r\n\r\n"
    data = (
        b"MSG a 1 1\r\nx\r\nMSG wanted  1 1\r\nx\r\nmsg a 2 r 0\r\n\r\n+OK\r\n"
        + b"HMSG a 1 %d %d\r\n%s\r\n" % (len(nobody), len(nobody), nobody)
        + b"HMSG a 1 r %d %d\r\n%s\r\n" % (len(nobody), len(nobody), nobody)
        + b"HMSG a 1 %d %d\r\n%s\r\n" % (len(status), len(status), status)
        + b"MSG a 1 12\r\n12345678 503\r\n"
    )
    for step in (len(data), 7, 1):
        scanner = scanner_type(S2C, interest((Clause(op_mask(Op.MSG), Need.LINE, (b"wanted",)),)))
        scanner.tallies[b"1"] = scanner.tallies[b"3"] = 0
        for start in range(0, len(data), step):
            scanner.feed(data[start : start + step])
            while scanner.next() is not None:
                pass
        assert scanner.tallies == {b"1": 5, b"3": 0}, step


@twins
@pytest.mark.parametrize("clauses", [(), ALL])
def test_reply_subjects_are_awaited_until_the_first_message(twin: str, clauses: tuple[Clause, ...]) -> None:
    """Runs stay runs; pulls, acknowledgements and endless subjects are left out."""
    interest, scanner_type = TWINS[twin]
    empty, head = b" 0\r\n\r\n", b" 12 12\r\nNATS/1.0\r\n\r\n\r\n"
    sent = (
        b"PUB a"
        + empty
        + b"PUB a r.1"
        + empty
        + b"hpub  b\tr.2 "
        + head
        + b"HPUB b"
        + head
        + b"PUB $JS.API.CONSUMER.MSG.NEXT.S.C r.3"
        + empty
        + b"PUB x.$JS.hub.API.CONSUMER.MSG.NEXT.S.C r.4"
        + empty
        + b"PUB $JS.ACK.S.C.1.2.3.4.5 r.5"
        + empty
        + b"PUB a "
        + b"r" * (awaited.LONGEST + 1)
        + empty
        + b"PUB .CONSUMER.MSG.NEXT r.6"
        + empty
        + b"PUB $JS.ACK r.7"
        + empty
        + b"SUB r.8 1\r\nPING\r\n"
    )
    received = b"MSG r.2 1 r.6" + empty + b"MSG r.11 1" + empty + b"hmsg r.7 1" + head + b"+OK\r\n"
    for step in (len(sent), 7, 1):
        pair = [scanner_type(direction, interest(clauses)) for direction in (C2S, S2C)]
        table = pair[0].Table()
        pair[0].awaited = pair[1].awaited = table
        segments = []
        for scanner, data, left in zip(
            pair, (sent, received), ([b"r.1", b"r.2", b"r.6", b"r.7"], [b"r.1", b"r.6"]), strict=True
        ):
            for start in range(0, len(data), step):
                scanner.feed(data[start : start + step])
                while (segment := scanner.next()) is not None:
                    segments.append(segment)
                    scanner.untake(scanner.more(3)[1:])
            assert list(table) == left
        if not clauses and step == len(sent):
            assert [type(segment) for segment in segments] == [Run, Run]


class Told:
    """A meter that keeps what it is told, but for requests that are of no interest to it."""

    def __init__(self) -> None:
        self.now = 0
        self.requests: list[bytes] = []
        self.answers: list[tuple[int, bool]] = []

    def requested(self, subject: bytes) -> int:
        if subject == b"no":
            return 0
        self.requests.append(subject)
        return len(self.requests)

    def answered(self, ticket: int, *, no_responders: bool) -> None:
        self.answers.append((ticket, no_responders))


def test_a_meter_is_told_of_each_request_once_and_of_its_first_answer() -> None:
    """In the pure twin; `test_metrics.py` has the compiled one, whose meters are compiled."""
    head = b" 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"
    sent = b"PUB a r.1 0\r\n\r\nPUB a r.1 0\r\n\r\nPUB no r.2 0\r\n\r\nPUB b 0\r\n\r\nPUB c r.3 0\r\n\r\n"
    received = b"MSG r.1 1 0\r\n\r\nMSG r.1 1 0\r\n\r\nMSG r.2 1 0\r\n\r\nHMSG r.3 1" + head
    for clauses in ((), ALL):
        for step in (len(sent), 5):
            meter, table = Told(), dict[bytes, int]()
            for direction, data in ((C2S, sent), (S2C, received)):
                scanner = _scanner_py.Scanner(direction, _interest_py.Interest(clauses))
                scanner.awaited, scanner.meter = table, meter
                for start in range(0, len(data), step):
                    scanner.feed(data[start : start + step])
                    while scanner.next() is not None:
                        scanner.untake(scanner.more(3)[1:])
            assert meter.requests == [b"a", b"c"]
            assert meter.answers == [(1, False), (2, True)]


@twins
def test_a_full_table_of_awaited_answers_forgets_the_oldest(twin: str) -> None:
    scanner = TWINS[twin][1](C2S, TWINS[twin][0]())
    table = scanner.Table()
    scanner.awaited = table
    data = b"".join(b"PUB a r.%d 0\r\n\r\n" % n for n in range(5 * awaited.MOST))
    scanner.feed(data)
    assert isinstance(scanner.next(), Run)
    assert awaited.MOST - awaited.FORGOTTEN <= len(table) <= awaited.MOST
    assert list(table) == [b"r.%d" % n for n in range(5 * awaited.MOST - len(table), 5 * awaited.MOST)]


@twins
def test_watches(twin: str) -> None:
    """Ops, sids and subjects can be watched for one connection, from the next segment on."""
    interest, scanner_type = TWINS[twin]
    scanner = scanner_type(S2C, interest())
    data = b"MSG a 1 1\r\nx\r\nMSG b 2 1\r\ny\r\n+OK\r\n"
    scanner.watch_sids[b"2"] = Need.LINE
    scanner.feed(data)
    assert normal([scanner.next(), scanner.next(), scanner.next()])[1][1] == b"MSG b 2 1\r\ny\r\n"
    scanner.watch_sids.clear()
    scanner.watch_subjects[b"a"] = Need.LINE
    scanner.watch_ops = Op.OK.bit
    scanner.feed(data)
    rows = normal([scanner.next(), scanner.next(), scanner.next()])
    assert [row[0] for row in rows] == ["frame", "run", "frame"]
    assert scanner.ordinal == 6
    assert scanner.counts[Op.MSG] == 4


@twins
@pytest.mark.parametrize(
    ("direction", "data", "odd"),
    [
        (C2S, b"PUB a 1\r\nx\r\nPING\r\nping \t\n+OK \r\nSUB $SYSTEM 1\r\nPUB $SYS 0\r\n\r\n", False),
        (S2C, b"+OK\r\nMSG a 1 5\r\n$SYS.\r\nINFO {}\r\n", False),
        (C2S, b"PUB a 1\r\nx\r\nPUB $SYS.a 1\r\nx\r\n", True),
        (C2S, b"HPUB $SYS.a r 12 12\r\nNATS/1.0\r\n\r\n\r\n", True),
        (C2S, b"pub  $SYS.a 9\r\nx", True),
        (S2C, b"MSG $SYS.a 1 1\r\nx\r\n", True),
        (S2C, b"HMSG $SYS.a 1 12 12\r\nNATS/1.0\r\n\r\n\r\n", True),
        (C2S, b"PUB a 1\r\nx\r\nPINGx\r\n", True),
        (C2S, b"PONG {}\n", True),
        (S2C, b"+OK\r\n+OK a\r\n", True),
    ],
)
def test_odd_frames_are_noticed_wanted_or_not(
    twin: str, direction: Direction, data: bytes, odd: bool
) -> None:
    for clauses in ((), ALL, (Clause(ALL_OPS, Need.LINE),)):
        scanner, _ = scan(twin, direction, [data], clauses, hold=0, buffer_limit=0)
        assert scanner.odd == odd
    if direction == C2S:  # taken together with neighbours
        scanner = TWINS[twin][1](direction, TWINS[twin][0](ALL))
        scanner.feed(data)
        assert scanner.next() is not None or odd
        scanner.more(9)
        while scanner.next() is not None:
            pass
        assert scanner.odd == odd


_TOKENS = st.sampled_from([b"a", b"b", b"c", b"*", b">", b"x*", b""])
_SUBJECTS = st.lists(_TOKENS, min_size=1, max_size=4).map(b".".join)
_PATTERNS = st.lists(
    st.lists(st.sampled_from([b"a", b"b", b"c", b"*", b"x*"]), min_size=1, max_size=4).map(b".".join)
    | st.lists(st.sampled_from([b"a", b"b", b"*"]), max_size=3).map(lambda t: b".".join([*t, b">"])),
    max_size=6,
).map(tuple)


def naive(pattern: bytes, subject: bytes) -> bool:
    """The server's matching, spelt out."""
    p, s = pattern.split(b"."), subject.split(b".")
    if b"" in s:
        return False
    if p[-1] == b">":
        p, tail = p[:-1], True
        if len(s) <= len(p):
            return False
    else:
        tail = False
    if not tail and len(p) != len(s):
        return False
    return all(a in (b"*", b) for a, b in zip(p, s, strict=False))


@given(_PATTERNS | st.none(), _PATTERNS, _SUBJECTS)
def test_interest_is_the_servers_matching(
    match: tuple[bytes, ...] | None, unless: tuple[bytes, ...], subject: bytes
) -> None:
    """Positive and negative patterns, both twins."""
    clause = Clause(op_mask(Op.PUB), Need.LINE, match, unless)
    wanted = (match is None or any(naive(p, subject) for p in match)) and not any(
        naive(p, subject) for p in unless
    )

    for interest, _ in TWINS.values():
        assert interest((clause,)).need(Op.PUB, subject) == (Need.LINE if wanted else Need.NONE)


_PIECES = st.sampled_from([case.raw for case in GOOD] + [case.raw for case in BAD if len(case.raw) < 50])
_CLAUSES = st.sampled_from(
    [
        (),
        ALL,
        (Clause(ALL_OPS, Need.LINE, (b"foo", b"FOO.>", b"a")),),
        (Clause(ALL_OPS, Need.HEADERS, None, (b"FOO.*",)),),
    ]
)


@given(st.lists(_PIECES, max_size=8), _CLAUSES, st.integers(0, 2**32), st.sampled_from([C2S, S2C]))
def test_twins_agree_on_any_bytes_however_cut(
    pieces: list[bytes], clauses: tuple[Clause, ...], seed: int, direction: Direction
) -> None:
    """Frames, damaged frames, cut anywhere: the same segments; no byte lost, no exception."""
    rng = random.Random(seed)
    data = bytearray(b"".join(pieces))
    for _ in range(rng.choice([0, 0, 1, 3])):
        if data:
            data[rng.randrange(len(data))] = rng.choice(b"\r\n \t.0AZ\x00\xff")
    parts = cut(bytes(data), rng)
    options = {"hold": rng.choice([0, 20, 65536]), "buffer_limit": rng.choice([30, 1 << 20])}
    known = [case.fields["subject"] for case in GOOD if "subject" in case.fields and rng.random() < 0.5]
    results = []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_input_py, "_LARGE", rng.choice([0, 10, 16384]))
        for twin in TWINS:
            table = TWINS[twin][1].Table()
            table.update(dict.fromkeys(known, 0))
            scanner, segments = scan(twin, direction, parts, clauses, table, **options)
            if not any(isinstance(s, Malformed) for s in segments):
                assert covered(segments) + scanner.rest() == bytes(data)
            left = (scanner.offset, scanner.odd, list(table))
            results.append((normal(segments), scanner.counts, scanner.ordinal, *left))

    assert all(result == results[0] for result in results)


@given(st.lists(_PIECES, max_size=8), _CLAUSES, st.integers(0, 2**32), st.sampled_from([C2S, S2C]))
def test_frames_taken_together_are_those_that_come_one_by_one(
    pieces: list[bytes], clauses: tuple[Clause, ...], seed: int, direction: Direction
) -> None:
    data = b"".join(pieces)
    for twin, (interest, scanner_type) in TWINS.items():
        rng = random.Random(seed)
        scanner = scanner_type(direction, interest(clauses))
        scanner.tallies[b"9"] = 0
        found: list[Segment] = []
        for piece in cut(data, rng):
            scanner.feed(piece)
            while (segment := scanner.next()) is not None:
                found.append(segment)
                if isinstance(segment, Frame) and segment.op in MESSAGE_OPS and not segment.missing:
                    more = scanner.more(rng.randint(0, 3))
                    kept = rng.randint(0, len(more))
                    scanner.untake(more[kept:])
                    found += more[:kept]
        single, expected = scan(twin, direction, cut(data, random.Random(seed)), clauses)
        assert normal(found) == normal(expected)
        assert (scanner.counts, scanner.ordinal, scanner.offset) == (
            single.counts,
            single.ordinal,
            single.offset,
        )


@given(st.lists(_PIECES, max_size=8), _CLAUSES, st.integers(0, 2**32), st.sampled_from([C2S, S2C]))
def test_short_runs_and_frames_taken_back_are_those_of_long_ones(
    pieces: list[bytes], clauses: tuple[Clause, ...], seed: int, direction: Direction
) -> None:
    data = b"".join(pieces)
    for twin, (interest, scanner_type) in TWINS.items():
        single, expected = scan(twin, direction, [data], clauses)
        rng = random.Random(seed)
        scanner = scanner_type(direction, interest(clauses))
        scanner.tallies[b"9"] = 0
        scanner.feed(data)
        frames: list[Segment] = []
        scanner.most = rng.randint(1, 3)
        while (segment := scanner.next()) is not None:
            assert not isinstance(segment, Run) or segment.frames <= scanner.most
            frames.append(segment)
            if rng.randint(0, 1):
                scanner.untake([])
            scanner.most = rng.randint(1, 3)
        assert joined(frames) == joined(expected)
        assert (scanner.counts, scanner.ordinal, scanner.offset) == (
            single.counts,
            single.ordinal,
            single.offset,
        )
        whole = scanner_type(direction, interest(clauses))
        whole.tallies[b"9"] = 0
        whole.feed(data)
        while whole.next() is not None:
            pass
        assert scanner.tallies == whole.tallies


def joined(segments: Iterable[Segment]) -> list[Any]:
    """Return segments with neighbouring runs as one."""
    rows: list[Any] = []
    for row in normal(segments):
        if row[0] == "run" and rows and rows[-1][0] == "run":
            _, raw, frames, ops = rows.pop()
            row = ("run", raw + row[1], frames + row[2], ops | row[3])
        rows.append(row)
    return rows


@twins
def test_neighbours_that_are_wanted_come_at_once_and_others_do_not(twin: str) -> None:
    interest, scanner_type = TWINS[twin]
    scanner = scanner_type(S2C, interest((Clause(op_mask(Op.MSG), Need.LINE, (b"a", b"b")),)))
    scanner.tallies[b"1"] = 0
    wanted = b"MSG a 1 1\r\nx\r\nMSG b 2 r 1\r\ny\r\nmsg a  1 0\r\n\r\n"
    scanner.feed(wanted + b"MSG c 1 1\r\nz\r\n" + wanted + b"MSG a 1 5\r\nx")
    first = scanner.next()
    assert normal([first, *scanner.more(9)]) == normal(scan(twin, S2C, [wanted], ALL)[1])
    assert scanner.tallies == {b"1": 2}
    assert scanner.more(9) == []
    assert isinstance(scanner.next(), Run)
    assert isinstance(scanner.next(), Frame)
    assert len(scanner.more(1)) == 1
    assert (scanner.ordinal, scanner.counts[Op.MSG]) == (6, 6)


@pytest.mark.parametrize("direction", [C2S, S2C])
@twins
def test_large_reads_are_not_copied_and_not_cut_differently(twin: str, direction: Direction) -> None:
    """What lies behind an unfinished frame keeps its buffer; frames that fit `hold` come whole."""
    rng = random.Random(7)
    op = b"MSG a 1 %d\r\n" if direction else b"PUB a %d\r\n"
    frames = [
        op % size + bytes(size) + b"\r\n" for size in (rng.choice([1, 300, 20_000]) for _ in range(300))
    ]
    data = b"".join(frames)
    at, parts = 0, []
    while at < len(data):
        parts.append(data[at : (at := at + rng.choice([1, 50, 20_000, 100_000]))])
    scanner, segments = scan(twin, direction, parts)
    assert covered(segments) == data
    assert all(isinstance(s, Run) for s in segments)
    assert scanner.counts[Op.MSG if direction else Op.PUB] == scanner.ordinal == len(frames)
    kept = {id(part) for part in parts if len(part) == 100_000}
    assert kept <= {id(s.buffer) for s in segments}


@given(st.binary(max_size=300), st.sampled_from([C2S, S2C]))
def test_no_input_raises(data: bytes, direction: Direction) -> None:
    """Hostile bytes are segments or Malformed, never an exception."""
    for twin in TWINS:
        _, segments = scan(twin, direction, [data], ALL)
        assert all(isinstance(s, (Run, Frame, Body, Malformed, Opaque)) for s in segments)
