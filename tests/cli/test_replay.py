"""`natsproxy replay` as a person uses it: exit codes, sentences, results."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner, Result

from natsproxy.addresses import Address
from natsproxy.capture.read import reader as reading
from natsproxy.capture.read.segment import CaptureFile
from natsproxy.cli import main
from natsproxy.config.endpoints import parse_server
from natsproxy.errors import ConfigError
from natsproxy.replay.conversation.steps import Step, events
from tests.kit.servers import NatsServer
from tests.replay.kit import PROGRAMS, nats_server, record_program
from tests.replay.scripted import hello, write, write_segments

NATSPROXY = str(Path(sys.executable).parent / "natsproxy")


FORMS = "nats://HOST:PORT or tls://HOST:PORT or ws://HOST:PORT or wss://HOST:PORT"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    return write(tmp_path / "x.ncap", [*hello(1, "a"), (1, ">", b"PUB a 0\r\n\r\n")])


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("nats://host:1", Address("host", 1)),
        ("host", Address("host", 4222)),
        ("nats://[::1]:5", Address("::1", 5)),
        ("nats://user:secret@host:1/", Address("host", 1)),
        (":7", Address("127.0.0.1", 7)),
    ],
)
def test_addresses_are_read_as_clients_read_them(text: str, address: Address) -> None:
    assert parse_server(text, "--to").address == address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://x", f"must be {FORMS}, not 'http://x': http:// is not supported"),
        ("a:b:c", f"must be HOST:PORT or {FORMS} (IPv6 as [::1]:4222), not 'a:b:c'"),
        ("", f"must be HOST:PORT or {FORMS} (IPv6 as [::1]:4222), not ''"),
        ("u:secret@host:99999", "must have a port up to 65535, not 99999"),
    ],
)
def test_other_addresses_are_refused(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_server(text, "--to")
    assert str(caught.value) == f"--to {expected}"


def test_a_dry_run_looks_only(capture: Path) -> None:
    done = run("replay", "to-server", capture, "--dry-run", "--json")
    assert done.exit_code == 0
    assert json.loads(done.output)["client_frames"] == 3


BAD: list[tuple[list[str], str]] = [
    (["to-server", "{x}"], "name the server: --to"),
    (["to-server", "{x}", "--to", "nats://127.0.0.1:1"], "cannot connect to nats://127.0.0.1:1"),
    (["to-server", "{x}", "--to", "x", "--connections", "a"], "not a list of connection numbers"),
    (["to-server", "{x}", "--to", "x", "--map-user", "a"], "not RECORDED=USER:PASSWORD"),
    (["to-server", "{x}", "--to", "x", "--ignore-json", "a"], "--ignore-json must be a JSON pointer"),
    (["to-server", "{x}", "--to", "x", "--creds", "{x}.none"], "the file that creds names: No such file"),
    (["to-server", "{x}", "--to", "x", "--creds", "{x}"], "x.ncap is not text"),
    (["to-server", "{x}", "--to", "x", "--speed", "-1"], "neither a factor"),
    (["to-server", "{x}.not", "--to", "x"], "no such file"),
    (["to-server", "{py}", "--to", "x"], "not a natsproxy capture"),
    (["to-client", "{py}"], "not a natsproxy capture"),
    (["to-client", "{x}", "--unrecorded", "pass"], "only with an upstream"),
    (
        ["to-client", "{x}", "--listen", "127.0.0.1:0", "--timeout", "0.01", "--quiet"],
        "while waiting for PUB a",
    ),
]


@pytest.mark.parametrize(("arguments", "expected"), BAD)
def test_bad_arguments_are_one_sentence_and_exit_code_2(
    arguments: list[str], expected: str, capture: Path
) -> None:
    words = {"x": str(capture), "py": __file__}
    done = run("replay", *(argument.format(**words) for argument in arguments))
    assert done.exit_code == 2
    assert expected in done.output
    assert "Traceback" not in done.output


@pytest.mark.server
async def test_a_capture_is_played_and_compared(tmp_path: Path) -> None:
    capture = tmp_path / "x.ncap"
    await record_program(PROGRAMS / "core.py", capture)
    async with nats_server() as server:
        done = await trio.run_process(
            [
                NATSPROXY,
                "replay",
                "to-server",
                str(capture),
                "--to",
                f"nats://{server}",
                "--speed",
                "max",
                "--report",
            ],
            capture_stdout=True,
            check=False,
        )
    assert done.returncode == 0
    assert b"the same: 3 subjects compared" in done.stdout


def deleted_in(reading_number: int, files: list[Path]) -> Callable[[Path], CaptureFile]:
    """Return an opening of segments that deletes the second one in a reading, which begins with the first."""
    readings = 0

    def opened(path: Path) -> CaptureFile:
        nonlocal readings
        readings += path == files[0]
        if readings == reading_number:
            files[1].unlink(missing_ok=True)
        return CaptureFile(path)

    return opened


@pytest.mark.server
def test_a_segment_that_goes_while_it_is_read_ends_a_replay(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whichever reading it goes: a part of a conversation would be another one."""
    parts = [[*hello(1, "a")], [(1, ">", b"PUB a 1\r\n1\r\n")], [(1, ">", b"PUB a 1\r\n2\r\n")]]
    for number in itertools.count(1):
        files = write_segments(tmp_path / str(number), parts)
        monkeypatch.setattr(reading, "CaptureFile", deleted_in(number, files))
        done = run("replay", "to-server", files[0].parent, "--to", nats_server.url, "--speed", "max")
        if files[1].exists():  # there are not so many readings
            break
        assert done.exit_code == 2
        assert f"{files[1]}: it was deleted before it was read" in done.stderr
        assert "Traceback" not in done.output
    assert done.exit_code == 0
    assert number > 2


