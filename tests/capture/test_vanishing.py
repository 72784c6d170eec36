"""Segments that their recorder deletes, or has just opened, while somebody reads the folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from natsproxy.capture.format.blocks import MAGIC
from natsproxy.capture.format.records import Item, OpenRecord
from natsproxy.capture.names import segment_order
from natsproxy.capture.read import reader as reading
from natsproxy.capture.read.reader import Follower, open_capture
from natsproxy.capture.read.segment import CaptureFile
from natsproxy.capture.write.builder import BlockBuilder
from natsproxy.capture.write.writer import CaptureWriter, SegmentInfo
from natsproxy.cli import main
from natsproxy.errors import MissingCapture, TruncatedCapture, UnreadableCapture
from tests.kit.captures import MONO, WALL

SEGMENTS = 4
GONE = "it was deleted before it was read (a larger --record-keep keeps it)"


class Folder:
    """A folder of segments with one item each; `items` are those that were written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.writer = CaptureWriter(path, SegmentInfo(b"r" * 16, bytes(16), WALL, MONO))
        self.files: list[Path] = []
        self.items: list[Item] = []

    def write(self) -> None:
        """Write an item to the open segment."""
        self.items.append(OpenRecord(len(self.items), MONO + len(self.items), {}))
        builder = BlockBuilder()
        builder.begin(MONO, WALL)
        builder.add(self.items[-1])
        self.writer.write(builder.seal())

    def segment(self) -> None:
        """Begin a segment with one item."""
        self.files.append(self.writer.open_segment())
        self.write()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Give a folder of closed segments."""
    made = Folder(tmp_path / "captures")
    for _ in range(SEGMENTS):
        made.segment()
    made.writer.close()
    return made


def test_a_segment_that_is_gone_is_told_and_the_rest_is_read(folder: Folder) -> None:
    """The one that is open when it is deleted is read to its end."""
    lost: list[str] = []
    found = open_capture(folder.path, lost.append).items()
    first = next(found)[1]
    for file in folder.files[:3]:
        file.unlink()
    assert [first, *(item for _, item in found)] == [folder.items[0], folder.items[3]]
    assert lost == [f"{file}: {GONE}" for file in folder.files[1:3]]


def test_who_does_not_ask_for_losses_gets_an_error(folder: Folder) -> None:
    """A replay of a part would be wrong."""
    found = open_capture(folder.path).items()
    next(found)
    folder.files[1].unlink()
    with pytest.raises(MissingCapture, match=r"-1\.ncap: it was deleted before it was read"):
        next(found)


def test_a_folder_whose_first_segment_goes_before_it_is_opened(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is no loss: the reading began behind it."""
    order = segment_order

    def listed(paths: Iterator[Path]) -> list[Path]:
        found = order(paths)
        folder.files[0].unlink()
        return found

    monkeypatch.setattr(reading, "segment_order", listed)
    assert open_capture(folder.path).paths == folder.files[1:]


def test_a_link_to_nothing_is_an_error(folder: Folder) -> None:
    """It was not deleted by a recorder."""
    folder.files[0].unlink()
    folder.files[0].symlink_to(folder.path / "nowhere")
    with pytest.raises(UnreadableCapture, match="No such file") as caught:
        open_capture(folder.path)
    assert not isinstance(caught.value, MissingCapture)


def read(follower: Follower) -> list[Item]:
    """Return the new items."""
    return [item for _, item in follower.poll()]


def test_a_follower_tells_of_segments_that_it_never_saw(tmp_path: Path) -> None:
    """By their numbers; those that it has read may go."""
    folder, lost = Folder(tmp_path / "captures"), list[str]()
    folder.segment()
    follower = Follower(folder.path, lost.append)
    assert read(follower) == folder.items
    folder.segment()
    assert read(follower) == folder.items[1:]
    folder.files[0].unlink()
    assert read(follower) == []
    for _ in range(3):
        folder.segment()
    for file in folder.files[1:4]:
        file.unlink()
    assert lost == []
    assert read(follower) == folder.items[4:]
    end, middle = lost
    assert end == f"{folder.files[1]}: it was deleted before its end was read"
    assert middle.startswith(
        f"{folder.files[4]}: segments 2 to 3 of recorder {(b'r' * 16).hex()} were deleted"
    )
    folder.write()
    folder.writer.close()
    assert read(follower) == folder.items[5:]
    folder.files[4].unlink()
    assert read(follower) == []
    assert len(lost) == 2


def test_a_follower_of_one_file_ends_with_it(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.segment()
    follower = Follower(folder.files[0], print)
    assert read(follower) == folder.items
    folder.files[0].unlink()
    with pytest.raises(MissingCapture):
        read(follower)


def test_a_follower_lists_a_segment_that_is_gone_when_it_opens_it(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of the next one tells."""
    lost: list[str] = []
    follower = Follower(folder.path, lost.append)

    def opened(path: Path) -> CaptureFile:
        if path == folder.files[1]:
            path.unlink(missing_ok=True)
        return CaptureFile(path)

    monkeypatch.setattr(reading, "CaptureFile", opened)
    assert read(follower) == [folder.items[0], *folder.items[2:]]
    (said,) = lost
    assert "segments 1 to 1 of recorder" in said


@pytest.mark.parametrize("command", ["cat", "info", "verify", "export --jsonl -", "export --pcapng -"])
def test_commands_go_on_and_say_so(folder: Folder, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """Of each segment that was deleted after the folder was listed."""
    order = segment_order

    def listed(paths: Iterator[Path]) -> list[Path]:
        found = order(paths)
        folder.files[2].unlink()
        return found

    monkeypatch.setattr(reading, "segment_order", listed)
    verb, *more = command.split()
    done = CliRunner().invoke(main, ["capture", verb, str(folder.path), *more])
    assert done.exit_code == 0, done.output
    assert f"Warning: {folder.files[2]}: it was deleted before it was read" in done.stderr


@pytest.mark.parametrize("begun", [b"", MAGIC[:3], MAGIC, MAGIC + b"NBLK"])
@pytest.mark.parametrize("command", ["cat", "info", "info --json", "export --jsonl -"])
def test_a_segment_without_a_header_is_told_and_the_rest_is_shown(
    folder: Folder, begun: bytes, command: str
) -> None:
    """Its recorder has just opened it; another recorder's segments come behind it."""
    opened = folder.path / f"a{folder.files[0].stem}-99.ncap"
    opened.write_bytes(begun)
    verb, *more = command.split()
    done = CliRunner().invoke(main, ["capture", verb, str(folder.path), *more])
    assert done.exit_code == 0, done.output
    assert done.stderr == f"Warning: {opened}: it has no header yet, so it is not read\n"
    if verb == "info":
        assert "not closed" in done.stdout or json.loads(done.stdout)["closed"] is False
        assert f"{SEGMENTS} segments" in done.stdout or json.loads(done.stdout)["segments"] == SEGMENTS
    assert [item for _, item in open_capture(folder.path).items()] == folder.items


def test_a_capture_that_has_not_begun_is_an_error(tmp_path: Path) -> None:
    """There is nothing to show: one file, or a folder of such."""
    for name in ("a-0.ncap", "a-1.ncap"):
        (tmp_path / name).write_bytes(MAGIC)
    for place in (tmp_path / "a-0.ncap", tmp_path):
        with pytest.raises(TruncatedCapture, match="there is no segment header"):
            open_capture(place)
