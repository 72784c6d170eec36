"""`sweep` of natsproxy.testing: callables and commands that hang are found, and sound ones are not."""

from __future__ import annotations

import asyncio
import sys
import textwrap
from pathlib import Path
from typing import Any

import nats
import pytest
import trio

import natsproxy.testing
import tests.testing
from natsproxy.errors import ConfigError
from natsproxy.testing import BlockingCall, NatsServer, SweepFailure, sweep, sweep_async
from tests.sweep.kit import HELLO

QUICK: dict[str, Any] = {
    "faults": ["drop"],
    "subjects": ["job"],
    "baseline": 1,
    "confirm": 2,
    "patience": 1.5,
}


async def waits(url: str) -> None:
    """Wait for a message without end."""
    client = await nats.connect(url, name="waits")
    try:
        got = await client.subscribe("job")
        await client.publish("job", b"hi")
        await got.next_msg(timeout=None)
    finally:
        await client.close()


async def asks_again(url: str) -> None:
    """Publish until the message has come."""
    client = await nats.connect(url, name="sound")
    try:
        got = await client.subscribe("job")
        for _ in range(5):
            await client.publish("job", b"hi")
            try:
                await got.next_msg(timeout=0.2)
            except nats.errors.TimeoutError:
                continue
            return
        raise TimeoutError("no message")
    finally:
        await client.close()


async def in_trio(url: str, limit: float) -> None:
    stream = await trio.open_tcp_stream("127.0.0.1", int(url.rpartition(":")[2]))
    async with stream:
        await stream.send_all(b'CONNECT {"verbose":false,"name":"trio"}\r\nSUB job 1\r\nPUB job 2\r\nhi\r\n')
        with trio.fail_after(limit):
            seen = b""
            while b"hi\r\n" not in seen:
                seen += await stream.receive_some()


async def waits_in_trio(url: str) -> None:
    """Wait for a message without end."""
    await in_trio(url, float("inf"))


async def gives_up_in_trio(url: str) -> None:
    """Wait for a message, and fail where it does not come."""
    await in_trio(url, 0.3)


@pytest.mark.server
def test_a_callable_that_waits_for_ever_is_found(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = sweep(waits, **QUICK, out=out)
    assert [one.cause.verdict.value for one in done.findings] == ["hung", "hung"]
    with pytest.raises(SweepFailure) as caught:
        done.check()
    said = str(caught.value)
    assert "After the 1st PUB of job from client waits is lost, " in said
    assert "(2 of 2 runs)" in said
    for finding in done.findings:
        assert f"  {out / finding.title}\n" in said
        readme = (out / finding.title / "README.txt").read_text()
        again = (
            "natsproxy.testing.sweep(tests.testing.test_sweep.waits, faults=('drop',), subjects=('job',), "
            f"patience=1.5, baseline=1, confirm=2, out={str(out)!r})"
        )
        assert again in said
        assert again in readme
        assert "in waits\n" in (out / finding.title / "stack.txt").read_text()
    repeated = eval(again, {"natsproxy": natsproxy, "tests": tests})
    assert [one.name for one in repeated.findings] == [one.name for one in done.findings]


@pytest.mark.server
def test_a_sound_callable_is_not(tmp_path: Path) -> None:
    done = sweep(asks_again, **QUICK, out=tmp_path / "out")
    assert (done.findings, done.complaint()) == ([], "")
    assert done.counts() == "2 tried: 2 passed"
    done.check()


@pytest.mark.server
def test_callables_of_trio(tmp_path: Path) -> None:
    found = sweep(waits_in_trio, **QUICK, out=tmp_path / "out", library="trio")
    assert {one.cause.place for one in found.findings} == {"in_trio (test_sweep.py)"}
    sound = sweep(gives_up_in_trio, **QUICK, out=tmp_path / "out", library="trio")
    assert sound.counts() == "2 tried: 2 failed loudly"


@pytest.mark.server
async def test_in_a_loop_of_trio(tmp_path: Path) -> None:
    """The loop that runs says which one the callable gets; the blocking form is refused."""
    with pytest.raises(BlockingCall, match=r"block trio's event loop .*: await sweep_async\(\)"):
        sweep(gives_up_in_trio)
    done = await sweep_async(gives_up_in_trio, **QUICK, out=tmp_path / "out")
    assert done.counts() == "2 tried: 2 failed loudly"


@pytest.mark.server
def test_in_a_loop_of_asyncio(tmp_path: Path) -> None:
    async def main() -> None:
        done = await sweep_async(asks_again, **QUICK, out=tmp_path / "out")
        done.check()
        with pytest.raises(BlockingCall):
            sweep(asks_again)

    asyncio.run(main())


@pytest.mark.server
def test_a_cancelled_sweep_ends_what_it_has_started(tmp_path: Path) -> None:
    began, ended = asyncio.Event(), []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def program(_: str) -> None:
            loop.call_soon_threadsafe(began.set)
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(True)

        task = asyncio.create_task(sweep_async(program, out=tmp_path / "out"))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended

    asyncio.run(main())


@pytest.mark.server
def test_a_command_before_the_users_server(tmp_path: Path) -> None:
    text = "link.settimeout(0.3)\nask(b'SUB job 1\\r\\nPUB job 2\\r\\nhi\\r\\n')\n"
    command = [sys.executable, "-S", "-c", textwrap.dedent(HELLO) + text]
    with NatsServer() as server:
        resets = tmp_path / "resets"
        done = sweep(
            command,
            upstream=server.url,
            reset=f"echo $NATS_URL >> {resets}",
            **QUICK,
            out=tmp_path / "out",
        )
        assert done.findings == []
        assert set(resets.read_text().split()) == {server.url}


@pytest.mark.server
def test_a_program_that_fails_without_a_fault(tmp_path: Path) -> None:
    async def fails(_: str) -> None:
        raise ValueError("no")

    with pytest.raises(ConfigError, match=r"fails ended with 1 and no client connected to NATS_URL=.*: no$"):
        sweep(fails, out=tmp_path / "out")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"program": "python x.py"}, "the program must be a callable, or a command as a list of words, not "),
        ({"program": []}, "the program must be a callable, or a command as a list of words, not []"),
        ({"program": ["x"], "library": "trio"}, "library is for callables: a command has its own"),
        ({"faults": ["drops"]}, "faults: there is no fault 'drops': "),
        ({"faults": "drop"}, "faults must be a list, not 'drop'"),
        ({"upstream": "nats://x:1", "cassette": "y.ncap"}, "name one server: upstream or cassette, or none "),
        ({"cassette": "y.ncap", "setup": "true"}, "a cassette has no use for setup"),
        ({"reset": "true"}, "a fresh nats-server has no use for reset"),
        ({"upstream": "http://x"}, "the server's address "),
        ({"pacience": 3}, "there is no option 'pacience'; did you mean 'patience'?"),
        ({"ignore_json": "/a"}, "there is no option 'ignore_json'"),
        ({"out": __file__}, f"{__file__} is not the folder of a sweep"),
    ],
)
def test_bad_use(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        sweep(given.pop("program", waits), **given)
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)
