"""The compiled filter of runs writes down just what the Python filter does."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable
from io import BytesIO
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from natsproxy.capture.filter.recording_filter import _ACTIONS, PayloadPolicy, RecordingFilter, Selection
from natsproxy.capture.format.records import Flags, Frames, Item, OpenRecord, decode
from natsproxy.capture.write import _builder_py
from natsproxy.capture.write.builder import COMPILED, BlockBuilder, SealedBlock
from natsproxy.wire.ops import C2S, S2C, Direction
from natsproxy.wire.parse import frames

compiled = pytest.mark.skipif(not COMPILED, reason="not built: there is one filter")
T = 1_000_000

names = st.lists(st.sampled_from([b"a", b"b", b"c", b""]), min_size=1, max_size=3).map(b".".join)
patterns = st.lists(st.sampled_from([b"a", b"b", b"c", b"*"]), min_size=1, max_size=3).map(b".".join)
patterns |= patterns.map(lambda pattern: pattern + b".>") | st.just(b">")
bodies = st.binary(max_size=6) | st.just(bytes(300))
headers = st.sampled_from([b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\nA: b\r\n\r\n"])
blanks = st.sampled_from([b" ", b"  ", b"\t"])


def _pub(name: bytes, reply: bytes, body: bytes, blank: bytes) -> bytes:
    return b"PUB%b%b %b%d\r\n%b\r\n" % (blank, name, reply, len(body), body)


def _hpub(name: bytes, head: bytes, body: bytes) -> bytes:
    return b"hpub %b %d %d \n%b%b\r\n" % (name, len(head), len(head) + len(body), head, body)


def _msg(name: bytes, reply: bytes, body: bytes) -> bytes:
    return b"MSG %b 7 %b%d\r\n%b\r\n" % (name, reply, len(body), body)


def _hmsg(name: bytes, head: bytes, body: bytes) -> bytes:
    return b"HMSG %b 7 %d %d\r\n%b%b\r\n" % (name, len(head), len(head) + len(body), head, body)


named = names.filter(bool)
replies = st.sampled_from([b"", b"_INBOX.x "])
connects = st.sampled_from([b'{"name":"shop"}', b'{"name":"other"}', b"{}", b"{"]).map(
    lambda args: b"CONNECT %b\r\n" % args
)
from_client = st.one_of(
    st.builds(_pub, named, replies, bodies, blanks),
    st.builds(_hpub, named, headers, bodies),
    st.builds(lambda name: b"SUB %b 1\r\n" % name, patterns | named),
    st.sampled_from([b"PING\r\n", b"PONG\r\n", b"UNSUB 1 5\r\n", b"PING x\r\n", b"+OK\r\n"]),
)
from_server = st.one_of(
    st.builds(_msg, named, replies, bodies),
    st.builds(_hmsg, named, headers, bodies),
    st.sampled_from([b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"-ERR 'x'\r\n"]),
)


def _policy(pattern: bytes, action: str, keep: int) -> PayloadPolicy:
    return PayloadPolicy(pattern, action, keep if _ACTIONS[action].sized else 0)


selections = st.builds(
    Selection,
    st.sampled_from([(), ("shop",)]),
    st.lists(patterns, max_size=2).map(tuple),
    st.lists(
        st.builds(_policy, patterns, st.sampled_from(list(_ACTIONS)), st.integers(0, 4)),
        max_size=3,
    ).map(tuple),
)


def record(direction: Direction, conn: int, raws: list[bytes], first: int) -> Frames:
    """Return the record of a run."""
    data = b"".join(raws)
    ops = 0
    for frame in frames(data, direction):
        ops |= frame.op.bit
    return Frames(conn, direction, data, len(raws), ops, first, T, first + 10, T)


records = st.one_of(
    st.builds(
        record, st.just(C2S), st.integers(1, 2), st.lists(from_client, min_size=1, max_size=9), st.just(3)
    ),
    st.builds(
        record, st.just(S2C), st.integers(1, 2), st.lists(from_server, min_size=1, max_size=9), st.just(3)
    ),
    st.builds(lambda conn, raw: record(C2S, conn, [raw], 0), st.integers(1, 2), connects),
)


def joined(block: SealedBlock) -> list[Item]:
    """Return the items of a block; neighbours that are parts of one run are put together."""
    found: list[Any] = []
    for fields in msgpack.Unpacker(BytesIO(b"".join(block.buffers)), raw=False):
        item = decode(fields, block.summary[0])
        last = found[-1] if found else None
        if isinstance(item, Frames) and isinstance(last, Frames) and not (item.flags or last.flags):
            same = (item.conn, item.direction, item.in_first, item.out_first) == (
                last.conn,
                last.direction,
                (last.in_first or 0) + last.frames,
                (last.out_first or 0) + last.frames,
            )
            if same:
                data = bytes(last.data) + bytes(item.data)
                found[-1] = last._replace(data=data, frames=last.frames + item.frames)
                continue
        found.append(item)
    return found


def written(builder: _builder_py.BlockBuilder, items: Iterable[Item]) -> SealedBlock:
    """Return the block that a recorder makes of items."""
    for item in items:
        builder.begin(T, T)
        builder.put(item)
    return builder.seal()


@compiled
@given(selections, st.lists(records, max_size=6))
def test_both_filters_keep_the_same(selection: Selection, given: list[Frames]) -> None:
    compare(selection, given)


@compiled
@pytest.mark.long
@settings(max_examples=2_000)
@given(selections, st.lists(records, max_size=6))
def test_both_filters_keep_the_same_of_very_many(selection: Selection, given: list[Frames]) -> None:
    compare(selection, given)


def compare(selection: Selection, given: list[Frames]) -> None:
    """Write records with both filters; the blocks must be alike."""
    opens: list[Item] = [OpenRecord(conn, T, {"client": "x"}) for conn in (1, 2)]
    native = written(BlockBuilder(RecordingFilter(selection)), [*opens, *given])
    pure = written(_builder_py.BlockBuilder(RecordingFilter(selection)), [*opens, *given])
    assert joined(native) == joined(pure)
    assert native.summary[5:7] == pure.summary[5:7]  # frames and ops
    assert native.summary[8] == pure.summary[8]  # connections


@compiled
def test_frames_that_stay_whole_share_a_record() -> None:
    """However short their payloads are, and by whatever policy."""
    raws = [
        b"PUB a 1\r\nx\r\n",
        b"PUB k 1\r\ny\r\n",
        b"PUB b 1\r\nz\r\n",
        b"PUB a 5\r\nlong!\r\n",
        b"PUB a 0\r\n\r\n",
    ]
    policies = (PayloadPolicy(b"k", "keep"), PayloadPolicy(b">", "truncate", 2))
    block = written(BlockBuilder(RecordingFilter(Selection(payloads=policies))), [record(C2S, 1, raws, 0)])
    kept = [item for item in joined(block) if isinstance(item, Frames)]
    assert block.summary[4] == 3  # items
    assert [(item.frames, item.in_first, item.flags) for item in kept] == [
        (3, 0, 0),
        (1, 3, Flags.PAYLOAD),
        (1, 4, 0),
    ]


@compiled
def test_what_is_filtered_out_is_not_missed() -> None:
    """An outage counts the records that a capture would have."""
    missed = []
    for make in (BlockBuilder, _builder_py.BlockBuilder):
        builder = make(RecordingFilter(Selection(subjects=(b"a",), payloads=(PayloadPolicy(b">", "drop"),))))
        builder.drop()
        builder.put(record(C2S, 1, [b"PUB a 1\r\nx\r\n", b"PUB b 1\r\nx\r\n"], 0))
        missed.append(builder.keep())
    assert missed[0] == missed[1] == (T, T, 1, 9)


@pytest.mark.parametrize("make", [BlockBuilder, _builder_py.BlockBuilder])
def test_hashes_are_those_of_hashlib(make: type[_builder_py.BlockBuilder]) -> None:
    """For a payload of any size: the last block of the hash has one or two halves of padding."""
    bodies = [random.Random(size).randbytes(size) for size in (*range(200), 4096, 70_000)]
    raws = [b"PUB a %d\r\n%b\r\n" % (len(body), body) for body in bodies]
    builder = make(RecordingFilter(Selection(payloads=(PayloadPolicy(b">", "hash"),))))
    kept = [item for item in joined(written(builder, [record(C2S, 1, raws, 0)])) if isinstance(item, Frames)]
    assert [item.extra for item in kept] == [
        {"policy": "hash", "sha256": hashlib.sha256(body).digest()} for body in bodies
    ]
