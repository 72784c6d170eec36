"""Blocks as Arrow batches: both decoders against each other, and against what captures say of themselves."""

from __future__ import annotations

import importlib
import os
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.capture.columns.table import FIELDS
from natsproxy.capture.format.connection import ConnectionChoice
from natsproxy.capture.format.records import (
    CloseRecord,
    FiringRecord,
    Flags,
    Frames,
    GapRecord,
    Item,
    Note,
    OpaqueRecord,
    OpenRecord,
    Preamble,
)
from natsproxy.capture.read.frames import Query, read_frames
from natsproxy.capture.read.reader import open_capture
from natsproxy.capture.read.segment import BlockRef, CaptureFile
from natsproxy.capture.write.builder import BlockBuilder, SealedBlock
from natsproxy.capture.write.writer import CaptureWriter, SegmentInfo
from natsproxy.errors import CaptureError
from natsproxy.protocol.template import template
from natsproxy.wire.ops import C2S, S2C, Direction, Op, op_mask
from tests.kit.captures import MONO, WALL, write
from tests.wire.cases import GOOD

pa = pytest.importorskip("pyarrow", reason="batches need pyarrow: pip install 'natsproxy[spark]'")
arrow = pytest.importorskip("natsproxy.capture.columns.arrow")

RECORDINGS = Path(__file__).parents[3] / "recordings"
NUID = b"Zd7xPq2LrT0bY9mKcV4sWe"
SUBJECTS = [
    b"a",
    b"orders.eu.17",
    b"_INBOX.%s.x" % NUID,
    b"my.box.%s.tok.>" % NUID,
    b"$JS.ACK.S.kX3vQz9a.1.5.6.17.7",
    b"$JS.ACK.hub.acc.S.C.1.5.6.17.7",
    b"$JS.ACK.S.C.1",
    b"$JS.API.CONSUMER.INFO.S.kX3vQz9a",
    b"..7",
    b"a..b",
    b"\xff\xfe.9",
    b"caf\xc3\xa9.7",
    b"x.\x00y",
    b"$JS.FC.S.C.a1B2",
    b"commit.deadbee7",
    b"A",
    b"a.b.c",
]
STATUS = b"NATS/1.0 503\r\n\r\n"
HEADERS = [STATUS, b"NATS/1.0\r\nA: b\r\n\r\n", b"NATS/1.0 40\r\n\r\n", b"NATS/1.0  9x", b"XXXXXXXX 1", b""]


def block(ref: BlockRef, body: bytes, path: Path) -> Path:
    """Write a capture of one block with this body."""
    writer = CaptureWriter(path, SegmentInfo(bytes(16), bytes(16), WALL, MONO))
    writer.open_segment()
    summary = [*ref.summary[:7], len(body), None, None]
    writer.write(SealedBlock([body], len(body), summary, ref.summary.frames))
    writer.close()
    return path


def run(subject: bytes, rng: random.Random) -> tuple[Direction, bytes, int]:
    """Return the bytes of some frames of one direction."""
    way, made = rng.choice([C2S, S2C]), []
    for _ in range(rng.randint(1, 6)):
        head, body = rng.choice(HEADERS), rng.randbytes(rng.choice([0, 1, 16]))
        reply = rng.choice([b"", b" _INBOX.a.b"])
        sizes = b"%d %d" % (len(head), len(head) + len(body))
        made.append(
            rng.choice(
                [
                    [
                        b"PUB %s%s %d\r\n%s\r\n" % (subject, reply, len(body), body),
                        b"PING\r\n",
                        b"PONG\r\n",
                        b"HPUB %s%s %s\r\n%s%s\r\n" % (subject, reply, sizes, head, body),
                        b"sub  a.> q\t9 \r\n",
                        b"SUB a 9\r\n",
                        b"UNSUB 9 5\r\n",
                        b"unsub 9\n",
                        b"pub a 0 \r\n\r\n",
                        b"CONNECT {}\r\n",
                        b"+OK\r\n",
                    ],
                    [
                        b"MSG %s 7%s %d\r\n%s\r\n" % (subject, reply, len(body), body),
                        b"PING \r\n",
                        b"+OK\r\n",
                        b"HMSG %s 7%s %s\r\n%s%s\r\n" % (subject, reply, sizes, head, body),
                        b"-ERR 'no \xff'\r\n",
                        b'INFO {"a":1}\r\n',
                        b"msg a 1 0\r\n\r\n",
                    ],
                ][way]
            )
        )
    return way, b"".join(made), len(made)