async def _first_line(process: subprocess.Popen[bytes]) -> str:
    assert process.stderr is not None
    return (await trio.to_thread.run_sync(process.stderr.readline)).decode()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_a_played_server_in_order(number: int, capture: Path) -> None:
    process = subprocess.Popen(  # noqa: ASYNC220
        [NATSPROXY, "replay", "to-client", str(capture), "--listen", "127.0.0.1:0"],
        stderr=subprocess.PIPE,
        env=os.environ,
    )
    with process, trio.fail_after(20):
        assert "on nats://127.0.0.1:" in await _first_line(process)
        process.send_signal(number)
        assert await trio.to_thread.run_sync(process.wait) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_played_clients_and_leaves_no_connection(number: int, tmp_path: Path) -> None:
    lines = [line for conn in (1, 2, 3) for line in hello(conn, f"c{conn}")]
    lines += [(1, ">", b"PUB a 0\r\n\r\n")] * 1000
    capture = write(tmp_path / "x.ncap", lines, step=10**9)
    arrived, left = trio.open_memory_channel[int](3), trio.open_memory_channel[int](3)

    async def serve(stream: trio.SocketStream) -> None:
        await stream.send_all(b"INFO {}\r\nPONG\r\n")
        await arrived[0].send(1)
        with suppress(trio.BrokenResourceError):
            async for _ in stream:
                pass
        await left[0].send(1)

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        port = listener.socket.getsockname()[1]
        process = subprocess.Popen(  # noqa: ASYNC220
            [NATSPROXY, "replay", "to-server", str(capture), "--to", f"127.0.0.1:{port}", "--speed", "20"],
            stdout=subprocess.DEVNULL,
        )
        with process, trio.fail_after(30):
            for _ in range(3):
                await arrived[1].receive()
            process.send_signal(number)
            for _ in range(3):
                await left[1].receive()
            assert await trio.to_thread.run_sync(process.wait) == 130
        nursery.cancel_scope.cancel()


