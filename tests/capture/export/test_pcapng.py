"""Captures as packets: read back here by the letter of the formats, and by tshark where it is installed."""

from __future__ import annotations

import io
import ipaddress
import random
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from natsproxy.capture.export import pcapng as module
from natsproxy.capture.export.pcapng import Leg, pcapng
from natsproxy.capture.export.tcp import SEGMENT
from natsproxy.capture.format.connection import ConnectionChoice
from natsproxy.capture.format.records import (
    CloseRecord,
    Flags,
    Frames,
    GapRecord,
    Item,
    OpaqueRecord,
    OpenRecord,
    Preamble,
)
from natsproxy.capture.read.frames import Query
from natsproxy.capture.read.reader import open_capture
from natsproxy.wire.ops import C2S, S2C, Op, op_mask
from tests.kit.captures import MONO, WALL, legs, write

GOLDEN = sorted((Path(__file__).parents[3] / "recordings").glob("*.ncap"))
FIN, SYN, RST, PUSH, ACK = 1, 2, 4, 8, 16
OPEN = OpenRecord(1, MONO, {"client": "10.0.0.7:50123", "upstream": "10.0.0.1:4222"})
LEGS: dict[Leg, tuple[str, str]] = {
    "client": ("client->proxy", "proxy->client"),
    "server": ("proxy->server", "server->proxy"),
}


class Packet(NamedTuple):
    """A packet as it is read back; hidden: bytes of data that are not there."""

    wall: int
    source: tuple[str, int]
    target: tuple[str, int]
    flags: int
    seq: int
    ack: int
    data: bytes
    hidden: int
    comment: str


