"""The ring of frames: its bounds, its filters and the waits on it."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from natsproxy.capture.format.records import CloseRecord, Flags, Frames
from natsproxy.testing import WaitTimeout
from natsproxy.testing.frame_log import FrameFilter, FrameLog, SeenFrame
from natsproxy.wire.ops import C2S, S2C, Direction

ALL = FrameFilter()


def record(
    data: bytes, direction: Direction = C2S, *, out: int | None = 0, cause: str | None = None
) -> Frames:
    return Frames(1, direction, data, 1, 0, 0, 0, out, 0, cause)


def test_a_record_is_split_into_its_frames() -> None:
    seen = FrameLog()
    seen.add(record(b"SUB a.* 1\r\nPUB a.b reply 2\r\nhi\r\n"))
    seen.add(record(b"MSG a.b 1 2\r\nhi\r\n", S2C, out=None, cause="rule"))
    assert [str(one) for one in seen.frames(ALL)] == [
        "#1 c2s SUB a.*",
        "#1 c2s PUB a.b reply reply 'hi'",
        "#1 s2c MSG a.b 'hi' (rule)",
    ]
    for wanted, count in (
        (FrameFilter("a.b"), 2),
        (FrameFilter("a.>", "pub"), 1),
        (FrameFilter(None, None, "s2c"), 1),
        (FrameFilter("b"), 0),
    ):
        assert len(seen.frames(wanted)) == count


def test_each_frame_of_a_record_has_its_number_and_the_time_of_its_read() -> None:
    seen = FrameLog()
    seen.add(record(b"PUB a 0\r\n\r\nPUB b 0\r\n\r\n")._replace(frames=2, in_first=7, in_t=50, out_t=60))
    assert [(one.ordinal, one.t) for one in seen.frames(ALL)] == [(7, 50), (8, 50)]


def test_headers_and_long_payloads() -> None:
    block = b"NATS/1.0\r\nNats-Msg-Id: 7\r\n\r\n"
    seen = FrameLog()
    seen.add(record(b"HPUB a %d %d\r\n%b%b\r\n" % (len(block), len(block) + 100, block, b"x" * 100)))
    (frame,) = seen.frames(ALL)
    assert (frame.header("Nats-Msg-Id"), frame.header("nats-msg-id"), len(frame.payload)) == ("7", None, 100)
    assert str(frame) == f"#1 c2s HPUB a headers {len(block)} B '{'x' * 60}'... 100 B"


def test_records_without_whole_received_frames_are_left_out() -> None:
    seen = FrameLog()
    seen.add(CloseRecord(1, 0, "client-closed", {}))
    seen.add(record(b"PUB a 0\r\n\r\n")._replace(in_first=None))
    seen.add(record(b"PUB a 9\r\n")._replace(flags=Flags.CUT))
    assert seen.frames(ALL) == []


def test_the_ring_is_bounded_in_bytes() -> None:
    seen = FrameLog(size=10_000)
    for number in range(1_000):
        seen.add(record(b"PUB a 4\r\n%04d\r\n" % number))
    kept = [int(one.payload) for one in seen.frames(ALL)]
    assert kept == list(range(kept[0], 1_000))
    assert 20 < len(kept) < 50


def test_the_last_frames_as_text_leave_keep_alives_out() -> None:
    seen = FrameLog()
    assert seen.last(3) == []
    seen.add(record(b"PUB a 0\r\n\r\nPUB b 0\r\n\r\nPING\r\n"))
    seen.add(record(b"PONG\r\nMSG c 1 0\r\n\r\n", S2C))
    assert seen.last(2) == ["#1 c2s PUB b ''", "#1 s2c MSG c ''"]


async def test_waiting_counts_what_came_before_and_what_comes() -> None:
    seen = FrameLog()
    seen.add(record(b"PUB a 1\r\n1\r\n"))
    found: dict[str, list[SeenFrame]] = {}

    async def wait(subject: str, count: int) -> None:
        found[subject] = await seen.wait(FrameFilter(subject), count, 5)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, "a", 2)
        nursery.start_soon(wait, "b", 1)
        await trio.testing.wait_all_tasks_blocked()
        seen.add(record(b"PUB a 1\r\n2\r\n"))
        await trio.testing.wait_all_tasks_blocked()
        assert [one.payload for one in found.pop("a")] == [b"1", b"2"]
        assert not found
        seen.add(record(b"PUB b 0\r\n\r\n"))
    assert [one.subject for one in found["b"]] == ["b"]


async def test_waiting_sees_what_the_ring_lets_go_meanwhile(autojump_clock: object) -> None:
    seen = FrameLog(size=600)

    async def send() -> None:
        for number in range(10):
            await trio.sleep(1)
            seen.add(record(b"PUB a 1\r\n%d\r\n" % number))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        found = await seen.wait(FrameFilter("a"), 10, 60)
    assert [one.payload for one in found] == [b"%d" % number for number in range(10)]
    assert len(seen.frames(ALL)) < 10


async def test_a_wait_that_times_out_lists_the_frames_that_came(autojump_clock: object) -> None:
    seen = FrameLog()
    with pytest.raises(WaitTimeout, match=r"^waited 3 s for 2 of PUB a\.> c2s, saw 0; nothing passed$"):
        await seen.wait(FrameFilter("a.>", "PUB", "c2s"), 2, 3)
    seen.add(record(b"PUB b 1\r\n1\r\n"))
    with pytest.raises(WaitTimeout, match=r"saw 0; the last frames:\n  #1 c2s PUB b '1'$"):
        await seen.wait(FrameFilter("a"), 1, 3)