@pytest.mark.server
@pytest.mark.long
async def test_two_replays_to_fresh_servers_differ_in_nothing_that_counts(tmp_path: Path) -> None:
    capture = tmp_path / "x.ncap"
    await record_program(PROGRAMS / "pull.py", capture)
    observed = [tmp_path / "1.ncap", tmp_path / "2.ncap"]
    for path in observed:
        async with nats_server() as server:
            words = ["to-server", str(capture), "--to", f"nats://{server}", "--speed", "max", "--record"]
            done = await trio.run_process(
                [NATSPROXY, "replay", *words, str(path)], capture_stdout=True, check=False
            )
        assert done.returncode == 0
    raws = [[e.frame.raw for e in events(path) if isinstance(e, Step)] for path in observed]
    assert raws[0] != raws[1]  # time stamps, server ids: the bytes differ
    report = run("capture", "diff", *observed, "--json")
    assert (report.exit_code, json.loads(report.output)["same"]) == (0, True)


@pytest.mark.server
async def test_unrecorded_input_is_recorded_into_the_capture(tmp_path: Path) -> None:
    capture = write(tmp_path / "x.ncap", hello(1, "a"))
    async with nats_server() as server:
        process = subprocess.Popen(  # noqa: ASYNC220
            [
                NATSPROXY,
                "replay",
                "to-client",
                str(capture),
                "--listen",
                "127.0.0.1:0",
                "--unrecorded",
                "record",
                "--upstream",
                f"nats://{server}",
                "--stay",
            ],
            stderr=subprocess.PIPE,
            env=os.environ,
        )
        with process, trio.fail_after(20):
            port = int((await _first_line(process)).rsplit(":", 1)[1])
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(b'CONNECT {"verbose":false,"name":"a"}\r\nSUB x 4\r\nPUB x 2\r\nhi\r\n')
                received = b""
                while not received.endswith(b"MSG x 4 2\r\nhi\r\n"):
                    received += await stream.receive_some()
            process.send_signal(signal.SIGTERM)
            assert "5 frames were added" in await _first_line(process)
            assert await trio.to_thread.run_sync(process.wait) == 0
    bodies = [event.frame.body for event in events(capture) if isinstance(event, Step)]
    assert bodies.count(b"hi") == 2


async def _play_along(arguments: list[str], sent: bytes, until: bytes) -> tuple[int, bytes]:
    """Play a capture to one client that says something; return exit code and output."""
    process = subprocess.Popen(  # noqa: ASYNC220
        [NATSPROXY, "replay", "to-client", *arguments, "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ,
    )
    with process, trio.fail_after(20):
        port = int((await _first_line(process)).rsplit(":", 1)[1])
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(sent)
            received = b""
            while until not in received:
                more = await stream.receive_some()
                assert more, "the played server has left"
                received += more
        out, _ = await trio.to_thread.run_sync(process.communicate)
        return process.returncode, out


HELLO = b'CONNECT {"verbose":false,"name":"a"}\r\n'


@pytest.mark.parametrize(
    ("body", "until", "field"),
    [pytest.param(b"hi", b"MSG x 7 2", None, marks=pytest.mark.long), (b"ho", b"-ERR", "body")],
)
async def test_a_played_server_reports_as_a_comparison_does(
    body: bytes, until: bytes, field: str | None, tmp_path: Path
) -> None:
    lines = [(1, ">", b"SUB x 1\r\nPUB x 2\r\nhi\r\n"), (1, "<", b"MSG x 1 2\r\nhi\r\n")]
    capture, observed = write(tmp_path / "x.ncap", [*hello(1, "a"), *lines]), tmp_path / "o.ncap"
    options = [str(capture), "--report", "--json", "--record", str(observed), "--timeout", "3"]
    sent = b'CONNECT {"verbose":false,"name":"a"}\r\nSUB x 7\r\nPUB x 2\r\n%b\r\n' % body
    code, out = await _play_along(options, sent, until)
    facts = json.loads(out)
    assert code == (0 if field is None else 1)
    assert facts["same"] is (field is None)
    assert facts == json.loads(run("capture", "diff", capture, observed, "--json").output)
    fields = {group["subject"]: (group["first_difference"] or {}).get("field") for group in facts["groups"]}
    assert fields["x"] == field
