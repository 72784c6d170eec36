"""Cassettes without pytest: recorded once, played ever after, judged at the end."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import nats
import pytest
import trio

from natsproxy.errors import CaptureError, ConfigError, NatsproxyError
from natsproxy.events import Closed, Event
from natsproxy.testing import BlockingCall, CassetteMismatch, TestProxy, cassette, drop
from natsproxy.wire import encode
from tests.kit.disks import Disk
from tests.kit.servers import NatsServer
from tests.replay.scripted import Line, hello, write


async def order(url: str, body: bytes = b"order") -> bytes:
    """Ask a service of our own; return its answer."""
    nc = await nats.connect(url, name="orders", allow_reconnect=False)

    async def answer(message: object) -> None:
        await message.respond(b"confirmed")  # type: ignore[attr-defined]

    try:
        await nc.subscribe("orders", cb=answer)
        return (await nc.request("orders", body, timeout=5)).data
    finally:
        await nc.close()


def hand_made(folder: Path, body: bytes = b"1") -> Path:
    """A capture of one client, "a": it subscribed to x, published a body there and got it back."""
    size = len(body)
    lines: list[Line] = [
        *hello(1, "a"),
        (1, ">", b"SUB x 1\r\nPUB x %d\r\n%b\r\n" % (size, body)),
        (1, "<", b"MSG x 1 %d\r\n%b\r\n" % (size, body)),
    ]
    return write(folder / "x.ncap", lines)


async def publish(url: str, body: bytes) -> bytes:
    """Do as the client of `hand_made` does; return the answer, b"" when the connection ended."""
    return await say(url, b"SUB x 1\r\nPUB x %d\r\n%b\r\n" % (len(body), body))


async def say(url: str, frames: bytes) -> bytes:
    """Send frames as that client; return the answer."""
    host, port = url.removeprefix("nats://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b'CONNECT {"verbose":false,"name":"a"}\r\n%bPING\r\n' % frames)
    received = b""
    while b"PONG\r\n" not in received and (data := await reader.read(65536)):
        received += data
    writer.close()
    return received


@pytest.mark.server
def test_a_full_disk_is_reported_and_keeps_the_old_recording(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No half of a cassette takes the place of a whole one."""
    path = hand_made(tmp_path)
    before = path.read_bytes()
    disk = Disk(monkeypatch)

    def fill_while_recording(front: cassette | TestProxy) -> None:
        disk.error = 0
        with front:
            assert b"PONG" in asyncio.run(publish(front.url, b"1"))
            disk.fill()

    with pytest.raises(CaptureError, match="No space left"):
        fill_while_recording(cassette(path, "all", upstream=nats_server.url))
    with pytest.raises(CaptureError, match="No space left"):
        fill_while_recording(TestProxy(nats_server.url, record=tmp_path / "proxy.ncap"))
    assert path.read_bytes() == before


@pytest.mark.server
def test_it_plays_what_it_recorded(nats_server: NatsServer, tmp_path: Path) -> None:
    """Recorded once against a real server, then played without one."""
    path = tmp_path / "new" / "orders.ncap"
    with cassette(path, "once", upstream=nats_server.url) as tape:
        assert tape.recording
        assert asyncio.run(order(tape.url)) == b"confirmed"
        assert (tape.mismatches(), tape.unused()) == ([], [])
    for mode in ("none", "once", "new_episodes"):
        with cassette(path, mode, strict=True) as tape:
            assert not tape.recording
            assert asyncio.run(order(tape.url)) == b"confirmed"
            assert [frame.payload for frame in tape.frames("orders", op="PUB")] == [b"order"]


@pytest.mark.server
def test_a_block_that_fails_keeps_the_old_capture(nats_server: NatsServer, tmp_path: Path) -> None:
    path = hand_made(tmp_path)
    before = path.read_bytes()

    def fail(mode: str) -> None:
        with cassette(path, mode, upstream=nats_server.url) as tape:
            assert asyncio.run(order(tape.url)) == b"confirmed"
            raise RuntimeError

    for mode in ("all", "rewrite", "new_episodes"):
        with pytest.raises(RuntimeError):
            fail(mode)
        assert path.read_bytes() == before
    with cassette(path, "new_episodes", upstream=nats_server.url) as tape:
        assert asyncio.run(order(tape.url)) == b"confirmed"
    assert tape.added > 0
    with cassette(path, strict=False) as tape:
        assert asyncio.run(order(tape.url)) == b"confirmed"


@pytest.mark.server
def test_the_same_fault_over_a_recording_gives_the_same(nats_server: NatsServer, tmp_path: Path) -> None:
    """The capture has the frames that the server saw."""
    path, lost = tmp_path / "x.ncap", drop(subject="x", op="PUB", first=1)
    for mode in ("once", "none"):
        with cassette(path, mode, upstream=nats_server.url) as tape, tape.fault(lost):
            received = asyncio.run(publish(tape.url, b"1"))
            tape.barrier()
            assert b"MSG" not in received
            assert [firing.action for firing in tape.firings] == ["drop"]
        assert tape.mismatches() == []