def generated(seed: int, count: int = 60) -> list[Item]:
    """Return items of every kind, with all that may be special about frames."""
    rng = random.Random(seed)
    items: list[Item] = []
    for number in range(count):
        way, data, frames = run(rng.choice(SUBJECTS), rng)
        t = MONO + rng.choice([-1_500, 7 * number])
        came = (None, None) if rng.random() < 0.2 else (rng.choice([3, 1 << 40]), t)
        went = (None, None) if rng.random() < 0.2 else (number, t + rng.choice([0, 99, 1 << 33]))
        flags = rng.choice([0, 0, 0, Flags.REDACTED, Flags.CUT, Flags.TRUNCATED, Flags.PAYLOAD])
        if flags & ~Flags.REDACTED:
            data, frames = data[: rng.randint(0, len(data))], 1
        extra = rng.choice([None, None, {"of": 4}, {"of": None}, {"policy": "hash", "sha256": bytes(32)}])
        cause = rng.choice([None, None, "rule", "", "r\u00fcle"])
        conn = rng.choice([1, 2, -3, 1 << 35])
        legs = (came[0], came[1], went[0], went[1])
        items.append(Frames(conn, way, data, frames, 0, *legs, cause, int(flags), extra))
        items += rng.choices(
            [
                OpenRecord(1, t, {"client": "a"}),
                CloseRecord(1, t, "end", {}),
                FiringRecord(1, t, {}),
                GapRecord(None, t, {"t0": 1.5}),
                Preamble(1, t, {"subs": [[1, None]]}),
                OpaqueRecord(1, S2C, t, 9),
                Note(t, {}),
            ],
            k=rng.randint(0, 1),
        )
    return items


def both(file: CaptureFile, ref: BlockRef, names: Iterable[str] = tuple(FIELDS), **options: Any) -> Any:
    """Return the batch, the same from both decoders, or the text of the error that both give."""
    found: list[Any] = []
    for decode in (arrow.batch, arrow.pure_batch):
        try:
            made = decode(file, ref, list(names), **options)
        except CaptureError as error:
            found.append(str(error))
        else:
            made.validate(full=True)
            found.append(made)
    assert others(arrow.others, file, ref) == others(pure_others, file, ref)
    one, other = found
    assert type(one) is type(other)
    assert one == other if isinstance(one, str) else one.equals(other), _difference(one, other)
    return one


def pure_others(file: CaptureFile, ref: BlockRef) -> list[Item]:
    """Return the items of a block that are no frames, by the sequential reader."""
    return [item for item in file.items(ref) if not isinstance(item, Frames)]


def others(read: Callable[[CaptureFile, BlockRef], list[Item]], file: CaptureFile, ref: BlockRef) -> str:
    """Return what a reader says of a block's items, as text: not every number equals itself."""
    try:
        return repr(read(file, ref))
    except CaptureError as error:
        return str(error)


def _difference(one: Any, other: Any) -> object:
    if isinstance(one, str):
        return one, other
    return {
        name: (a, b)
        for name, a, b in zip(one.schema.names, one.columns, other.columns, strict=True)
        if a != b
    }


def refs(path: Path) -> Iterable[tuple[CaptureFile, BlockRef]]:
    """Yield the blocks of a capture."""
    for part in open_capture(path).paths:
        with CaptureFile(part) as file:
            yield from ((file, ref) for ref in file.blocks())


def body_of(path: Path) -> tuple[bytes, BlockRef]:
    """Return the body of a capture's only block."""
    with CaptureFile(path) as file:
        (ref,) = file.blocks()
        return file.body(ref), ref


def rows(path: Path, **options: Any) -> list[dict[str, Any]]:
    """Return all rows of a capture, the same from both decoders."""
    return [row for file, ref in refs(path) for row in both(file, ref, **options).to_pylist()]


