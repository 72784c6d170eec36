"""`--setup`: a command that prepares the server from which a cassette is recorded, or to which it grows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from natsproxy.testing import NatsServer
from tests.replay.cassette.test_scopes import tape

NATSPROXY = str(Path(sys.executable).parent / "natsproxy")
ORDERS = """
import asyncio, os, sys
import nats

async def orders(*numbers):
    nc = await nats.connect(os.environ["NATS_URL"], name="shop")
    js = nc.jetstream(timeout=5)
    for number in numbers:
        if number == "stream":
            await js.add_stream(name="ORDERS", subjects=["orders.>"])
        elif number == "consumer":
            await js.consumer_info("ORDERS", "D")
        elif number == "info":
            await js.stream_info("ORDERS")
        else:
            await js.publish("orders.new", number.encode())
    await nc.close()

asyncio.run(orders(*sys.argv[1:]))
"""


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    path = tmp_path / "orders.py"
    path.write_text(ORDERS)
    return path


def run(orders: Path, server: NatsServer, *options: str, numbers: str) -> tuple[int, str]:
    """Run the program with a cassette beside it; return exit code and output."""
    command = [NATSPROXY, "cassette", "run", "--upstream", server.url, *options]
    done = subprocess.run(
        [*command, str(orders.with_suffix(".ncap")), "--", sys.executable, str(orders), *numbers.split()],
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.server
def test_new_episodes_before_an_empty_server(orders: Path) -> None:
    """It is said that the server has nothing of what was played; a command can put it there."""
    setup = f"{sys.executable} {orders} stream 1"
    with NatsServer(jetstream=True) as server:
        assert run(orders, server, "--mode", "once", numbers="stream 1")[0] == 0
    recorded = orders.with_suffix(".ncap").read_bytes()
    grow = ("--mode", "new_episodes")
    with NatsServer(jetstream=True) as server:
        for new, answer in (("info", "stream not found"), ("2", "no responders")):
            code, said = run(orders, server, *grow, numbers=f"stream 1 {new}")
            assert code == 1
            assert f"the server at {server.url} answered {answer!r}: recorded frames were played" in said
            assert "--setup COMMAND" in said
        assert orders.with_suffix(".ncap").read_bytes() == recorded
        code, said = run(orders, server, *grow, "--setup", "echo no luck; exit 5", numbers="stream 1 info")
        assert code == 2
        assert "the setup command 'echo no luck; exit 5' ended with 5: no luck" in said
        marker = orders.parent / "was-here"
        assert run(orders, server, *grow, "--setup", f"touch {marker}", numbers="stream 1")[0] == 0
        assert not marker.exists()  # nothing new was asked
        code, said = run(orders, server, *grow, "--setup", setup, numbers="stream 1 info 2")
        assert code == 0, said
        assert "frames were added" in said
        assert "stream not found" not in said
        assert run(orders, server, numbers="stream 1 info 2")[0] == 0


@pytest.mark.server
def test_a_recording_begins_with_the_setup(orders: Path) -> None:
    """Which is not recorded, and leaves no recording where it fails."""
    with NatsServer(jetstream=True) as server:
        code, said = run(orders, server, "--mode", "once", "--setup", "exit 1", numbers="1")
        assert (code, "the setup command 'exit 1' ended with 1" in said) == (2, True), said
        assert not orders.with_suffix(".ncap").exists()
        setup = f"{sys.executable} {orders} stream"
        assert run(orders, server, "--mode", "once", "--setup", setup, numbers="1")[0] == 0
    assert b"STREAM.CREATE" not in orders.with_suffix(".ncap").read_bytes()


@pytest.mark.long
@pytest.mark.server
def test_each_scope_is_set_up(tmp_path: Path, orders: Path) -> None:
    tape(tmp_path / "tapes" / "known.ncap", b"1")
    count = tmp_path / "count"
    code = """
import os, urllib.request
for name in ("known", "a", "b"):
    url = os.environ["NATS_CASSETTE_ADMIN"] + "/v1/scope"
    urllib.request.urlopen(urllib.request.Request(url, name.encode(), method="PUT")).close()
"""
    options = ["--admin", "127.0.0.1:0", "--mode", "once", "--no-strict", "--setup", f"echo x >> {count}"]
    with NatsServer() as server:
        command = [NATSPROXY, "cassette", "run", "--upstream", server.url, *options, str(tmp_path / "tapes")]
        done = subprocess.run(
            [*command, "--", sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert count.read_text() == "x\nx\n"
