"""The order of arrival, of recordings whose frames were held."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from natsproxy.capture.format.records import CloseRecord, Frames, Item, OpenRecord
from natsproxy.capture.read.reader import open_capture
from natsproxy.trial.arrivals import arrivals
from natsproxy.units import MILLISECOND
from natsproxy.wire.ops import C2S, S2C, Direction, Op
from tests.kit.captures import MONO, write

SECONDS = 1_000_000_000


def ping(direction: Direction, ordinal: int | None, came: int, went: int | None) -> Frames:
    arrived = None if ordinal is None else MONO + came
    left = None if went is None else MONO + went
    return Frames(1, direction, b"PING\r\n", 1, Op.PING.bit, ordinal, arrived, ordinal, left)


def ordered(path: Path) -> list[tuple[Direction, int | None]]:
    return [
        (item.direction, item.in_first)
        for _, item in arrivals(lambda: open_capture(path))
        if isinstance(item, Frames)
    ]


def test_a_frame_that_was_held_is_where_it_came(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.ncap",
        [
            ping(C2S, 1, 2 * SECONDS, 2 * SECONDS),
            ping(S2C, 0, 3 * SECONDS, 3 * SECONDS),
            ping(C2S, 0, 1 * SECONDS, 4 * SECONDS),
            ping(C2S, 2, 9 * SECONDS, None),
        ],
    )
    assert ordered(path) == [(C2S, 0), (C2S, 1), (S2C, 0), (C2S, 2)]


def test_of_one_read_the_ordinals_decide(tmp_path: Path) -> None:
    path = write(tmp_path / "x.ncap", [ping(C2S, 1, 5, 5), ping(C2S, 0, 7, 7)])
    assert ordered(path) == [(C2S, 0), (C2S, 1)]


def test_frames_that_the_proxy_made_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "x.ncap", [ping(C2S, None, 0, 5), ping(C2S, 0, 7, 7)])
    assert ordered(path) == [(C2S, 0)]


def test_an_end_comes_behind_the_frames_before_it(tmp_path: Path) -> None:
    items: list[Item] = [
        OpenRecord(1, MONO, {}),
        ping(C2S, 0, SECONDS, 3 * SECONDS),
        CloseRecord(1, MONO + 2 * SECONDS, "client-closed", {}),
    ]
    path = write(tmp_path / "x.ncap", items)
    found = [type(item) for _, item in arrivals(lambda: open_capture(path))]
    assert found == [OpenRecord, Frames, CloseRecord]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 900)), max_size=30))
def test_any_holds_keep_the_order_of_arrival(holds: list[tuple[int, int]]) -> None:
    """Each frame: the time since the one before it, and how long it was held (ms)."""
    came = 0
    frames: list[Frames] = []
    for ordinal, (gap, hold) in enumerate(holds):
        came += gap * MILLISECOND
        frames.append(ping(C2S, ordinal, came, came + hold * MILLISECOND))
    with tempfile.TemporaryDirectory() as folder:
        frames.sort(key=lambda one: one.out_t or 0)
        path = write(Path(folder) / "x.ncap", frames)
        if frames:
            assert ordered(path) == [(C2S, ordinal) for ordinal in range(len(frames))]
