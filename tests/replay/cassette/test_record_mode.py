"""The five modes of a cassette."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from natsproxy.addresses import Address
from natsproxy.capture.read.reader import open_capture
from natsproxy.errors import CaptureError, ConfigError
from natsproxy.replay.cassette.modes import MODES
from natsproxy.replay.cassette.record_mode import parse_mode, use
from natsproxy.replay.conversation.match_options import Given, MatchOptions, read
from natsproxy.replay.conversation.steps import Step, events
from natsproxy.wire.ops import Op
from tests.replay.kit import nats_server, run_program
from tests.replay.scripted import hello, write


async def _publish_to_self(url: str, word: bytes) -> bytes:
    """Publish a word to ourselves; return the bytes up to the PONG."""
    stream = await trio.open_tcp_stream("127.0.0.1", int(url.rsplit(":", 1)[1]))
    async with stream:
        await stream.send_all(
            b'CONNECT {"verbose":false,"name":"talker"}\r\nSUB w 1\r\nPUB w %d\r\n%b\r\nPING\r\n'
            % (len(word), word)
        )
        received = b""
        with trio.fail_after(5):
            while b"PONG\r\n" not in received:
                received += await stream.receive_some()
    return received


async def _until_closed(url: str, sent: bytes) -> None:
    stream = await trio.open_tcp_stream("127.0.0.1", int(url.rsplit(":", 1)[1]))
    async with stream:
        await stream.send_all(sent)
        with trio.fail_after(5):
            while await stream.receive_some():
                pass


def _words(path: Path) -> set[bytes]:
    """Return the bodies that clients published; one that has just left may still receive others."""
    published = (e.frame for e in events(path) if isinstance(e, Step) and e.frame.op == Op.PUB)
    return {frame.body for frame in published if frame.subject == b"w" and frame.size}


def test_modes_are_parsed_and_a_wrong_one_lists_them() -> None:
    assert [parse_mode(mode) for mode in MODES] == list(MODES)
    with pytest.raises(ConfigError, match="one of none, once, new_episodes, all, rewrite"):
        parse_mode("onec")


async def test_mode_none_never_records(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="there is no such cassette"):
        async with use(tmp_path / "x.ncap", upstream=Address("127.0.0.1", 1)):
            pass


async def test_recording_needs_an_upstream(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name an upstream"):
        async with use(tmp_path / "x.ncap", "once"):
            pass


@pytest.mark.server
@pytest.mark.parametrize("name", ["x.ncap", "x.nats.txt"])
async def test_once_records_and_then_plays(name: str, tmp_path: Path) -> None:
    path = tmp_path / "deep" / name
    async with nats_server() as server, use(path, "once", upstream=server) as first:
        assert first.recording
        assert b"MSG w 1 3\r\none\r\n" in await _publish_to_self(first.url, b"one")
    assert (open_capture(path).tail(), path.read_bytes()[:9] == b"natsproxy") == (None, path.suffix == ".txt")
    assert [file.name for file in path.parent.iterdir()] == [name]
    async with use(path, "once") as second:
        assert not second.recording
        assert b"MSG w 1 3\r\none\r\n" in await _publish_to_self(second.url, b"one")
        assert not second.mismatched
        assert second.played is not None
        assert second.played.unused() == []


@pytest.mark.server
async def test_a_recording_keeps_its_options_and_the_play_adds_its_own(tmp_path: Path) -> None:
    path = tmp_path / "x.ncap"
    same: Given = {"bodies": ((b"w", lambda _ours, _theirs: True),)}
    given = read({"ignore_json": "/ts", "match_on": "subject,body", "learn": True}) | same
    async with nats_server() as server, use(path, "once", upstream=server, options=given) as recording:
        await _publish_to_self(recording.url, b"1")
    (segment,) = open_capture(path).segments()
    assert segment.settings["cassette"] == {"ignore_json": ["/ts"], "match_on": ["subject", "body"]}
    async with use(path, options=read({"ignore_json": ["/id"], "learn": False})) as playing:
        assert playing.played is not None
        options = playing.played.machine.matcher.options
        assert options == MatchOptions(
            **read({"ignore_json": ["/id", "/ts"], "match_on": "body,subject"}), learn=False
        )
    async with use(path, options=same) as playing:
        await _publish_to_self(playing.url, b"another")
        assert not playing.mismatched


@pytest.mark.parametrize("stored", [{"zzz": 1}, {"ignore_json": [b"/a"]}, 5, ["a"]])
async def test_options_that_cannot_be_read_are_refused(stored: object, tmp_path: Path) -> None:
    path = write(tmp_path / "x.ncap", hello(1, "a"), cassette=stored)
    with pytest.raises(CaptureError, match="its options cannot be read"):
        async with use(path):
            pass


@pytest.mark.parametrize("mode", ["all", "rewrite"])
async def test_all_and_rewrite_record_anew(mode: str, tmp_path: Path) -> None:
    path = write(tmp_path / "x.ncap", [*hello(1, "talker"), (1, ">", b"PUB w 3\r\nold\r\n")])
    async with nats_server() as server, use(path, parse_mode(mode), upstream=server) as cassette_use:
        await _publish_to_self(cassette_use.url, b"new")
    assert _words(path) == {b"new"}


@pytest.mark.server
async def test_a_recording_that_failed_leaves_the_old_capture(tmp_path: Path) -> None:
    path = write(tmp_path / "x.ncap", [*hello(1, "talker"), (1, ">", b"PUB w 3\r\nold\r\n")])
    async with nats_server() as server:
        with pytest.RaisesGroup(pytest.RaisesExc(ZeroDivisionError)):
            async with use(path, "all", upstream=server):
                raise ZeroDivisionError
    assert _words(path) == {b"old"}
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["x.ncap"]  # noqa: ASYNC240


@pytest.mark.server
async def test_new_episodes_and_the_old_ones_play_from_one_capture(tmp_path: Path) -> None:
    app, path = Path(__file__).parent.parent / "growing" / "app.py", tmp_path / "x.ncap"
    async with nats_server() as server, use(path, "once", upstream=server) as cassette_use:
        short = await run_program(app, cassette_use.url)
    async with nats_server() as server, use(path, "new_episodes", upstream=server) as cassette_use:
        long = await run_program(app, cassette_use.url, "more")
    assert cassette_use.added > 20
    assert len(long.splitlines()) == len(short.splitlines()) + 10
    assert sorted(file.name for file in tmp_path.glob("*.ncap")) == ["x.ncap"]  # noqa: ASYNC240
    for words, printed in ((["more"], long), (["more"], long), ([], short)):
        async with use(path) as again:
            assert await run_program(app, again.url, *words) == printed
            assert again.played is not None
            assert [str(mismatch) for mismatch in again.played.mismatches] == []
            if words:
                assert [x.frame.line for x in again.played.unused()] == []
    async with nats_server() as server, use(path, "new_episodes", upstream=server) as cassette_use:
        assert await run_program(app, cassette_use.url, "more") == long
    assert cassette_use.added == 0


@pytest.mark.server
async def test_a_use_that_failed_or_was_discarded_adds_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "x.ncap", [*hello(1, "talker"), (1, ">", b"PUB w 3\r\nold\r\n")])
    before = path.read_bytes()
    async with nats_server() as server:
        with pytest.RaisesGroup(pytest.RaisesExc(ZeroDivisionError)):
            async with use(path, "new_episodes", upstream=server) as cassette_use:
                await _publish_to_self(cassette_use.url, b"new")
                raise ZeroDivisionError
        assert path.read_bytes() == before
        for mode in ("new_episodes", "all"):
            async with use(path, parse_mode(mode), upstream=server) as cassette_use:
                await _publish_to_self(cassette_use.url, b"new")
                cassette_use.discard()
            assert path.read_bytes() == before
        async with use(path, "new_episodes", upstream=server) as cassette_use:
            await _publish_to_self(cassette_use.url, b"new")
    assert _words(path) == {b"old", b"new"}


async def test_an_upstream_that_is_not_there_is_reported_and_the_cassette_stays(tmp_path: Path) -> None:
    path = write(tmp_path / "x.ncap", hello(1, "talker"))
    before = path.read_bytes()
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    upstream = Address("127.0.0.1", port)
    with pytest.raises(ConfigError, match=f"cannot connect to nats://{upstream}"):
        async with use(path, "new_episodes", upstream=upstream) as cassette_use:
            await _until_closed(cassette_use.url, b'CONNECT {"name":"talker"}\r\nSUB w 1\r\n')
    assert path.read_bytes() == before


async def test_a_cassette_that_is_cut_short_is_not_played(tmp_path: Path) -> None:
    capture = write(tmp_path / "x.ncap", hello(1, "a"))
    whole = capture.read_bytes()
    capture.write_bytes(whole[: len(whole) // 2])
    for mode in ("none", "once"):
        with pytest.raises(CaptureError, match="the capture is cut short: `natsproxy capture recover"):
            async with use(capture, parse_mode(mode)):
                pass
    capture.write_bytes(whole)
    async with use(capture):
        pass


@pytest.mark.server
async def test_of_two_that_record_one_cassette_at_once_the_last_wins(tmp_path: Path) -> None:
    capture = tmp_path / "x.ncap"
    async with nats_server() as server, use(capture, "all", upstream=server) as outer:
        await _publish_to_self(outer.url, b"outer")
        async with use(capture, "all", upstream=server) as inner:
            await _publish_to_self(inner.url, b"inner")
        assert _words(capture) == {b"inner"}
    assert _words(capture) == {b"outer"}
    assert [path.name for path in tmp_path.glob("*.ncap")] == ["x.ncap"]  # noqa: ASYNC240 (at the end)
