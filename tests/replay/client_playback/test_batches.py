"""Batches hold the frames of a capture, no more and no less."""

from __future__ import annotations

from pathlib import Path

import pytest

from natsproxy.capture.format.connection import ConnectionId
from natsproxy.errors import CaptureError
from natsproxy.replay.client_playback.batches import (
    PlainBatch,
    ReceivedBatch,
    batches,
    plain_publishes,
    subjects_of,
)
from natsproxy.replay.client_playback.bulk_scan import BulkSearch
from natsproxy.replay.conversation.steps import Step, events
from natsproxy.wire.ops import C2S
from natsproxy.wire.parse import frames
from tests.replay.big import big
from tests.replay.scripted import Line, hello, write

RECORDINGS = sorted((Path(__file__).parents[3] / "recordings").glob("*.ncap"))


def expanded(path: Path) -> list[tuple[int, ConnectionId, int, bytes]]:
    """Return (seq, connection, time, bytes or sid) of each frame of the batches."""
    found: list[tuple[int, ConnectionId, int, bytes]] = []
    for batch in batches(path):
        if isinstance(batch, PlainBatch):
            whole = [frame.raw for frame in frames(batch.data, C2S)]
            assert len(whole) == batch.frames
            found += [(batch.seq + n, batch.conn, batch.t, raw) for n, raw in enumerate(whole)]
        elif isinstance(batch, ReceivedBatch):
            found += [(batch.seq + n, batch.conn, batch.t, batch.sid) for n in range(batch.frames)]
        elif isinstance(batch, Step):
            found.append((batch.seq, batch.conn, batch.t, batch.frame.raw))
    return found


def matches(batch: tuple[int, ConnectionId, int, bytes], step: Step) -> bool:
    return batch[:3] == (step.seq, step.conn, step.t) and batch[3] in (step.frame.raw, step.frame.sid)


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_batches_of_the_golden_recordings_are_their_frames(path: Path) -> None:
    steps = [event for event in events(path) if isinstance(event, Step)]
    found = expanded(path)
    assert len(found) == len(steps)
    assert all(matches(batch, step) for batch, step in zip(found, steps, strict=True))


def test_batches_of_a_busy_capture_are_few_and_hold_all_of_it(tmp_path: Path) -> None:
    path = big(tmp_path / "x.ncap", 3000)
    steps = [event for event in events(path) if isinstance(event, Step)]
    found = expanded(path)
    assert all(matches(batch, step) for batch, step in zip(found, steps, strict=True))
    assert sum(1 for _ in batches(path)) * 5 < len(steps)


def test_frames_that_may_be_waited_for_come_as_steps(tmp_path: Path) -> None:
    lines: list[Line] = [
        *hello(1, "a"),
        *hello(2, "b"),
        (1, ">", b"SUB s 1\r\n"),
        (2, ">", b"SUB my.box 1\r\n"),
        (2, ">", b"PUB a 0\r\n\r\nPUB s my.box 0\r\n\r\nPUB b 0\r\n\r\n"),
        (1, "<", b"MSG s 1 my.box 0\r\n\r\n"),
        (1, ">", b"PUB my.box 0\r\n\r\n"),
        (2, "<", b"MSG my.box 1 0\r\n\r\n"),
        (1, "<", b"MSG s 1 0\r\n\r\n"),
        (1, ">", b"PUB $JS.ACK.S.C.1.1.1.1.0 4\r\n+ACK\r\n"),
    ]
    found = list(batches(write(tmp_path / "x.ncap", lines)))[10:]
    kinds = [batch.frame.raw if isinstance(batch, Step) else batch for batch in found]
    assert [kind if isinstance(kind, bytes) else type(kind) for kind in kinds] == [
        b"SUB s 1\r\n",
        b"SUB my.box 1\r\n",
        PlainBatch,
        b"PUB s my.box 0\r\n\r\n",
        b"PUB b 0\r\n\r\n",
        b"MSG s 1 my.box 0\r\n\r\n",
        b"PUB my.box 0\r\n\r\n",
        b"MSG my.box 1 0\r\n\r\n",
        ReceivedBatch,
        b"PUB $JS.ACK.S.C.1.1.1.1.0 4\r\n+ACK\r\n",
    ]


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (b"PUB a 1\r\nx\r\nPUB  b\t 01 \r\ny\r\nPING\r\n", 2),
        (b"PUB a r 1\r\nx\r\n", 0),
        (b"PUB a 12 1\r\nx\r\n", 0),  # a reply that is a number
        (b"pub a 1\r\nx\r\n", 0),  # allowed, but looked at
        (b"PUB $JS.API.INFO 0\r\n\r\n", 0),
        (b"PUB a 5\r\nx\r\n", 0),
        (b"PUB a 1\r\nxyz", 0),
    ],
)
def test_plain_publishes_end_where_one_is_not(data: bytes, count: int) -> None:
    end, found = plain_publishes(data, BulkSearch())
    assert found == count
    assert len(list(frames(data[:end], C2S))) == count
    assert subjects_of(data[:end]) == {frame.subject for frame in frames(data[:end], C2S)}


@pytest.mark.parametrize("line", [(1, ">", b"PUB a 5\r\nx\r\n"), (1, "<", b"MSG a 1 9\r\nx\r\n")])
def test_records_that_hold_nonsense_are_reported(line: Line, tmp_path: Path) -> None:
    path = write(tmp_path / "x.ncap", [*hello(1, "a"), (1, ">", b"SUB a 1\r\n"), line], whole=False)
    with pytest.raises(CaptureError, match="holds no NATS frames"):
        list(batches(path))
