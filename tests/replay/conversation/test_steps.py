"""Captures become steps on the clients' leg."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from natsproxy.capture.format.records import CloseRecord, Flags, Frames, Item, OpenRecord, Preamble
from natsproxy.capture.write.builder import BlockBuilder
from natsproxy.capture.write.writer import CaptureWriter, SegmentInfo
from natsproxy.errors import CaptureError
from natsproxy.replay.conversation.steps import Began, Ended, Step, events
from natsproxy.wire.ops import C2S, S2C
from tests.kit import captures
from tests.kit.captures import MONO
from tests.replay.scripted import MS, hello, named, write


def _write(path: Path, *items: Item) -> Path:
    writer = CaptureWriter(path, SegmentInfo(b"r" * 16, b"b" * 16, 0, 0))
    builder = BlockBuilder()
    builder.begin(0, 0)
    for item in items:
        builder.add(item)
    writer.open_segment()
    writer.write(builder.seal())
    writer.close()
    return path


def test_a_conversation_comes_in_order_with_times_from_its_start(tmp_path: Path) -> None:
    path = write(tmp_path / "x.ncap", [*hello(1, "a"), (1, "closed", b"client-closed")])
    found = list(events(path))
    assert found[0] == Began(named(1), 0)
    assert found[-1] == Ended(named(1), 4 * MS, "client-closed")
    steps = [event for event in found if isinstance(event, Step)]
    assert [step.frame.op.label for step in steps] == ["INFO", "CONNECT", "PING", "PONG"]
    assert [step.seq for step in steps] == [0, 1, 2, 3]


def test_only_frames_of_the_client_leg_count(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "x.ncap",
        Frames(1, C2S, b"PUB a 0\r\n\r\n", 1, 1, 0, 1, None, None, "deny"),
        Frames(1, C2S, b"PING\r\n", 1, 256, None, None, 0, 2, "proxy"),
        Frames(1, S2C, b"PONG\r\n", 1, 512, 0, 3, None, None, "proxy"),
        Frames(1, S2C, b"+OK\r\n", 1, 1024, None, None, 0, 4, "proxy"),
    )
    assert [event.frame.raw for event in events(path) if isinstance(event, Step)] == [
        b"PUB a 0\r\n\r\n",
        b"+OK\r\n",
    ]


def test_a_connection_that_was_open_already_begins_with_its_state(tmp_path: Path) -> None:
    info = {
        "connect": b'CONNECT {"name":"late"}\r\n',
        "subs": [[b"1", b"a.>", b"", 0, 0], [b"2", b"b", b"q", 0, 0]],
    }
    found = list(events(_write(tmp_path / "x.ncap", Preamble(4, 5, info))))
    assert found[0] == Began(named(4), 0, late=True)
    assert [event.frame.raw for event in found[1:] if isinstance(event, Step)] == [
        b'CONNECT {"name":"late"}\r\n',
        b"SUB a.> 1\r\n",
        b"SUB b q 2\r\n",
    ]


@pytest.mark.parametrize("flag", [Flags.TRUNCATED, Flags.PAYLOAD])
def test_withheld_payloads_are_reported(tmp_path: Path, flag: Flags) -> None:
    path = _write(tmp_path / "x.ncap", Frames(1, C2S, b"PUB a 9\r\n", 1, 1, 0, 1, 0, 1, None, int(flag), {}))
    with pytest.raises(CaptureError, match="payloads were withheld"):
        list(events(path))


def test_a_record_that_holds_nonsense_is_reported(tmp_path: Path) -> None:
    path = _write(tmp_path / "x.ncap", Frames(1, C2S, b"NONSENSE\r\n", 1, 1, 0, 1, 0, 1))
    with pytest.raises(CaptureError, match="holds no NATS frames"):
        list(events(path))


def test_a_cut_file_plays_to_its_last_whole_block(tmp_path: Path) -> None:
    path = write(tmp_path / "x.ncap", hello(1, "a"))
    path.write_bytes(path.read_bytes()[:-60])
    assert len(list(events(path))) in (0, 5)


def test_a_preamble_that_holds_nonsense_is_reported(tmp_path: Path) -> None:
    path = _write(tmp_path / "x.ncap", Preamble(4, 5, {"connect": b"NONSENSE\r\n"}))
    with pytest.raises(CaptureError, match="a preamble cannot be read"):
        list(events(path))


def test_memory_does_not_grow_with_the_connections_of_a_capture(tmp_path: Path) -> None:
    items: list[Item] = []
    for conn in range(5_000):
        items += [OpenRecord(1 << 40 | conn, MONO, {}), CloseRecord(1 << 40 | conn, MONO, "", {})]
    path = captures.write(tmp_path / "x.ncap", items, per_block=100)
    del items
    found = events(path)
    tracemalloc.start()
    try:
        for _ in range(1_000):
            next(found)
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(8_900):  # in the last block still
            next(found)
        assert tracemalloc.get_traced_memory()[0] - before < 50_000
    finally:
        tracemalloc.stop()