def test_an_unrecorded_frame_is_raised_at_the_end(tmp_path: Path) -> None:
    path = hand_made(tmp_path)
    with pytest.raises(CassetteMismatch) as caught, cassette(path, seed=9) as tape:
        assert b"-ERR 'Permissions Violation" in asyncio.run(publish(tape.url, b"2"))
    assert str(caught.value) == (
        "body: '1' recorded, '2' sent: PUB x of client 'a'\n"
        f"{path}:\nclient 'a' sent a frame that was never recorded: PUB x '2'\n"
        "  nearest (not used): PUB x '1'\n"
        "    body: '1' recorded, '2' sent\n"
        '    accepted with ignore_bodies="x" (marker, TOML) or '
        "--ignore-bodies x (pytest: --nats-ignore-bodies)\n"
        "  recorded on this subject: 1 frames, 0 of them used\n"
        f'to record it anew: cassette({str(path)!r}, "all", upstream="nats://HOST:PORT")'
    )
    report = tape.failure_report()
    assert report.startswith(f"cassette {path}, mode none, seed 9\n")
    assert "#1 s2c -ERR" in report


def test_a_thousand_complaints_are_not_all_shown(tmp_path: Path) -> None:
    async def wrong(url: str) -> None:
        await asyncio.gather(*(publish(url, b"wrong %d" % number) for number in range(25)))

    with pytest.raises(CassetteMismatch) as caught, cassette(hand_made(tmp_path)) as tape:
        asyncio.run(wrong(tape.url))
    found = tape.mismatches()
    lines = str(caught.value).splitlines()
    assert lines[-2] == f"... and {len(found) - 5} more"
    assert lines[-1] == f'to record it anew: cassette({str(tape.path)!r}, "all", upstream="nats://HOST:PORT")'
    assert sum(" sent a frame " in line for line in lines) == 5
    assert len(found) > 20


def test_a_publish_that_is_forgotten_fails_and_strict_wants_everything(tmp_path: Path) -> None:
    ask = encode.pub(b"$JS.API.STREAM.INFO.S", reply=b"_INBOX.1.1")
    lines: list[Line] = [*hello(1, "a"), (1, ">", ask + encode.pub(b"x", b"1"))]
    path = write(tmp_path / "x.ncap", lines)
    forgotten = (
        "recorded, but not sent by any client: PUB x '1'\nstrict=False allows that (pytest: --nats-no-strict)"
    )
    absent = f"no client connected to nats://127.0.0.1:0, where {path} was played\n{path}:\n"
    with pytest.raises(CassetteMismatch) as caught, cassette(path):
        pass
    text = re.sub(r":\d+,", ":0,", str(caught.value))
    assert text.startswith(f"{absent}{absent.splitlines()[0]}\n{forgotten}")
    with pytest.raises(CassetteMismatch) as caught, cassette(path) as tape:
        asyncio.run(say(tape.url, ask))
    head = forgotten.splitlines()[0]
    assert str(caught.value).startswith(f"{head}\n{path}:\n{forgotten}")
    with cassette(path, strict=False) as tape:
        assert len(tape.unused()) == 2
    assert [one.split()[1] for one in tape.unused()] == ["$JS.API.STREAM.INFO.S", "x"]
    expected = r"recorded, but not sent by any client: PUB \$JS.API.STREAM.INFO.S .*\n.*: PUB x '1'\n"
    with pytest.raises(CassetteMismatch, match=expected), cassette(path, strict=True):
        pass


def test_an_error_of_the_block_names_what_the_cassette_was_waiting_for(tmp_path: Path) -> None:
    path, report = hand_made(tmp_path), ""

    def fail(*, sends: bool) -> None:
        nonlocal report
        with cassette(path) as tape:
            if sends:
                asyncio.run(publish(tape.url, b"1"))
                tape.barrier()
            report = tape.failure_report()
            raise RuntimeError("mine")

    awaited = "SUB x from client 'a' (recorded connection 1) and 1 more"
    for sends, expected in ((False, [f"{path} was waiting for {awaited}"]), (True, [])):
        with pytest.raises(RuntimeError, match="mine") as caught:
            fail(sends=sends)
        assert getattr(caught.value, "__notes__", []) == expected
        assert (f"\nwaiting for: {awaited}\n" in report) == (not sends)


def test_an_error_of_the_block_comes_before_its_judgement(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="mine"), cassette(hand_made(tmp_path), strict=True):
        raise RuntimeError("mine")


def test_an_error_of_the_block_names_the_mismatches_before_it(tmp_path: Path) -> None:
    def fail(url: str) -> None:
        asyncio.run(publish(url, b"2"))
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine") as caught, cassette(hand_made(tmp_path)) as tape:
        fail(tape.url)
    (note,) = caught.value.__notes__
    assert note.startswith("body: '1' recorded, '2' sent: PUB x of client 'a'\n")