@pytest.mark.parametrize("path", sorted(RECORDINGS.glob("*.ncap")), ids=lambda path: path.stem)
@pytest.mark.parametrize("payload", [0, 3, -1])
def test_golden_captures_have_the_rows_of_a_sequential_reader(path: Path, payload: int) -> None:
    """Frame by frame: what `walk` sees is what the columns say."""
    found = rows(path, payload=payload)
    expected = list(read_frames(open_capture(path)))

    assert [row["conn_id"] for row in found] == [one.conn.number for one in expected]
    for row, one in zip(found, expected, strict=True):
        frame = one.head
        assert frame is not None
        assert (row["op"], row["t_ns"], row["flags"]) == (frame.op.label, one.wall, one.flags)
        assert (row["subject"] or "").encode() == frame.subject
        assert (row["payload"] or b"") == (frame.body if payload < 0 else frame.body[:payload])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_both_decoders_agree_on_any_record(tmp_path: Path, seed: int, compression: str) -> None:
    """Runs, control frames, odd spelling, cut and truncated frames, payload policies, causes, not UTF-8."""
    path = write(tmp_path / "a.ncap", generated(seed), per_block=25, compression=compression)
    for payload in (0, 5, -1):
        found = rows(path, payload=payload)
        assert len(found) == len(list(read_frames(open_capture(path))))


QUERIES = [
    Query(),
    Query(start=WALL, end=WALL + 200),
    Query(conns=ConnectionChoice.of(1, -3)),
    Query(direction=S2C, ops=op_mask(Op.MSG, Op.HMSG)),
    Query(subjects=(b"a", b"orders.*.17", b"$JS.>", b"bad..x")),
    Query(subjects=(b">",), ops=op_mask(Op.PUB)),
    Query(subjects=(b"a.>.b",)),
    Query(direction=C2S, subjects=(b"*.*.*", b"_INBOX.>")),
]


@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_a_query_gives_the_rows_that_it_gives_a_reader(tmp_path: Path, query: Query) -> None:
    """In both decoders; rows keep the numbers that they have without it."""
    path = write(tmp_path / "a.ncap", generated(99, 200), per_block=40)
    found = rows(path, query=query)
    expected = list(read_frames(open_capture(path), query))
    assert [(row["conn_id"], row["t_ns"], row["in_ordinal"]) for row in found] == [
        (one.conn.number, one.wall, one.in_ordinal) for one in expected
    ]
    every = {(row["block_off"], row["idx"]): row for row in rows(path)}
    assert all(every[row["block_off"], row["idx"]] == row for row in found)


@pytest.mark.parametrize("name", FIELDS)
def test_columns_may_be_asked_for_alone(name: str) -> None:
    """And are what they are among all."""
    for file, ref in refs(RECORDINGS / "jetstream-v1.ncap"):
        assert both(file, ref, [name], payload=-1).column(0) == both(file, ref, payload=-1).column(name)
        assert both(file, ref, []).num_columns == 0


def test_every_frame_of_the_scanner_s_table_is_decoded(tmp_path: Path) -> None:
    """What the scanner takes, in every odd spelling."""
    items: list[Item] = [Frames(1, case.direction, case.raw, 1, 0, 0, MONO, 0, MONO) for case in GOOD]
    found = rows(write(tmp_path / "a.ncap", items))
    assert [row["op"] for row in found] == [case.op.label for case in GOOD]
    assert [row["sid"] for row in found] == [
        case.fields.get("sid", b"").decode("utf-8", "replace") or None for case in GOOD
    ]


def test_more_frames_than_the_table_holds(tmp_path: Path) -> None:
    """In one record and over several, with some among them that only the pure code reads."""
    run_of = b"PUB a.1 1\r\nx\r\n" * 5_000
    odd = run_of + b"CONNECT {}\r\n" + run_of
    items: list[Item] = [
        Frames(1, C2S, run_of, 5_000, 0, 0, MONO, 0, MONO),
        Frames(1, C2S, odd, 10_001, 0, 5_000, MONO + 9, 0, MONO + 11),
        *[Frames(2, S2C, b"+OK\r\n", 1, 0, n, MONO, n, MONO) for n in range(3_000)],
    ]
    path = write(tmp_path / "a.ncap", items, per_block=10_000)
    found = rows(path)
    assert [row["idx"] for row in found] == list(range(18_001))
    assert [row["op"] for row in found].count("CONNECT") == 1
    assert found[15_000]["in_ordinal"] == 15_000


