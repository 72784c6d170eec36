"""Both builders make the same blocks, of whatever items."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from natsproxy.capture.format.blocks import summary_of, unpack
from natsproxy.capture.format.records import (
    CloseRecord,
    Flags,
    Frames,
    GapRecord,
    Item,
    Note,
    OpaqueRecord,
    OpenRecord,
    Preamble,
    decode,
)
from natsproxy.capture.write import _builder_py
from natsproxy.capture.write.builder import BLOCK_SIZE, COMPILED, BlockBuilder, SealedBlock
from natsproxy.capture.write.first_tokens import MOST, parsed
from natsproxy.wire.ops import C2S, Direction

compiled = pytest.mark.skipif(not COMPILED, reason="not built: there is one builder")
MONO, WALL = 1 << 40, 1 << 60

numbers = st.one_of(
    st.integers(0, 300), st.sampled_from([1 << n for n in range(64)]), st.integers(0, (1 << 64) - 1)
)
conns = st.one_of(st.integers(-3, 80), numbers)
times = st.one_of(
    st.integers(-300, 300),
    st.sampled_from([s * ((1 << n) + d) for n in range(62) for s in (1, -1) for d in (-1, 0)]),
).map(MONO.__add__)
infos = st.dictionaries(
    st.text(max_size=4),
    st.recursive(st.none() | numbers | st.binary(max_size=9), st.lists, max_leaves=5),
    max_size=17,
)
frames = st.sampled_from(
    [
        b"PUB a.b 1\r\nx\r\n",
        b"PUB a.b 1\r\nx...",
        b"MSG b 1 0\r\n\r\n",
        b"PING\r\n",
        b"SUB c.> 1\r\n",
        b"CONNECT {}\r\n",
        b"PUB x 5\r\nab",
        b"nothing",
    ]
)
runs = st.one_of(
    st.lists(frames, max_size=4).map(b"".join),
    st.binary(max_size=40),
    st.just(b"PUB long 70000\r\n".ljust(70_016) + b"\r\n"),
)
untouched = st.builds(
    lambda conn, way, data, count, ops, first, t, out: Frames(conn, way, data, count, ops, first, t, out, t),
    conns,
    st.sampled_from(Direction),
    st.one_of(runs, runs.map(lambda data: memoryview(data))),
    st.integers(0, 1 << 40),
    st.integers(0, (1 << 32) - 1),
    numbers,
    times,
    numbers,
)
touched = st.builds(
    Frames,
    conns,
    st.sampled_from(Direction),
    runs,
    st.integers(0, 9),
    st.integers(0, 4095),
    st.none() | numbers,
    st.none() | times,
    st.none() | numbers,
    st.none() | times,
    st.none() | st.text(max_size=40),
    st.integers(0, 15).map(Flags),
    st.none() | infos,
)
items = st.one_of(
    untouched,
    touched,
    st.builds(OpenRecord, conns, times, infos),
    st.builds(CloseRecord, conns, times, st.text(max_size=9), infos),
    st.builds(GapRecord, st.none() | conns, times, infos),
    st.builds(Preamble, conns, times, infos),
    st.builds(OpaqueRecord, conns, st.sampled_from(Direction), times, numbers),
    st.builds(Note, times, infos),
)


def sealed(block: SealedBlock) -> tuple[bytes, list[Any], int, int]:
    """Return all that a writer asks of a block, but the first tokens."""
    return b"".join(block.buffers), block.summary[:9], block.length, block.frames


def first_tokens(given: list[Item]) -> list[bytes] | None:
    """Return what the pure parser finds."""
    found: set[bytes] = set()
    for item in given:
        if isinstance(item, Frames):
            found |= parsed(bytes(item.data), item.direction, item.flags)
    return sorted(found) if len(found) <= MOST and max(map(len, found), default=0) <= MOST else None


@compiled
@settings(deadline=None)
@example([(Frames(1, C2S, b"", 0, 0, 0, None, 0, None), "add")])
@given(
    st.lists(st.tuples(items, st.sampled_from(["add", "add", "add", "seal", "drop", "keep"])), max_size=30)
)
def test_both_builders_make_the_same_blocks(steps: list[tuple[Item, str]]) -> None:
    twins = BlockBuilder(), _builder_py.BlockBuilder()
    kept: list[Item] = []
    for item, then in [*steps, (Note(MONO, {}), "seal")]:
        for builder in twins:
            if not builder.begun:
                builder.begin(MONO, WALL)
            builder.add(item)
        kept += [] if twins[0].dropping else [item]
        assert twins[0].size == twins[1].size
        if then == "seal":
            compiled, pure = (builder.seal() for builder in twins)
            assert sealed(compiled) == sealed(pure)
            assert compiled.summary[9] == first_tokens(kept)
            kept = []
        elif then == "drop":
            for builder in twins:
                builder.drop()
        elif then == "keep":
            assert twins[0].keep() == twins[1].keep()


@pytest.mark.parametrize("builder", [BlockBuilder, _builder_py.BlockBuilder])
@pytest.mark.parametrize("count", [64, 65])
def test_a_summary_names_64_connections(builder: type[_builder_py.BlockBuilder], count: int) -> None:
    """In any order and however often."""
    block = builder()
    block.begin(MONO, WALL)
    for _ in range(2):
        for conn in range(count, 0, -1):
            block.add(Frames(conn, C2S, b"PING\r\n", 1, 0, 0, MONO, 0, MONO))
    assert block.seal().summary[8] == (list(range(1, 65)) if count == 64 else None)


@compiled
def test_a_run_begins_a_block_that_has_not_begun() -> None:
    builder = BlockBuilder()
    for number in range(2):
        builder.add(Frames(1, C2S, b"PING\r\n", 1, 1, 0, MONO + number, 0, MONO + number))
    block = builder.seal()
    summary = summary_of(block.summary)
    assert (summary.mono0, summary.t_first, summary.t_last, summary.items) == (MONO, 0, 1, 2)
    assert summary.wall0 > WALL
    assert not builder.begun


@pytest.mark.parametrize("builder", [BlockBuilder, _builder_py.BlockBuilder])
def test_blocks_that_wait_keep_their_bytes(builder: type[_builder_py.BlockBuilder]) -> None:
    """Memory is used again only after the last reader of a block has gone; blocks of any size."""
    waiting = []
    one = builder()
    for number in range(12):
        record = Frames(number, C2S, bytes([number]) * (BLOCK_SIZE << number % 3), 1, 1, 0, MONO, 0, MONO)
        one.begin(MONO, WALL)
        one.add(record)
        block = one.seal()
        if number % 2:
            waiting.append((record, block.buffers))
        del block
        gc.collect(1)  # blocks are young
    for record, buffers in waiting:
        item = decode(unpack(b"".join(buffers)), MONO)
        assert isinstance(item, Frames)
        assert (item.conn, item.data) == (record.conn, record.data)
