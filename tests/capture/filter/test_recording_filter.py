"""What is written down of the traffic: selections and payload policies."""

from __future__ import annotations

import hashlib

import pytest

from natsproxy.capture.filter.recording_filter import PayloadPolicy, RecordingFilter, Selection
from natsproxy.capture.format.records import Flags, Frames, Item, OpenRecord, Preamble
from natsproxy.errors import ConfigError
from natsproxy.wire.ops import C2S, Direction
from natsproxy.wire.parse import frames


def run(conn: int, direction: Direction, *raws: bytes, first: int = 0) -> Frames:
    """Return a record of neighbouring frames, as the session makes it."""
    data = b"".join(raws)
    ops = 0
    for frame in frames(data, direction):
        ops |= 1 << frame.op
    return Frames(conn, direction, data, len(raws), ops, first, 1, first + 100, 1)


def kept_items(recording: RecordingFilter, *items: Item) -> list[Item]:
    """Return what is left, as the recorder asks for it."""
    kept: list[Item] = []
    for item in items:
        kept += [item] if recording.passes(item) else recording.apply(item)
    return kept


def datas(items: list[Item]) -> list[bytes]:
    """Return the bytes of the records among the items."""
    return [bytes(item.data) for item in items if isinstance(item, Frames)]


PUB_A, PUB_B, PUB_C = b"PUB a.1 1\r\nx\r\n", b"PUB b.1 1\r\ny\r\n", b"PUB a.2 2\r\nzz\r\n"


def test_without_a_selection_records_pass_untouched() -> None:
    """The hot path: the very item."""
    item = run(1, C2S, PUB_A, PUB_B)
    recording = RecordingFilter(Selection())
    assert recording.passes(item)


def test_a_subject_selection_cuts_runs_and_keeps_ordinals() -> None:
    """What is left out leaves a hole in the ordinals; control frames stay."""
    recording = RecordingFilter(Selection(subjects=(b"a.*",)))
    kept = kept_items(recording, run(1, C2S, PUB_A, PUB_A, PUB_B, PUB_C, b"PING\r\n", first=10))
    records = [item for item in kept if isinstance(item, Frames)]
    assert [(bytes(r.data), r.frames, r.in_first, r.out_first) for r in records] == [
        (PUB_A + PUB_A, 2, 10, 110),
        (PUB_C + b"PING\r\n", 2, 13, 113),
    ]


def test_subscriptions_are_kept_where_they_overlap() -> None:
    """`>` may deliver what is selected; `b.>` may not."""
    recording = RecordingFilter(Selection(subjects=(b"a.1",)))
    subs = [b"SUB > 1\r\n", b"SUB b.> 2\r\n", b"SUB a.* 3\r\n", b"UNSUB 2\r\n"]
    assert b"".join(datas(kept_items(recording, run(1, C2S, *subs)))) == subs[0] + subs[2] + subs[3]


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [("bill*", True), ("user:al?ce", True), ("address:10.0.*", True), ("shop", False), ("user:bob", False)],
)
def test_a_connection_selection(pattern: str, wanted: bool) -> None:
    """By name, user or address; opens and greetings of the others stay."""
    recording = RecordingFilter(Selection(connections=(pattern,)))
    hello = run(1, C2S, b'CONNECT {"name":"billing","user":"alice"}\r\n')
    kept = kept_items(
        recording, OpenRecord(1, 1, {"client": "10.0.0.9:5"}), hello, run(1, C2S, PUB_A, first=1)
    )
    assert datas(kept) == [bytes(hello.data), *([PUB_A] if wanted else [])]
    assert isinstance(kept[0], OpenRecord)


def test_a_preamble_tells_who_a_connection_is() -> None:
    """A capture that begins later selects the same connections."""
    recording = RecordingFilter(Selection(connections=("shop",)))
    info = {"connect": b'CONNECT {"name":"billing"}\r\n', "subs": [], "open": {"client": "x"}}
    assert datas(kept_items(recording, Preamble(1, 1, info), run(1, C2S, PUB_A))) == []


def test_payload_policies() -> None:
    """First match counts; headers stay; the record says what was done."""
    policies = ["a.1=hash", "a.*=truncate:1", "b.>=drop"]
    recording = RecordingFilter(Selection(payloads=tuple(map(PayloadPolicy.parse, policies))))
    hpub = b"HPUB b.2 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"
    kept = kept_items(recording, run(1, C2S, PUB_A, PUB_B, PUB_C, hpub, b"PUB c 1\r\nk\r\n"))
    assert datas(kept) == [
        b"PUB a.1 1\r\n",
        b"PUB b.1 1\r\n",
        b"PUB a.2 2\r\nz",
        b"HPUB b.2 12 14\r\nNATS/1.0\r\n\r\n",
        b"PUB c 1\r\nk\r\n",
    ]
    extras = [item.extra for item in kept if isinstance(item, Frames)]
    assert extras[0] == {"policy": "hash", "sha256": hashlib.sha256(b"x").digest()}
    assert extras[2] == {"policy": "truncate"}
    flags = [item.flags for item in kept if isinstance(item, Frames)]
    assert flags == [Flags.PAYLOAD] * 4 + [0]


def test_a_truncated_frame_obeys_the_policies_too() -> None:
    """A frame beyond frame_max has a head; its payload is no exception."""
    recording = RecordingFilter(Selection(payloads=(PayloadPolicy.parse(">=drop"),)))
    long = Frames(1, C2S, b"PUB a 1000\r\nsecret", 1, 1, 0, 1, 0, 1, None, Flags.TRUNCATED, {"size": 1014})
    (kept,) = kept_items(recording, long)
    assert isinstance(kept, Frames)
    assert bytes(kept.data) == b"PUB a 1000\r\n"
    assert kept.flags == Flags.TRUNCATED | Flags.PAYLOAD
    assert kept.extra == {"size": 1014, "policy": "drop"}


def test_withheld_payloads_stay_withheld() -> None:
    """A policy has no payload to hash where a secret stood."""
    recording = RecordingFilter(Selection(payloads=(PayloadPolicy.parse(">=hash"),)))
    withheld = Frames(1, C2S, b"PUB a 6\r\n", 1, 1, 0, 1, 0, 1, None, Flags.PAYLOAD, {"policy": "withheld"})
    assert kept_items(recording, withheld) == [withheld]


@pytest.mark.parametrize("text", ["a", "a=", "a=burn", "a..b=drop", "a=truncate", "a=drop:7", "a=truncate:x"])
def test_bad_policies_are_one_sentence(text: str) -> None:
    """What is wrong, and how it is to be said."""
    with pytest.raises(ConfigError, match=text.split("=")[0]):
        PayloadPolicy.parse(text)