@pytest.mark.parametrize("seed", range(3))
def test_hostile_blocks_give_the_same_answer_or_the_same_error(tmp_path: Path, seed: int) -> None:
    """Bytes changed, cut out and doubled anywhere in a body whose checksum is right."""
    source = write(tmp_path / "a.ncap", generated(seed, 12))
    body, ref = body_of(source)
    rng = random.Random(seed)
    errors = 0
    for number in range(80):
        hostile = bytearray(body)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(hostile))
            change = rng.randrange(4)
            if change == 0:
                hostile[at] = rng.choice([0, 1, 0x7F, 0x80, 0xC0, 0xC1, 0xC7, 0xCF, 0xDB, 0xDD, 0xDF, 0xFF])
            elif change == 1:
                hostile[at] ^= 1 << rng.randrange(8)
            elif change == 2:
                del hostile[at : at + rng.randint(1, 40)]
            else:
                hostile[at:at] = hostile[at : at + rng.randint(1, 40)]
        for broken, where in refs(block(ref, bytes(hostile), tmp_path / f"h{number}.ncap")):
            errors += isinstance(both(broken, where, payload=-1), str)
    assert 10 < errors < 80


ODD_ITEMS: dict[str, list[Any]] = {
    "numbers that no column holds": [0, 1 << 63, 0, 0, 1, 0, 0, 0, 0, None, b"+OK\r\n"],
    "an ordinal at the end of the numbers": [0, 1, 1, 0, 2, (1 << 63) - 1, 0, 0, 0, None, b"+OK\r\n+OK\r\n"],
    "a time far away": [0, 1, 1, 0, 1, 0, -(1 << 63), 0, (1 << 63) - 1, None, b"+OK\r\n"],
    "flags beyond their column": [0, 1, 1, 1 << 40, 1, 0, 0, 0, 0, None, b"+OK\r\n"],
    "a direction that is none": [0, 1, 2, 0, 1, 0, 0, 0, 0, None, b"+OK\r\n"],
    "a truth for a number": [0, True, 1, 0, 1, 0, 0, 0, 0, None, b"+OK\r\n"],
    "text for bytes": [0, 1, 1, 0, 1, 0, 0, 0, 0, None, "+OK\r\n"],
    "a count that is wrong": [0, 1, 1, 0, 3, 0, 0, 0, 0, None, b"+OK\r\n"],
    "a count below nothing": [0, 1, 1, 0, -1, 0, 0, 0, 0, None, b"+OK\r\n"],
    "bytes that are no frame": [0, 1, 0, 0, 1, 0, 0, 0, 0, None, b"NOPE\r\n"],
    "a replaced frame that is no number": [0, 1, 1, 0, 1, 0, 0, 0, 0, None, b"+OK\r\n", {"of": "four"}],
    "a replaced frame twice as large": [0, 1, 1, 0, 1, 0, 0, 0, 0, None, b"+OK\r\n", {"of": 1 << 63}],
    "keys that are numbers": [0, 1, 1, 0, 1, 0, 0, 0, 0, None, b"+OK\r\n", {1: 2.5, "of": 3}],
    "fields of a later version": [0, 1, 1, 0, 1, 0, 0, 0, 0, None, b"+OK\r\n", None, "more", [1]],
    "a kind of a later version": [99, {"a": [1, 2, {}]}],
    "an item of nothing": [],
    "no time at all": [0, 1, 1, 0, 1, None, None, None, None, "gone", b"+OK\r\n"],
    "a count for others": [0, 5, 1, 0, 1 << 31, 0, 0, 0, 0, None, b"+OK\r\n"],
}


