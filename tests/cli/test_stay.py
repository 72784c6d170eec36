"""`replay to-client --stay`: a server that begins again when all clients have left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from click.testing import CliRunner

from natsproxy.capture.read.reader import open_capture
from natsproxy.cli import main
from natsproxy.testing import NatsServer
from tests.replay.cassette.test_scopes import tape

NATSPROXY = str(Path(sys.executable).parent / "natsproxy")
ORDERS = """
import asyncio, os, sys, uuid
import nats

async def orders(count, break_off):
    nc = await nats.connect(os.environ["NATS_URL"], name="shop", allow_reconnect=False)
    js = nc.jetstream(timeout=5)
    await js.add_stream(name="ORDERS", subjects=["orders.>"])
    for n in range(count):
        ack = await js.publish("orders.new", b'{"id": "%b", "n": %d}' % (str(uuid.uuid4()).encode(), n))
        assert ack.seq == n + 1
        if break_off:
            os._exit(3)
    await nc.close()

asyncio.run(orders(int(sys.argv[1]), "break" in sys.argv))
"""


@dataclass
class Stays:
    """A server that stays.  said: its lines on stderr, behind the first, once it has ended."""

    process: subprocess.Popen[str]
    url: str
    admin: str
    said: list[str]
    out: str = ""

    def program(self, *arguments: str) -> int:
        """Run ORDERS; return its exit code."""
        done = subprocess.run(
            [sys.executable, "-c", ORDERS, *arguments],
            env={**os.environ, "NATS_URL": self.url},
            capture_output=True,
            timeout=60,
            check=False,
        )
        return done.returncode


@contextmanager
def staying(capture: Path, *options: str, **environment: str) -> Iterator[Stays]:
    command = [NATSPROXY, "replay", "to-client", str(capture), "--stay", "--listen", "127.0.0.1:0", *options]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    ) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        found = re.fullmatch(r"playing .* on (nats://\S+?)(?:, scopes at (\S+))?\n", first)
        assert found, first
        stays = Stays(process, found[1], found[2], [])
        try:
            yield stays
        finally:
            process.send_signal(signal.SIGTERM)
            stays.out, said = process.communicate(timeout=30)
            stays.said += said.splitlines()


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record three orders."""
    path = tmp_path_factory.mktemp("orders") / "orders.ncap"
    with NatsServer(jetstream=True) as server:
        command = [NATSPROXY, "cassette", "run", "--mode", "all", "--upstream", server.url, str(path), "--"]
        subprocess.run([*command, sys.executable, "-c", ORDERS, "3"], check=True, timeout=60)
    return path


@pytest.mark.server
def test_run_after_run_is_played_from_the_beginning(orders: Path, tmp_path: Path) -> None:
    """One that broke off is reported, and does not hurt the next; all runs are recorded."""
    with staying(orders, "--json", "--record", str(tmp_path / "all.ncap")) as stays:
        assert [stays.program("3"), stays.program("3")] == [0, 0]
        assert stays.program("3", "break") == 3
        assert stays.program("3") == 0
    assert stays.process.returncode == 1
    assert stays.said[:2] == ["orders.ncap: as recorded"] * 2
    assert stays.said[2].startswith("orders.ncap: no client sent PUB orders.new ")
    assert [stays.said[-3], stays.said[-1]] == [
        "orders.ncap: as recorded",
        "4 runs, 1 of them not as recorded",
    ]
    receipt = json.loads(Path(f"{orders}.receipt.json").read_text())
    (use,) = receipt["cassettes"]
    assert (use["runs"], use["clients"], use["unused"], receipt["isolated"]) == (4, 4, 2, True)
    assert (receipt["exit_code"], receipt["failed_by"], use["passed"]) == (1, "natsproxy", False)
    assert stays.said[-2].startswith("receipt: ")
    facts = json.loads(stays.out)
    assert (facts["runs"], facts["clients"], facts["mismatches"], facts["unused"]) == (4, 4, 0, 2)
    assert open_capture(tmp_path / "all.ncap").tail() is None


@pytest.mark.long
@pytest.mark.server
def test_a_run_that_was_wrong_fails_the_command_in_the_end(orders: Path) -> None:
    """A clean one behind it does not hide it."""
    with staying(orders, "--quiet") as stays:
        assert [stays.program("4") != 0, stays.program("3")] == [True, 0]
    assert stays.process.returncode == 1
    assert "orders.ncap: client 'shop' sent a frame that was never recorded: PUB orders.new" in stays.said[0]
    assert stays.said[-1] == "2 runs, 1 of them not as recorded"
    with staying(orders) as stays:
        pass
    receipt = f"receipt: nothing was played, not isolated ({orders}.receipt.json)"
    assert (stays.process.returncode, stays.said) == (0, [receipt, "0 runs"])
    with staying(orders, "--min-served", "1", "--no-receipt") as stays:
        pass
    assert stays.process.returncode == 1


@pytest.mark.long
@pytest.mark.server
def test_a_folder_is_played_by_choice(orders: Path) -> None:
    tape(orders.parent / "other.ncap", b"1")

    def put(name: str) -> dict[str, dict[str, object]]:
        with urlopen(Request(stays.admin, name.encode(), method="PUT"), timeout=30) as answer:
            found: dict[str, dict[str, object]] = json.load(answer)
        return found

    with staying(orders.parent, "--admin", "127.0.0.1:0") as stays:
        assert stays.program("3") != 0
        put("orders")
        assert [stays.program("3"), stays.program("3")] == [0, 0]
        put("other")
        assert stays.program("3") != 0
        put("orders")
        assert stays.program("3", "break") == 3
        put("orders")
        assert stays.program("3") == 0
    assert stays.process.returncode == 1
    with staying(orders.parent, NATS_CASSETTE_SCOPE="orders") as stays:
        assert [stays.program("3"), stays.program("3")] == [0, 0]
    assert stays.process.returncode == 0
    with staying(orders.parent, "--scope-by-name", "sho*") as stays:
        assert stays.program("3") != 0  # there is no cassette p
    assert stays.process.returncode == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["{x}", "--stay", "--report"], "--report compares one run with the capture: leave --stay out"),
        (["{folder}", "--admin", "127.0.0.1:0"], "cassettes of a folder are played with --stay"),
        (["{x}", "--stay", "--scope", "x"], "chooses a cassette of a folder"),
        (["{x}.not", "--stay"], "no such file"),
        (["{folder}/not", "--stay", "--scope", "x"], "there is no folder"),
        (["{x}", "--stay", "--unrecorded", "pass"], "only with an upstream"),
        (["{x}", "--stay", "--ready-file", "{x}/ready"], "cannot write the ready-file"),
    ],
)
def test_what_cannot_stay(arguments: list[str], expected: str, tmp_path: Path) -> None:
    words = {"x": str(tape(tmp_path / "x.ncap", b"1")), "folder": str(tmp_path)}
    arguments = [one.format(**words) for one in (*arguments, "--listen", "127.0.0.1:0")]
    done = CliRunner().invoke(main, ["replay", "to-client", *arguments])
    assert done.exit_code == 2, done.output
    assert expected in done.output
    assert "Traceback" not in done.output