def test_body_matchers(tmp_path: Path) -> None:
    path = hand_made(tmp_path, b'{"ts":1,"v":2}')
    with cassette(path, ignore_json="x /ts", strict=True) as tape:
        assert b'MSG x 1 14\r\n{"ts":5,"v":2}' in asyncio.run(publish(tape.url, b'{"ts":5,"v":2}'))


def test_what_a_failed_test_shows_has_no_filtered_value(tmp_path: Path) -> None:
    tape = cassette(hand_made(tmp_path, b'{"pin":1}'), filter_json="/pin", filter_subjects="*").__enter__()
    asyncio.run(publish(tape.url, b'{"pin":4711,"n":1}'))
    assert [frame.payload for frame in tape.frames("x", op="PUB")] == [b'{"pin":4711,"n":1}']
    tape.close()
    (mismatch,), report = tape.mismatches(), tape.failure_report()
    assert 'PUB [filtered] \'{"pin":0,"n":1}\'' in report
    assert "4711" not in report + mismatch + tape.complaint()


def test_a_failing_matcher_is_reported(tmp_path: Path) -> None:
    def broken(ours: bytes, theirs: bytes) -> bool:
        raise ValueError("no such body")

    tape = cassette(hand_made(tmp_path), bodies={"x": broken}).__enter__()
    assert b"MSG" not in asyncio.run(publish(tape.url, b"2"))
    with pytest.raises(ValueError, match="no such body"):
        tape.close()
    with pytest.raises(NatsproxyError, match="cassette is not running"):
        tape.barrier()


@pytest.mark.parametrize(
    ("arguments", "error", "expected"),
    [
        (("missing.ncap",), CaptureError, "there is no such cassette"),
        (("missing.ncap", "once"), ConfigError, "mode once has to record .*: name an upstream server"),
        (("x.ncap", "often"), ConfigError, "'often' is not a cassette mode: choose one of none"),
        (("nonsense.ncap",), CaptureError, "nonsense.ncap"),
    ],
)
def test_a_cassette_that_cannot_start_gives_the_reason(
    arguments: tuple[str, ...], error: type[Exception], expected: str, tmp_path: Path
) -> None:
    (tmp_path / "nonsense.ncap").write_bytes(b"no capture at all, but a text of some length")
    with pytest.raises(error, match=expected), cassette(tmp_path / arguments[0], *arguments[1:]):
        pass


# -- event loops


@pytest.mark.parametrize("run", [asyncio.run, lambda made: trio.run(lambda: made)], ids=["asyncio", "trio"])
def test_inside_an_event_loop_it_is_async_with(run: Callable[..., object], tmp_path: Path) -> None:
    """A call that would block the client under test is refused before anything has started."""
    path = hand_made(tmp_path)

    async def blocking() -> None:
        with cassette(path):
            pass

    async def awaiting() -> None:
        async with cassette(path, strict=True) as tape:
            await tape.barrier_async()

    with pytest.raises(BlockingCall, match=r"leaving `with cassette\(\.\.\.\)` would block .*: `async with"):
        run(blocking())
    with pytest.raises(CassetteMismatch, match="not sent by any client"):
        run(awaiting())


def test_a_client_that_is_still_connected_may_read_on(tmp_path: Path) -> None:
    """As one does that says goodbye in its own loop, after the block."""

    async def program() -> bytes:
        async with cassette(hand_made(tmp_path), strict=True) as tape:
            reading = asyncio.create_task(publish(tape.url, b"1"))
            await tape.wait_for_async("x", op="MSG")
        return await reading

    assert b"MSG x 1 1\r\n1\r\n" in asyncio.run(program())


def test_its_end_waits_for_no_answer(tmp_path: Path) -> None:
    """A client that still waits is ended once the server has what it sent, and not at a deadline."""
    request = b"SUB _INBOX.1 1\r\nPUB ask _INBOX.1 1\r\n1\r\n"
    ends: list[Event] = []

    async def program() -> None:
        async with cassette(write(tmp_path / "x.ncap", [*hello(1, "a"), (1, ">", request)])) as tape:
            assert tape._proxy is not None
            tape._proxy.subscribe(ends.append)
            host, port = tape.url.removeprefix("nats://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b'CONNECT {"verbose":false,"name":"a"}\r\n' + request + b"PING\r\n")
            await reader.readuntil(b"PONG\r\n")
        writer.close()

    asyncio.run(program())
    (closed,) = [event for event in ends if isinstance(event, Closed)]
    assert (closed.cause, closed.detail) == ("drained", "natsproxy is shutting down")


@pytest.mark.server
def test_a_recording_waits_for_its_disk(nats_server: NatsServer, tmp_path: Path) -> None:
    """A gap would be an exchange that no replay has."""
    with TestProxy(nats_server.url, record=tmp_path / "x.ncap") as proxy:
        assert proxy._proxy is not None
        record = proxy._proxy.settings.record
    assert record is not None
    assert record.overflow == "wait"