@pytest.mark.parametrize("query", [None, Query(conns=ConnectionChoice.of(1))], ids=["all", "conn 1"])
@pytest.mark.parametrize("name", ODD_ITEMS)
def test_odd_items_are_the_same_to_both(tmp_path: Path, name: str, query: Query | None) -> None:
    """An error or rows, never one of each."""
    fine = [0, 1, 1, 0, 1, 0, 0, 0, 0, None, b"+OK\r\n"]
    source = write(tmp_path / "a.ncap", generated(1, 3))
    _, ref = body_of(source)
    body = b"".join(msgpack.packb(item) for item in (fine, ODD_ITEMS[name], fine))
    for file, where in refs(block(ref, body, tmp_path / "odd.ncap")):
        both(file, where, query=query)


TOKEN = st.sampled_from(
    [
        b"$JS",
        b"ACK",
        b"FC",
        b"API",
        b"CONSUMER",
        b"INFO",
        b"EVENT",
        b"7",
        b"-7",
        b"+",
        b"",
        NUID,
        NUID + b"_3",
        NUID + b"a1f0",
        NUID + b"A1F0",
        b"oc_" + NUID + b"_2",
        b"oc_" + NUID,
        b"oc_" + NUID + b"_",
        b"0QX7B2MVN4KJ9TRC3PLWZD",
        b"ABCDEFGHIJKLMNOPQRSTU7",
        b"*",
        b">",
        b"kX3vQz9a",
        b"kXvQzwPa",
        b"abcdefg1",
        b"Abcdefg1",
        b"abc1defg",
        b"_INBOX",
        b"w",
        b"DEADBEE7",
        b"123e4567-e89b-12d3-a456-426614174000",
        b"123E4567-e89b-12d3-a456-42661417400g",
        b"OrderProcessorServiceXY",
        b"abcdefab-abcd-abcd-abcd-abcdefabcdef",
        b"12345678",
        b"\xc3\xa9A",
        b"d41d8cd98f00b204e9800998ecf8427e",
        b"device-17",
        b"pod-7f9c4d-web",
        b"order12345",
        b"\xc3\xa9-7",
    ]
)
WORD = st.text("aAbBfFgG0189-_+:", min_size=1, max_size=24).map(str.encode)


@given(st.lists(st.lists(TOKEN | WORD, min_size=1, max_size=13).map(b".".join), min_size=1, max_size=40))
def test_templates_are_those_of_the_protocol(
    tmp_path_factory: pytest.TempPathFactory, subjects: list[bytes]
) -> None:
    """Numbers, UUIDs, nuids, inboxes, acks, consumers: the compiled decoder has the same rule."""
    subjects = [subject for subject in subjects if subject]
    data = b"".join(b"PUB %s 0\r\n\r\n" % subject for subject in subjects)
    items: list[Item] = [Frames(1, C2S, data, len(subjects), 1, 0, MONO, 0, MONO)]
    path = write(tmp_path_factory.mktemp("t") / "a.ncap", items)
    for file, ref in refs(path):
        found = both(file, ref, ["template"]).column("template").to_pylist()
        assert found == [template(subject).decode("utf-8", "replace") for subject in subjects]


def test_python_reads_a_column_that_is_not_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(FIELDS, "added", ("int", lambda row, _: row[1]))
    for file, ref in refs(write(tmp_path / "a.ncap", generated(5))):
        found = both(file, ref, ["idx", "added"])
        assert found.column("added") == found.column("idx")


@pytest.mark.skipif(not arrow.COMPILED, reason="the compiled decoder was not built")
def test_ordinary_captures_are_decoded_by_compiled_code(tmp_path: Path) -> None:
    """It knows every column but those that are one value for a block, and gives up on no such block."""
    _columns = importlib.import_module("natsproxy.capture.columns._columns")

    assert frozenset(FIELDS) - {"recorder", "segment", "block_off"} == _columns.NAMES
    for path in (*RECORDINGS.glob("*.ncap"), write(tmp_path / "a.ncap", generated(5))):
        for file, ref in refs(path):
            assert _columns.buffers(file.body(ref), ref, sorted(_columns.NAMES), -1, Query()) is not None


