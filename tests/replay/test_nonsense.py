"""Captures that were edited, cut or made up: one sentence each, whoever reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from natsproxy.capture.write.builder import BlockBuilder
from natsproxy.capture.write.writer import CaptureWriter, SegmentInfo
from natsproxy.cli import main
from natsproxy.errors import CaptureError, NatsproxyError
from natsproxy.replay.client_playback.batches import batches
from natsproxy.replay.client_playback.dry_run import examine
from natsproxy.replay.conversation.recording import Recording
from natsproxy.replay.conversation.steps import events
from natsproxy.replay.diff.compare import compare
from natsproxy.replay.server_playback.progress import Progress
from tests.replay.scripted import hello, write

GOLDEN = (Path(__file__).parents[2] / "recordings" / "requests-v1.ncap").read_bytes()


def consume(found: Iterable[object]) -> None:
    for _ in found:
        pass


READERS: list[Callable[[Path], object]] = [
    lambda path: consume(events(path)),
    lambda path: consume(batches(path)),
    lambda path: Progress(Recording(events(path))).fill(),
    lambda path: compare(path, path),
    examine,
]
EDITS = st.lists(
    st.tuples(st.integers(0, len(GOLDEN) - 1), st.integers(0, 40), st.binary(max_size=40)), max_size=4
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(edits=EDITS, length=st.integers(0, len(GOLDEN)))
def test_an_edited_capture_plays_or_raises_our_error(
    edits: list[tuple[int, int, bytes]], length: int, tmp_path: Path
) -> None:
    data = GOLDEN
    for at, left_out, put in edits:
        data = data[:at] + put + data[at + left_out :]
    path = tmp_path / "x.ncap"
    path.write_bytes(data[:length])
    for read in READERS:
        with suppress(CaptureError):
            read(path)


FRAMES = st.sampled_from(
    [
        b"SUB a 1\r\n",
        b"SUB a a a a\r\n",
        b"UNSUB\r\n",
        b"\x00",
        b"-ERR\r\n",
        b"INFO \xff\r\n",
        b"CONNECT {\r\n",
        b"CONNECT []\r\n",
        b"PUB a 5\r\nhello\r\n",
        b"PUB a 5\r\nhel\r\n",
        b"PUB a 99999\r\n",
        b"PUB $JS.ACK.S.C.x 0\r\n\r\n",
        b"PUB $JS.API.CONSUMER.CREATE.S r 1\r\n[\r\n",
        b"MSG a 1 0\r\n\r\n",
        b'MSG r 1 8\r\n{"name":\r\n',
        b"HMSG a 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n",
        b"HMSG a 1 4 4\r\nabcd\r\n",
    ]
)
LINES = st.lists(st.tuples(st.integers(1, 2), st.sampled_from("><"), FRAMES), max_size=12)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(lines=LINES)
def test_records_of_any_bytes_play_or_raise_our_error(
    lines: list[tuple[int, str, bytes]], tmp_path: Path
) -> None:
    with suppress(FileNotFoundError):
        (tmp_path / "x.ncap").unlink()
    path = write(tmp_path / "x.ncap", [*hello(1, "a"), *lines], whole=False)
    for read in READERS:
        with suppress(NatsproxyError):
            read(path)


def _newer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("natsproxy.capture.write.writer.VERSION", (2, 0))
        writer, builder = CaptureWriter(path, SegmentInfo(b"r" * 16, b"b" * 16, 0, 0)), BlockBuilder()
        builder.begin(0, 0)
        writer.open_segment()
        writer.write(builder.seal())
        writer.close()


COMMANDS = [
    ["replay", "to-client", "{}", "--listen", "127.0.0.1:0"],
    ["replay", "to-server", "{}", "--to", "127.0.0.1:1"],
    ["replay", "to-server", "{}", "--dry-run"],
    ["capture", "diff", "{}", "{}"],
    ["cassette", "run", "{}", "--", "true"],
]
WRONG = {
    "text": (b"once upon a time", "this is not a natsproxy capture"),
    "empty": (b"", "ends before its first block"),
    "cut": (GOLDEN[:60], "there is no segment header"),
    "newer": (None, "this version reads format 1: upgrade natsproxy"),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: "-".join(words[:2]))
def test_every_command_reports_it_in_one_sentence(
    command: list[str], wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.ncap"
    data, message = WRONG[wrong]
    if data is None:
        _newer(path, monkeypatch)
    else:
        path.write_bytes(data)
    done = CliRunner().invoke(main, [word.format(path) for word in command])
    assert done.exit_code == 2
    assert message in done.output
    assert len(done.output.strip().splitlines()) == 1
