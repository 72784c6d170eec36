"""Secrets of applications in cassettes: none is written, and other ones play."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner

from natsproxy.addresses import Address
from natsproxy.capture.read.reader import open_capture
from natsproxy.cli import main
from natsproxy.replay.cassette.record_mode import use
from natsproxy.replay.conversation.match_options import Given, read
from natsproxy.wire import encode
from tests.replay.kit import nats_server
from tests.replay.scripted import hello, write

FILTERS = {
    "filter_headers": ["authorization"],
    "filter_json": ["customers.*.orders /card"],
    "filter_subjects": ["customers.*.orders"],
}


async def _order(url: str, secret: bytes, *numbers: bytes, echoes: bool = True) -> bytes:
    """Publish orders to ourselves; return the bytes up to the PONG, and to the last order that came back."""
    sent = b'CONNECT {"verbose":false,"headers":true,"name":"shop"}\r\nSUB customers.*.orders 1\r\n'
    head = b"NATS/1.0\r\nAuthorization: Bearer %b\r\n\r\n" % secret
    for number in numbers:
        payload = b'{"card":"%b","n":%b}' % (secret, number)
        sent += encode.pub(b"customers.%b.orders" % secret, payload, headers=head)
    stream = await trio.open_tcp_stream("127.0.0.1", int(url.rsplit(":", 1)[1]))
    received = b""
    async with stream:
        await stream.send_all(sent + b"PING\r\n")
        with trio.fail_after(5):
            while b"PONG\r\n" not in received or (echoes and received.count(b"HMSG") < len(numbers)):
                received += await stream.receive_some()
    return received


def _everything(path: Path) -> bytes:
    """Return the bytes of a cassette, and its items as text."""
    return path.read_bytes() + "".join(str(item) for _, item in open_capture(path).items()).encode()


@pytest.mark.server
@pytest.mark.parametrize("name", ["x.ncap", "x.nats.txt"])
async def test_a_recording_has_no_secret_and_plays_with_another(name: str, tmp_path: Path) -> None:
    path, options = tmp_path / name, read(FILTERS)
    async with nats_server() as server:
        async with use(path, "once", upstream=server, options=options) as recording:
            await _order(recording.url, b"hunter1", b"1")
        assert b"[filtered]" in _everything(path)
        assert b"hunter" not in _everything(path)
        await _plays(path, {}, b"hunter2", b"1")
        async with use(path, "new_episodes", upstream=server) as episodes:
            received = await _order(episodes.url, b"hunter3", b"1", b"2")
        assert episodes.added > 0
    assert b"HMSG customers.hunter3.orders 1" in received  # the real server has the real frame
    assert b"hunter" not in _everything(path)
    await _plays(path, {}, b"hunter4", b"1", b"2")


@pytest.mark.server
async def test_filters_of_a_later_run_act_on_both_sides(tmp_path: Path) -> None:
    """On what an old cassette holds, and on what is added to it."""
    path, options = tmp_path / "x.ncap", read(FILTERS)
    async with nats_server() as server:
        async with use(path, "once", upstream=server) as recording:
            await _order(recording.url, b"hunter1", b"1")
        await _plays(path, options, b"hunter2", b"1")
        async with use(path, "new_episodes", upstream=server, options=options) as episodes:
            await _order(episodes.url, b"hunter3", b"1", b"2")
    assert b"hunter3" not in _everything(path)
    await _plays(path, {}, b"hunter4", b"1", b"2")


async def _plays(path: Path, options: Given, secret: bytes, *numbers: bytes) -> None:
    """Play a cassette to a program with another secret; its own messages come back with it."""
    async with use(path, options=options) as playing:
        received = await _order(playing.url, secret, *numbers)
        assert not playing.mismatched
    assert b"customers.[filtered].orders 1" in received
    assert b'{"card":"%b","n":1}' % secret in received


@pytest.mark.server
async def test_a_mismatch_does_not_tell_the_secret(tmp_path: Path) -> None:
    path = tmp_path / "x.ncap"
    async with (
        nats_server() as server,
        use(path, "once", upstream=server, options=read(FILTERS)) as recording,
    ):
        await _order(recording.url, b"hunter1", b"1")
    async with use(path) as playing:
        await _order(playing.url, b"hunter2", b"7", echoes=False)
        assert playing.played is not None
        (mismatch,) = playing.played.mismatches
        assert '{"card":"[filtered]","n":7}' in str(mismatch)
        assert "hunter" not in str(mismatch)


async def _answer(url: str, server: Address | None, secret: bytes) -> None:
    """Answer a request; server: where it is sent, past the cassette, None while that is played."""
    received = bytearray()

    async def until(end: bytes) -> None:
        with trio.fail_after(10):
            while end not in received:
                received.extend(await stream.receive_some())

    async with await trio.open_tcp_stream("127.0.0.1", int(url.rsplit(":", 1)[1])) as stream:
        await stream.send_all(b'CONNECT {"verbose":false,"name":"bank"}\r\nSUB pin 1\r\nPING\r\n')
        await until(b"PONG\r\n")
        if server is not None:
            async with await trio.open_tcp_stream(server.host, server.port) as asking:
                await asking.send_all(b"CONNECT {}\r\nPUB pin _INBOX.q 0\r\n\r\n")
                await until(b"MSG pin 1 _INBOX.q")
        await until(b"MSG pin 1 _INBOX.q")
        await stream.send_all(b"PUB _INBOX.q %d\r\n%b\r\nPING\r\n" % (len(secret), secret))
        received.clear()
        await until(b"PONG\r\n")


@pytest.mark.server
@pytest.mark.parametrize(
    "options",
    [
        {"filter_bodies": "pin"},
        {"filter_json": "pin /pin"},
        {"scrub": lambda subject, headers, body: b"gone" if subject == "pin" else body},
    ],
    ids=lambda given: next(iter(given)),
)
async def test_the_answer_of_one_who_is_not_asked_live_is_filtered_too(
    options: dict[str, object], tmp_path: Path
) -> None:
    path, given = tmp_path / "x.ncap", read(options)
    async with nats_server() as server, use(path, "once", upstream=server, options=given) as recording:
        await _answer(recording.url, server, b'{"pin":1111}')
    assert b"1111" not in _everything(path)
    async with use(path, options=given) as playing:
        await _answer(playing.url, None, b'{"pin":2222}')
        assert playing.played is not None
        assert [str(one) for one in playing.played.mismatches] == []


@pytest.mark.parametrize("stored", [FILTERS, None, {7: {b"x": b"\xff"}}])
def test_info_shows_the_options_that_a_cassette_keeps(stored: object, tmp_path: Path) -> None:
    path = write(tmp_path / "x.ncap", hello(1, "a"), cassette=stored)
    shown = CliRunner().invoke(main, ["capture", "info", str(path)])
    facts = json.loads(CliRunner().invoke(main, ["capture", "info", "--json", str(path)]).output)
    assert facts["options"] == (
        FILTERS if stored is FILTERS else {"7": facts["options"]["7"]} if stored else {}
    )
    assert ('filter_headers ["authorization"]' in shown.output) == (stored is FILTERS)