def test_the_builder_s_blocks_hold_the_added_items(tmp_path: Path) -> None:
    """The body of a block is what the compiled decoder expects of the recorder."""
    builder = BlockBuilder()
    builder.begin(MONO, WALL)
    builder.add(Frames(1, C2S, memoryview(b"PUB a 0\r\n\r\n"), 1, 1, 0, MONO, 0, MONO, extra={"of": 2}))
    writer = CaptureWriter(tmp_path / "a.ncap", SegmentInfo(os.urandom(16), bytes(16), WALL, MONO))
    writer.open_segment()
    writer.write(builder.seal())
    writer.close()
    (row,) = rows(tmp_path / "a.ncap")
    assert (row["of"], row["t_ns"], row["subject"]) == (2, WALL, "a")


ACKED = st.lists(
    st.sampled_from(
        [b"S", b"hub", b"_", b"1", b"22", b"1767225600000000000", b"9999999999999999999", b"", b"x"]
    ),
    min_size=4,
    max_size=11,
).map(lambda tokens: b".".join([b"$JS", b"ACK", *tokens]))
CALL = st.sampled_from(
    [b"$JS.API.STREAM.INFO.S", b"$JS.hub.API.CONSUMER.CREATE.S.C", b"$JS.API", b"$JS.API.NEW.ONE.X", b"$JS.x"]
)
ACKLIKE = st.sampled_from(
    [b"$JS.ACK.S.C.1.2.3.1767225600000000000.4", b"$JS.ACK._.acc.S.C.2.2.3.1767225600000000000.4.rnd"]
)
NAMED = ACKED | CALL | ACKLIKE | st.just(b"orders.new")
BODY = st.lists(
    st.sampled_from(
        [
            b'{"stream":"S"',
            b'{"stream":"\xff","seq":1}',
            b'{"error":{',
            b'"description":"no \\" way"',
            b'"err_code":10071',
            b'{"type":"io.nats.jetstream.api.v1.consumer_info_response",',
            b'{"type":"mine",',
            b'"stream_name":"S","name":"C",',
            b'"ack_policy": "all"',
            b'{"config":{"flow_control":true}}',
            b', "seq": 7',
            b',"seq":9223372036854775808',
            b',"seq":7}',
            b',"duplicate": true}',
            b'"stream":"S",',
            b"}",
            b"+ACK",
            b"+WPI",
            b"-NAK",
            b"+TERM",
            b"+NXT",
            b" " * 1020,
        ]
    ),
    max_size=4,
).map(b"".join)
HEADER = st.sampled_from(
    [
        b"",
        b"Nats-Msg-Id: 1",
        b"Nats-TTL: 1s",
        b"Nats-Expected-Stream: S",
        b"Nats-Expected-: S",
        b"Nats-Expected-1: S",
        b"nats-msg-id: 1",
        b"X: Nats-TTL:",
    ]
)


@given(st.lists(st.tuples(st.booleans(), NAMED, st.just(b"") | NAMED, HEADER, BODY), min_size=1, max_size=30))
def test_jetstreams_fields_are_those_of_the_protocol(
    tmp_path_factory: pytest.TempPathFactory, messages: list[tuple[bool, bytes, bytes, bytes, bytes]]
) -> None:
    """Whatever is read in C, and whatever is not."""
    items: list[Item] = []
    for sent, subject, reply, header, body in messages:
        block = b"NATS/1.0\r\n%b\r\n\r\n" % header if header else b""
        sizes = b"%d %d" % (len(block), len(block) + len(body)) if block else b"%d" % len(body)
        words = [
            (b"PUB" if sent else b"MSG"),
            subject,
            *([] if sent else [b"1"]),
            *([reply] if reply else []),
        ]
        line = (b"H" if block else b"") + b" ".join([*words, sizes])
        direction = C2S if sent else S2C
        data = b"%b\r\n%b%b\r\n" % (line, block, body)
        items.append(Frames(1, direction, data, 1, 1, 0, MONO, 0, MONO))
        items.append(
            Frames(1, direction, data[: -len(body) // 2 - 2], 1, 1, 0, MONO, 0, MONO, flags=Flags.CUT)
        )
    path = write(tmp_path_factory.mktemp("j") / "a.ncap", items)
    for file, ref in refs(path):
        both(file, ref)
        both(file, ref, ["js_kind", "js_stream_seq", "js_error"])