def blocks(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield kind and body of each block, its two lengths checked."""
    at = 0
    while at < len(raw):
        kind, length = struct.unpack_from("<II", raw, at)
        assert length % 4 == 0
        assert struct.unpack_from("<I", raw, at + length - 4) == (length,)
        yield kind, raw[at + 8 : at + length - 4]
        at += length


def options(raw: bytes) -> dict[int, bytes]:
    """Return the options of a block, which end with the end of options."""
    found, at = {}, 0
    while at < len(raw):
        code, length = struct.unpack_from("<HH", raw, at)
        if code == 0:
            assert at + 4 == len(raw)
            break
        found[code] = raw[at + 4 : at + 4 + length]
        at += 4 + length + -length % 4
    return found


def folded(raw: bytes) -> int:
    """Return the ones' complement sum of RFC 1071, word by word."""
    total: int = sum(struct.unpack(f">{len(raw) // 2}H", raw[: len(raw) // 2 * 2])) + (
        raw[-1] << 8 if len(raw) % 2 else 0
    )
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def packet(body: bytes) -> Packet:
    """Return the packet of a block, every field of it checked."""
    interface, high, low, here, length = struct.unpack_from("<IIIII", body)
    raw = body[20 : 20 + here]
    assert interface == 0
    assert raw[:1] == b"\x02"
    if raw[12:14] == b"\x08\x00":
        ip, head, (total,) = raw[14:34], raw[34:], struct.unpack_from(">H", raw, 16)
        assert folded(ip) == 0xFFFF
        assert (ip[0], ip[9], total) == (0x45, 6, length - 14)
        size, pair = total - 20, ip[12:20]
    else:
        ip, head, (size,) = raw[14:54], raw[54:], struct.unpack_from(">H", raw, 18)
        assert (raw[12:14], ip[0] >> 4, ip[6], size) == (b"\x86\xdd", 6, 6, length - 54)
        pair = ip[8:40]
    source, target, seq, ack, begin, flags, window, _, _ = struct.unpack_from(">HHIIBBHHH", head)
    assert window > 0
    hidden = length - here
    if not hidden:
        assert folded(pair + struct.pack(">HH", 6, size) + head) == 0xFFFF
    one, other = (
        str(ipaddress.ip_address(half)) for half in (pair[: len(pair) // 2], pair[len(pair) // 2 :])
    )
    text = options(body[20 + here + -here % 4 :]).get(1, b"").decode()
    data = head[begin >> 4 << 2 :]
    return Packet(high << 32 | low, (one, source), (other, target), flags, seq, ack, data, hidden, text)


def packets(path: Path, query: Query | None = None, leg: Leg = "client") -> list[Packet]:
    """Return the packets of a capture."""
    out = io.BytesIO()
    pcapng(open_capture(path), out, query or Query(), leg)
    (section, head), (interface, link), *rest = blocks(out.getvalue())
    assert (section, head[:16]) == (0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))
    assert options(head[16:])[4].startswith(b"natsproxy ")
    assert (interface, link[:8]) == (1, struct.pack("<HHI", 1, 0, 0))
    assert options(link[8:]) == {2: f"{leg} leg".encode(), 9: b"\x09"}
    assert {kind for kind, _ in rest} <= {6}
    return [packet(body) for _, body in rest]


def streams(found: list[Packet]) -> list[tuple[bytes, bytes]]:
    """Return what each connection said, as TCP has it: whole, in order, confirmed by what was seen."""
    said: list[list[bytes]] = []
    place: dict[Any, tuple[int, int]] = {}
    following: dict[Any, int] = {}
    for one in found:
        here, there = (one.source, one.target), (one.target, one.source)
        if one.flags & SYN:
            if not one.flags & ACK:
                said.append([b"", b""])
                following.pop(there, None)
            place[here] = (len(said) - 1, 1 if one.flags & ACK else 0)
            following[here] = one.seq
        assert one.seq == following[here]
        if one.flags & ACK:
            assert one.ack == following[there]
        connection, way = place[here]
        said[connection][way] += one.data
        size = len(one.data) + one.hidden + bool(one.flags & (SYN | FIN))
        following[here] = (one.seq + size) & 0xFFFFFFFF
    return [(one, other) for one, other in said]


def conversation(seed: int) -> list[Item]:
    """Return a connection with all that rules may do to frames, in the order of a recorder."""
    rng = random.Random(seed)
    items: list[Item] = [OPEN]
    held: list[tuple[int, Frames]] = []
    sent = {C2S: 0, S2C: 0}
    came = dict(sent)
    for n in range(400):
        now = MONO + 1_000 * (n // 3)
        for due, record in [pair for pair in held if pair[0] <= n]:
            held.remove((due, record))
            items.append(record._replace(out_first=sent[record.direction], out_t=now))
            sent[record.direction] += 1
        way = rng.choice([C2S, S2C])
        raw = (b"PUB a.%d 2\r\nhi\r\n" if way == C2S else b"MSG a.%d 1 2\r\nhi\r\n") % n
        record = Frames(
            1, way, raw, 1, 1 << (Op.PUB if way == C2S else Op.MSG), came[way], now, None, None, "r"
        )
        fate = rng.choice(["pass", "pass", "hold", "drop", "change", "make"])
        if fate == "hold":
            held.append((n + rng.randint(1, 60), record))
        elif fate == "drop":
            items.append(record)
        elif fate == "pass":
            items.append(record._replace(out_first=sent[way], out_t=now, cause=None))
        else:
            if fate == "change":
                items.append(record)
            new = raw.replace(b"hi", b"ho")
            of = {"of": came[way]} if fate == "change" else None
            items.append(
                record._replace(data=new, in_first=None, in_t=None, out_first=sent[way], out_t=now, extra=of)
            )
        came[way] += fate != "make"
        sent[way] += fate in ("pass", "change", "make")
    items += [record for _, record in held]
    items.append(CloseRecord(1, MONO + 1_000_000, "client-closed", {}))
    return items


@pytest.mark.parametrize("leg", LEGS)
@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden_captures_have_the_bytes_of_their_leg(path: Path, leg: Leg) -> None:
    """Whole and in order, each connection with its handshake."""
    reader = open_capture(path)
    conns = sorted({item.conn for _, item in reader.items() if isinstance(item, OpenRecord)})
    expected = [tuple(legs(reader, conn)[tap] for tap in LEGS[leg]) for conn in conns]
    found = packets(path, leg=leg)
    assert streams(found) == expected
    assert [one.wall for one in found] == sorted(one.wall for one in found)


@pytest.mark.parametrize("leg", LEGS)
@pytest.mark.parametrize("seed", range(3))
def test_frames_are_where_the_leg_saw_them(tmp_path: Path, seed: int, leg: Leg) -> None:
    """Held, overtaken, dropped, changed and made ones."""
    path = write(tmp_path / "a.ncap", conversation(seed), per_block=37)
    found = packets(path, leg=leg)
    assert streams(found) == [tuple(legs(open_capture(path), 1)[tap] for tap in LEGS[leg])]
    assert [one.wall for one in found] == sorted(one.wall for one in found)
    assert {one.comment for one in found} >= {"r: not passed" if leg == "client" else "r: made here"}


def test_waiting_events_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond it a stream is still one: nothing is lost, only the order is that of the record."""
    path = write(tmp_path / "a.ncap", conversation(1))
    (whole,) = streams(packets(path))
    monkeypatch.setattr(module, "HELD", 3)
    (found,) = streams(packets(path))
    assert [sorted(said.splitlines()) for said in found] == [sorted(said.splitlines()) for said in whole]


def frame(raw: bytes, t: int = 0, conn: int = 1, **fields: Any) -> Frames:
    """Return the record of one frame of a client."""
    t += MONO
    return Frames(conn, C2S, raw, 1, 1, t, t, t, t)._replace(**fields)


@pytest.mark.parametrize(
    ("client", "server", "one", "other"),
    [
        ("10.0.0.7:50123", "10.0.0.1:4222", ("10.0.0.7", 50123), ("10.0.0.1", 4222)),
        ("[2001:db8::7]:50123", "[2001:db8::1]:4333", ("2001:db8::7", 50123), ("2001:db8::1", 4333)),
        ("[::1]:5", "127.0.0.1:4222", ("::1", 5), ("::ffff:7f00:1", 4222)),
        ("[::ffff:10.0.0.7]:5", "10.0.0.1:4222", ("10.0.0.7", 5), ("10.0.0.1", 4222)),
        ("127.0.0.1:5", "localhost:4222", ("127.0.0.1", 5), ("127.0.0.1", 4222)),
        ("127.0.0.1:5", "nats.example.com:4222", ("127.0.0.1", 5), ("192.0.2.118", 4222)),
        ("", "", ("198.18.0.1", 1024), ("192.0.2.1", 4222)),
        ("10.0.0.7:99999", "10.0.0.1:x", ("10.0.0.7", 0), ("10.0.0.1", 4222)),
    ],
)
def test_addresses_are_those_of_client_and_upstream(
    tmp_path: Path, client: str, server: str, one: tuple[str, int], other: tuple[str, int]
) -> None:
    """Of one family; what is not known is out of ranges that are nobody's."""
    items: list[Item] = [OpenRecord(1, MONO, {"client": client, "upstream": server}), frame(b"PING\r\n")]
    syn, synack, ack, ping = packets(write(tmp_path / "a.ncap", items))
    assert (syn.source, syn.target, synack.source, synack.target) == (one, other, other, one)
    assert [packet.flags for packet in (syn, synack, ack, ping)] == [SYN, SYN | ACK, ACK, PUSH | ACK]
    assert syn.comment == f"connection 1: {client or 'unknown'} to {server or 'unknown'}"


def test_large_frames_and_long_streams(tmp_path: Path) -> None:
    """Segments have a size, and what was sent is confirmed before it is much."""
    big = b"PUB a %d\r\n%s\r\n" % (3 * SEGMENT, bytes(range(256)) * (3 * SEGMENT // 256))
    small = b"PUB a 1000\r\n%s\r\n" % bytes(1_000)
    items: list[Item] = [OPEN, frame(big), *[frame(small, n) for n in range(1, 200)]]
    found = packets(write(tmp_path / "a.ncap", items))
    ((said, _),) = streams(found)
    assert said.startswith(big)
    unconfirmed = worst = 0
    for one in found:
        unconfirmed = 0 if one.source[1] == 4222 else unconfirmed + len(one.data)
        worst = max(worst, unconfirmed)
    assert max(len(one.data) for one in found) == SEGMENT
    assert worst < 4 * SEGMENT


@pytest.mark.parametrize(
    ("cause", "flags"),
    [
        ("client-closed", [(True, FIN | ACK), (False, FIN | ACK), (True, ACK)]),
        ("server-closed", [(False, FIN | ACK), (True, FIN | ACK), (False, ACK)]),
        ("client-lost", [(True, RST | ACK)]),
        ("server-lost", [(False, RST | ACK)]),
        ("killed", [(False, RST | ACK)]),
        ("rule", [(False, FIN | ACK), (True, FIN | ACK), (False, ACK)]),
    ],
)
def test_connections_end_as_they_did(tmp_path: Path, cause: str, flags: list[tuple[bool, int]]) -> None:
    """By FIN from the side that ended it, or by RST; the cause is a comment."""
    items: list[Item] = [OPEN, frame(b"PING\r\n"), CloseRecord(1, MONO + 9, cause, {"detail": "why"})]
    found = packets(write(tmp_path / "a.ncap", items))
    assert [(one.source[1] == 50123, one.flags) for one in found[4:]] == flags
    assert found[4].comment == f"{cause}: why"
    assert streams(found) == [(b"PING\r\n", b"")]


@pytest.mark.parametrize(
    ("item", "here", "hidden"),
    [
        (frame(b"PUB a 9\r\nab", flags=Flags.TRUNCATED, extra={"size": 20}), b"PUB a 9\r\nab", 9),
        (frame(b"PUB a 9\r\n", flags=Flags.PAYLOAD, extra={"policy": "drop"}), b"PUB a 9\r\n", 11),
        (frame(b"HPUB a 12 14\r\nNATS", flags=Flags.PAYLOAD), b"HPUB a 12 14\r\nNATS", 12),
        (frame(b"PUB a 9\r\nab", flags=Flags.CUT), b"PUB a 9\r\nab", 0),
        (frame(b"PUB a 9\r\nab", flags=Flags.TRUNCATED, extra={"size": "much"}), b"PUB a 9\r\nab", 0),
        (OpaqueRecord(1, C2S, MONO, 77), b"", 77),
        (OpaqueRecord(1, C2S, MONO, -5), b"", 0),
    ],
)
def test_bytes_that_were_not_kept_are_counted(tmp_path: Path, item: Item, here: bytes, hidden: int) -> None:
    """As packets that were cut when they were captured."""
    found = packets(write(tmp_path / "a.ncap", [OPEN, item, frame(b"PING\r\n", 5)]))
    assert [(one.data, one.hidden) for one in found[3:] if one.data != b"PING\r\n"] == (
        [(here, hidden)] if here or hidden else []
    )
    assert streams(found) == [(here + b"PING\r\n", b"")]


@pytest.mark.parametrize("length", [SEGMENT + 1, 1 << 40, (1 << 64) - 1])
def test_a_hole_takes_one_packet(tmp_path: Path, length: int) -> None:
    """Whatever a capture claims."""
    found = packets(
        write(tmp_path / "a.ncap", [OPEN, OpaqueRecord(1, C2S, MONO, length), frame(b"PING\r\n", 5)])
    )
    first, ping = found[3], found[-1]
    assert first.hidden == SEGMENT
    assert ping.seq == (first.seq + length) & 0xFFFFFFFF


def test_hostile_items_are_packets_or_nothing(tmp_path: Path) -> None:
    """Texts without end, ids and times beyond all columns."""
    items: list[Item] = [
        OpenRecord(-(1 << 60), MONO, {"client": "x" * 100_000, "upstream": 7}),
        frame(b"PING\r\n", conn=-(1 << 60), cause="\u00fc" * 200_000),
        Preamble(2, MONO, {"open": "nothing"}),
        frame(b"PING\r\n", 1 << 61, conn=2),
        frame(b"PING\r\n", -(1 << 62), conn=3),
        GapRecord(None, MONO, {"reason": "y" * 100_000}),
        frame(b"PING\r\n", 3, conn=1 << 60),
        CloseRecord(99, MONO, "client-closed", {}),
    ]
    found = packets(write(tmp_path / "a.ncap", items))
    assert streams(found) == [(b"PING\r\n", b"")] * 4
    assert max(len(one.comment) for one in found) == 1_000


def test_connections_that_were_open_already(tmp_path: Path) -> None:
    """In a segment that begins in their middle, and once only over several."""
    known = {"client": "10.0.0.7:50123", "upstream": "10.0.0.1:4222"}
    items: list[Item] = [
        Preamble(1, MONO, {"open": known}),
        frame(b"PING\r\n"),
        Preamble(1, MONO + 5, {"open": known}),
        frame(b"PONG\r\n", 6),
    ]
    found = packets(write(tmp_path / "a.ncap", items))
    assert streams(found) == [(b"PING\r\nPONG\r\n", b"")]
    assert found[0].source == ("10.0.0.7", 50123)


def test_recorders_do_not_share_connections(tmp_path: Path) -> None:
    """A folder of two captures has the connection 1 twice."""
    for name in ("a-0", "b-0"):
        write(tmp_path / f"{name}.ncap", [OPEN, frame(b"PING\r\n")])
    assert streams(packets(tmp_path)) == [(b"PING\r\n", b"")] * 2


def test_a_gap_is_a_comment_on_the_next_packet(tmp_path: Path) -> None:
    """With how much was lost."""
    gap = GapRecord(None, MONO, {"frames": 7, "reason": "the disk did not keep up"})
    found = packets(write(tmp_path / "a.ncap", [OPEN, gap, frame(b"PING\r\n")]))
    assert found[3].comment == "7 frames were not recorded: the disk did not keep up"


def test_queries(tmp_path: Path) -> None:
    """By connection, subject, op, direction and time; who said nothing that is asked for is not there."""
    other = OpenRecord(2, MONO + 1, {"client": "10.0.0.8:5", "upstream": "10.0.0.1:4222"})
    items: list[Item] = [
        OPEN,
        other,
        frame(b"PUB a 0\r\n\r\n", 10),
        frame(b"PUB b 0\r\n\r\n", 20),
        frame(b"PING\r\n", 30, 2),
        frame(b"-ERR x\r\n", 35, direction=S2C),
        CloseRecord(1, MONO + 40, "client-closed", {}),
        OpaqueRecord(2, S2C, MONO + 50, 4),
    ]
    path = write(tmp_path / "a.ncap", items)

    def said(query: Query) -> list[tuple[bytes, bytes]]:
        return streams(packets(path, query))

    assert said(Query()) == [(b"PUB a 0\r\n\r\nPUB b 0\r\n\r\n", b"-ERR x\r\n"), (b"PING\r\n", b"")]
    assert said(Query(conns=ConnectionChoice.of(2))) == [(b"PING\r\n", b"")]
    assert said(Query(subjects=(b"b",))) == [(b"PUB b 0\r\n\r\n", b"")]
    assert said(Query(ops=op_mask(Op.PING))) == [(b"PING\r\n", b"")]
    assert said(Query(direction=S2C)) == [(b"", b"-ERR x\r\n"), (b"", b"")]
    assert said(Query(start=WALL + 15, end=WALL + 25)) == [(b"PUB b 0\r\n\r\n", b"")]
    assert said(Query(end=WALL + 9)) == [(b"", b""), (b"", b"")]


# -- tshark

TSHARK = shutil.which("tshark")
needs_tshark = pytest.mark.skipif(TSHARK is None, reason="tshark is not installed: apt-get install tshark")


def tshark(*arguments: str) -> str:
    """Run tshark with its checks on; return what it prints."""
    checks = ["-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE"]
    command = [TSHARK or "", *arguments, *(checks if "-r" in arguments else [])]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """A capture with connections of both families, large frames, all fates and ends."""
    items = conversation(5)
    six = {"client": "[2001:db8::7]:50123", "upstream": "[2001:db8::1]:4222"}
    big = b"PUB a %d\r\n%s\r\n" % (5 * SEGMENT, random.Random(1).randbytes(5 * SEGMENT))
    items += [OpenRecord(2, MONO + 2_000_000, six), *[frame(big, 3_000_000 + n, 2) for n in range(4)]]
    items.append(CloseRecord(2, MONO + 4_000_000, "client-lost", {}))
    reused = OPEN._replace(conn=3, t=MONO + 5_000_000)
    items += [reused, frame(b"PING\r\n", 5_000_001, 3), CloseRecord(3, MONO + 5_000_002, "drained", {})]
    path = write(tmp_path / "a.ncap", items)
    with (tmp_path / "a.pcapng").open("wb") as out:
        pcapng(open_capture(path), out, Query())
    return path


@needs_tshark
def test_tshark_finds_nothing_wrong(exported: Path) -> None:
    """No segment that is malformed, lost, doubled or out of order; every checksum is right."""
    wrong = "tcp.analysis.flags && !tcp.analysis.reused_ports || _ws.malformed || tcp.checksum.status != 1"
    assert tshark("-r", str(exported.with_suffix(".pcapng")), "-Y", wrong) == ""
    fine = tshark("-r", str(exported.with_suffix(".pcapng")), "-Y", "tcp.checksum.status == 1")
    assert len(fine.splitlines()) > 300


@needs_tshark
def test_tshark_reassembles_the_bytes(exported: Path) -> None:
    """Of every connection, in both directions."""
    for number, conn in enumerate([1, 2, 3]):
        shown = tshark("-r", str(exported.with_suffix(".pcapng")), "-q", "-z", f"follow,tcp,raw,{number}")
        lines = shown.partition("Node 1: ")[2].splitlines()[1:]
        said = [b"", b""]
        for line in lines:
            if not line.startswith("="):
                said[line.startswith("\t")] += bytes.fromhex(line)
        taps = legs(open_capture(exported), conn)
        assert said == [taps["client->proxy"], taps["proxy->client"]]


@needs_tshark
def test_tshark_shows_nats(exported: Path) -> None:
    """Its own dissector of NATS, where it has one, sees every frame."""
    if "\tnats\n" not in tshark("-G", "protocols"):
        pytest.skip("this tshark knows no NATS: it is too old")
    shown = tshark(
        "-r", str(exported.with_suffix(".pcapng")), "-Y", "tcp.stream==0", "-T", "fields", "-e", "nats.op"
    )
    taps = legs(open_capture(exported), 1)
    ops = [op for line in shown.splitlines() for op in line.split(",") if op]
    assert ops.count("PUB") == taps["client->proxy"].count(b"PUB ")
    assert ops.count("MSG") == taps["proxy->client"].count(b"MSG ")
