"""New episodes in a capture: the old and the new in one file, or the old one untouched."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from natsproxy.capture.format.records import CloseRecord, Frames, OpenRecord
from natsproxy.capture.read.frames import read_frames
from natsproxy.capture.read.reader import open_capture
from natsproxy.capture.write import _builder_py
from natsproxy.capture.write.writer import CaptureWriter, SegmentInfo
from natsproxy.errors import CaptureError
from natsproxy.replay.cassette.cassette_file import beside, replace
from natsproxy.replay.cassette.merge import merge
from natsproxy.replay.conversation.steps import Step, events
from natsproxy.replay.server_playback.new_episodes import Addition
from natsproxy.wire.ops import C2S, S2C
from tests.kit.captures import legs
from tests.replay.scripted import MS, Line, hello, write

CONVERSATION: list[Line] = [
    *hello(1, "a"),
    (1, ">", b"SUB a 1\r\nPUB a 1\r\nx\r\nPUB b 0\r\n\r\n"),
    (1, "<", b"MSG a 1 1\r\nx\r\n"),
    (1, "closed", b"client-closed"),
]


def frame_bytes(path: Path) -> list[bytes]:
    return [event.frame.raw for event in events(path) if isinstance(event, Step)][4:]


def test_an_addition_stands_behind_its_frame_and_ordinals_move_up(tmp_path: Path) -> None:
    path = write(tmp_path / "x.ncap", CONVERSATION)
    old = frame_bytes(path)
    merge(path, [Addition(1, C2S, b"PUB new 0\r\n\r\n", 5, 7), Addition(1, S2C, b"MSG a 1 0\r\n\r\n", 7, 9)])
    assert frame_bytes(path) == [*old[:2], b"PUB new 0\r\n\r\n", *old[2:], b"MSG a 1 0\r\n\r\n"]
    ordinals = [one.in_ordinal for one in read_frames(open_capture(path)) if one.direction == C2S]
    assert ordinals == list(range(6))
    assert legs(open_capture(path), 1)["client->proxy"].endswith(b"PUB new 0\r\n\r\nPUB b 0\r\n\r\n")
    times = {e.frame.raw: e.t for e in events(path) if isinstance(e, Step)}
    assert times[b"PUB new 0\r\n\r\n"] == 4 * MS + 7


@pytest.mark.parametrize("name", ["x.nats.txt", "x.nats"])
def test_additions_to_a_text_are_lines_of_their_own(name: str, tmp_path: Path) -> None:
    """A cassette that is a text stays one, whatever its name is."""
    replace(write(tmp_path / "x.ncap", CONVERSATION), tmp_path / "x.txt")
    path = (tmp_path / "x.txt").rename(tmp_path / name)
    old = path.read_text().splitlines()
    merge(
        path, [Addition(1, C2S, b"PUB new 3\r\nx\ny\r\n", 5, 7), Addition(1, S2C, b"MSG a 1 0\r\n\r\n", 7, 0)]
    )
    new = path.read_text().splitlines()
    changes = [one for one in difflib.ndiff(old, new) if not one.startswith((" ", "?"))]
    assert changes == ["+ a > PUB new", "+   | x", "+   | y", "+ a < MSG a 1"]
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_the_end_of_a_connection_comes_behind_its_additions(tmp_path: Path) -> None:
    path = write(tmp_path / "x.ncap", [*CONVERSATION, *hello(2, "b")])
    merge(path, [Addition(1, C2S, b"PUB late 0\r\n\r\n", 11, 1)])
    items = [item for _, item in open_capture(path).items() if getattr(item, "conn", 0) == 1]
    assert isinstance(items[-1], CloseRecord)
    assert isinstance(items[-2], Frames)
    assert items[-2].data == b"PUB late 0\r\n\r\n"


def test_a_new_client_becomes_a_connection_without_secrets(tmp_path: Path) -> None:
    path = write(tmp_path / "x.ncap", CONVERSATION)
    connect = b'CONNECT {"name":"n","auth_token":"hidden"}\r\n'
    merge(
        path,
        [
            Addition(-3, C2S, connect, -1, 0),
            Addition(-3, C2S, b"PUB n 0\r\n\r\n", -1, 5),
            Addition(-3, C2S, b"", -1, 6),
        ],
    )
    items = [item for _, item in open_capture(path).items() if getattr(item, "conn", 0) == 2]
    assert [type(item) for item in items] == [OpenRecord, Frames, Frames, CloseRecord]
    assert b"hidden" not in path.read_bytes()


def test_times_that_no_clock_shows_are_an_error(tmp_path: Path) -> None:
    """They can be read from a file, and written to none."""
    path = tmp_path / "x.ncap"
    writer, builder = CaptureWriter(path, SegmentInfo(b"r" * 16, bytes(16), 0, 0)), _builder_py.BlockBuilder()
    writer.open_segment()
    builder.begin((1 << 64) - 1, 0)
    builder.add(OpenRecord(1, 1 << 64, {}))
    writer.write(builder.seal())
    writer.close()
    before = path.read_bytes()
    with pytest.raises(CaptureError, match="out of range"):
        merge(path, [Addition(1, C2S, b"PUB new 0\r\n\r\n", -1, 1 << 64)])
    assert path.read_bytes() == before


def test_a_capture_without_items_takes_additions(tmp_path: Path) -> None:
    path = write(tmp_path / "x.ncap", hello(1, "a")[:1])
    merge(path, [Addition(-1, C2S, b"PUB n 0\r\n\r\n", -1, 0)])
    assert [event.frame.raw for event in events(path) if isinstance(event, Step)] == [b"PUB n 0\r\n\r\n"]


def test_a_failed_merge_leaves_the_capture_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "x.ncap", CONVERSATION)
    before = path.read_bytes()
    path.write_bytes(before[:200] + b"?" + before[201:])
    damaged = path.read_bytes()
    with pytest.raises(CaptureError):
        merge(path, [Addition(1, C2S, b"PUB n 0\r\n\r\n", 5, 0)])
    assert path.read_bytes() == damaged
    assert not beside(path).exists()
    (tmp_path / "folder").mkdir()
    with pytest.raises(CaptureError, match="a cassette is one file"):
        merge(tmp_path / "folder", [Addition(1, C2S, b"PUB n 0\r\n\r\n", 5, 0)])


@settings(max_examples=30, deadline=None)
@given(places=st.lists(st.tuples(st.integers(-1, 9), st.integers(0, 5)), max_size=8))
def test_old_frames_keep_their_order_when_new_ones_are_added(
    places: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = write(tmp_path_factory.mktemp("m") / "x.ncap", [*CONVERSATION, *hello(2, "b")])
    old = [event.frame.raw for event in events(path) if isinstance(event, Step)]
    ordered = sorted(places)
    line = b"PUB new.%d 0\r\n\r\n"
    merge(path, [Addition(1, C2S, line % n, after, delay) for n, (after, delay) in enumerate(ordered)])
    now = [event.frame for event in events(path) if isinstance(event, Step)]
    assert [frame.raw for frame in now if not frame.subject.startswith(b"new.")] == old
    assert [frame.subject for frame in now if frame.subject.startswith(b"new.")] == [
        b"new.%d" % n for n in range(len(ordered))
    ]
    assert open_capture(path).tail() is None
