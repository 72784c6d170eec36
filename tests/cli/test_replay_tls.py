"""Replays and cassettes with TLS to the server, and to clients."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from natsproxy.capture.read.reader import open_capture
from natsproxy.cli import main
from tests.kit.authority import Authority
from tests.kit.servers import NatsServer
from tests.replay.scripted import hello, write

pytestmark = pytest.mark.server
NATSPROXY = [sys.executable, "-m", "natsproxy"]
PROGRAM = """
import asyncio, os, nats
async def main():
    client = await nats.connect(os.environ["NATS_URL"], allow_reconnect=False)
    subscription = await client.subscribe("e")
    await client.publish("e", b"hello")
    print((await subscription.next_msg(timeout=10)).data.decode())
    await client.close()
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Give a CA that both sides trust."""
    return Authority(tmp_path_factory.mktemp("ca"))


def invoke(*arguments: object) -> tuple[int, str]:
    """Run a command; return its exit code and its output."""
    done = CliRunner().invoke(main, [str(one) for one in arguments])
    return done.exit_code, done.output


@pytest.mark.parametrize("observed", [False, True])
def test_clients_are_played_to_a_server_with_tls(
    authority: Authority, tmp_path: Path, observed: bool
) -> None:
    capture = write(tmp_path / "x.ncap", hello(1, "a"))
    record = ("--record", tmp_path / "y.ncap") if observed else ()
    with NatsServer(authority.server_config()) as server:
        url = server.url.replace("nats:", "tls:")
        ca = ("--upstream-tls-ca", authority.file)
        code, output = invoke("replay", "to-server", capture, "--to", url, *ca, "--speed", "max", *record)
        assert (code, "missing  0" in output) == (0, True), output
        code, output = invoke("replay", "to-server", capture, "--to", url, *record)
        assert code == 2
        assert "the peer's certificate was refused" in " ".join(output.split())
        code, output = invoke("replay", "to-server", capture, "--to", server.url)
        assert code == 2
        assert "requires TLS: name it tls://" in " ".join(output.split())
    if observed:
        assert list(open_capture(tmp_path / "y.ncap").items())


@pytest.fixture
def environment(authority: Authority, tmp_path: Path) -> dict[str, str]:
    """Give the environment of programs that trust the CA."""
    (tmp_path / "program.py").write_text(PROGRAM)
    return {**os.environ, "SSL_CERT_FILE": str(authority.file)}


@pytest.mark.parametrize("listen", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_program_is_recorded_and_played(
    authority: Authority, tmp_path: Path, environment: dict[str, str], listen: bool
) -> None:
    """From a server with TLS; the program has TLS where the listener has."""
    capture, program = (
        str(tmp_path / "x.ncap"),
        [sys.executable, "-W", "ignore", str(tmp_path / "program.py")],
    )
    tls = ["--listen", "tls://127.0.0.1:0", "--tls-cert", str(authority.server())] if listen else []

    def run(*more: str) -> str:
        command = [*NATSPROXY, "cassette", "run", "--strict", *more, *tls, capture, "--", *program]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    with NatsServer(authority.server_config()) as server:
        assert run("--mode", "once", "--upstream", server.url.replace("nats:", "tls:")) == "hello\n"
    assert run() == "hello\n"


@pytest.mark.parametrize("observed", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_server_plays_to_clients_with_tls(
    authority: Authority, tmp_path: Path, environment: dict[str, str], observed: bool
) -> None:
    """Recorded or not, and passes on what it does not know to a server with TLS."""
    program = [sys.executable, "-W", "ignore", str(tmp_path / "program.py")]
    more = ["--record", str(tmp_path / "y.ncap")] if observed else []
    with NatsServer(authority.server_config()) as server:
        capture = write(tmp_path / "x.ncap", [*hello(1, "a")])
        command = [*NATSPROXY, "replay", "to-client", str(capture), "--stay", "--unrecorded", "pass", *more]
        command += ["--upstream", server.url.replace("nats:", "tls:")]
        command += ["--listen", "tls://127.0.0.1:0", "--tls-cert", str(authority.server())]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as player:
            assert player.stderr is not None
            url = player.stderr.readline().split()[-1]
            assert url.startswith("tls://")
            env = {**environment, "NATS_URL": url}
            done = subprocess.run(program, env=env, capture_output=True, text=True, timeout=60, check=False)
            player.terminate()
            assert (done.stdout, done.returncode) == ("hello\n", 0), done.stderr
            player.communicate()
    if observed:
        assert list(open_capture(tmp_path / "y.ncap").items())
