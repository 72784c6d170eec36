"""The state of a proxy as others see it: files, `natsproxy healthcheck`, systemd's messages and sockets.

systemd itself is not needed: the tests have a notify socket of their own, and pass sockets as systemd does.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner

from natsproxy.cli import main, supervision
from natsproxy.errors import ConfigError
from natsproxy.net.systemd import Notifier, passed_sockets
from tests.kit.servers import NatsServer

INFO = b'INFO {"server_id":"S","version":"2.12.0","max_payload":1048576} \r\n'
PASS_ON = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4);"
    "os.environ['LISTEN_PID'] = str(os.getpid()); os.execv(sys.executable, [sys.executable, *sys.argv[3:]])"
)


def until(read: Callable[[], Any]) -> Any:
    """Poll until something is true."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if found := read():
            return found
        time.sleep(0.01)
    raise AssertionError("it did not come in 30 s")


class Upstream:
    """A server of one line, on a port that refuses connections until `start` and after `stop`."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.url = f"nats://127.0.0.1:{self._socket.getsockname()[1]}"

    def start(self) -> None:
        """Listen."""
        self._socket.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:  # stopped
                return
            with client:
                client.sendall(INFO)
                client.recv(1)  # the proxy leaves

    def stop(self) -> None:
        """Listen no more."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@contextmanager
def running(
    *options: str, environment: dict[str, str] | None = None, sockets: tuple[socket.socket, ...] = ()
) -> Iterator[subprocess.Popen[str]]:
    """Run a proxy; it is stopped at the end, whatever happens."""
    command = ["-m", "natsproxy", "run", "--drain", "2s", *options]
    numbers = [one.fileno() for one in sockets]
    if sockets:
        command = ["-c", PASS_ON, str(numbers[0]), str(numbers[-1]), *command]
    process = subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, **(environment or {})},
        pass_fds=numbers,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def check(*arguments: str) -> int:
    """Return the exit code of `natsproxy healthcheck`."""
    done = CliRunner().invoke(main, ["healthcheck", *arguments])
    return done.exit_code


def test_files_say_whether_it_is_ready_and_whether_it_lives(tmp_path: Path) -> None:
    """Ready comes and goes with the upstream, live stays; both go with the proxy."""
    ready, live, upstream = tmp_path / "ready", tmp_path / "live", Upstream()
    ready.write_text("of a process that was killed")
    files = ("--ready-file", str(ready), "--live-file", str(live))
    with running("--listen", "127.0.0.1:0", "--upstream", upstream.url, *files) as process:
        until(live.exists)
        assert not ready.exists()
        assert (check(*files), check("--live", *files)) == (1, 0)
        upstream.start()
        until(ready.exists)
        assert re.fullmatch(r"127\.0\.0\.1:\d+\n", ready.read_text())
        assert (check(*files), check("--live", *files)) == (0, 0)
        os.utime(live, (1, 1))
        assert check("--live", *files) == 1
        until(lambda: live.stat().st_mtime > 1)
        host, number = ready.read_text().strip().split(":")
        upstream.stop()
        with socket.create_connection((host, int(number))):  # a client meets it before the next look does
            until(lambda: not ready.exists())
        assert (check(*files), check("--live", *files)) == (1, 0)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_health_check_without_a_file_cannot_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables of `run` name the files too."""
    assert (check(), check("--live")) == (2, 2)
    monkeypatch.setenv("NATSPROXY_READY_FILE", str(tmp_path / "ready"))
    (tmp_path / "ready").touch()
    assert (check(), check("--live")) == (0, 2)
    os.utime(tmp_path / "ready", (1, 1))
    done = CliRunner().invoke(main, ["healthcheck"])
    assert done.exit_code == 1
    assert "the proxy has ended or is stuck" in done.stderr
    os.utime(tmp_path / "ready", (1, time.time() + 60))
    done = CliRunner().invoke(main, ["healthcheck"])
    assert done.exit_code == 1
    assert "is from the future" in done.stderr
    assert check("--ready-file", str(tmp_path)) == 1


def test_a_file_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    place = str(tmp_path / "none" / "ready")
    done = CliRunner().invoke(main, ["run", "--upstream", "nats://127.0.0.1:4223", "--ready-file", place])
    assert done.exit_code == 2
    assert f"cannot write the ready-file {place}: No such file or directory" in done.stderr


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """Give the notify socket of a service manager."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(tmp_path / "notify"))
        made.settimeout(30)
        yield made


def heard(manager: socket.socket, wanted: str) -> dict[str, str]:
    """Return the first message with a field, and count on it to come; pings before it are passed over."""
    while True:
        fields = dict(line.split("=", 1) for line in manager.recv(4096).decode().splitlines())
        if wanted in fields:
            return fields


def test_systemd_hears_of_everything(manager: socket.socket) -> None:
    """READY once the upstream has answered, pings, reloads with their time, the end."""
    upstream = Upstream()
    environment = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "100000"}
    options = ("--listen", "127.0.0.1:0", "--upstream", upstream.url)
    with running(*options, environment=environment) as process:
        first = heard(manager, "STATUS")
        assert first["STATUS"].startswith("not ready: ")
        assert "READY" not in first
        upstream.start()
        ready = heard(manager, "READY")
        assert (ready["READY"], ready["STATUS"]) == ("1", "the upstream answers")
        for _ in range(3):
            assert heard(manager, "WATCHDOG") == {"WATCHDOG": "1"}
        before = time.monotonic_ns() // 1000
        process.send_signal(signal.SIGHUP)
        reloading = heard(manager, "RELOADING")
        assert before <= int(reloading["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000
        assert heard(manager, "READY") == {"READY": "1"}
        process.send_signal(signal.SIGTERM)
        assert heard(manager, "STOPPING") == {"STOPPING": "1"}
        assert heard(manager, "STATUS")["STATUS"] == "not ready: it drains"
        assert process.wait(20) == 0
    upstream.stop()


class Upstreamless:
    """What supervision asks of a proxy; unready: the reason, None if it is ready."""

    relays: dict[int, Any] = {}  # noqa: RUF012
    listen = ()

    def __init__(self, unready: str | None = None) -> None:
        self.unready = unready


def supervised(manager: socket.socket, proxy: Upstreamless) -> supervision.Supervision:
    """Return a supervision of a proxy; a beat is a call of `tell`."""
    notifier = Notifier({"NOTIFY_SOCKET": manager.getsockname()})
    return supervision.Supervision(proxy, notifier, None, None)  # type: ignore[arg-type]


def queued(manager: socket.socket) -> list[bytes]:
    """Return the messages that wait."""
    manager.setblocking(False)
    found = []
    with suppress(BlockingIOError):
        while True:
            found.append(manager.recv(4096))
    return found


def fill(manager: socket.socket) -> None:
    """Send messages until the manager's queue has no more room."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other, suppress(BlockingIOError):
        other.setblocking(False)
        while True:
            other.sendto(b"X=1", manager.getsockname())


def test_a_busy_manager_hears_it_later(manager: socket.socket) -> None:
    """A message that its queue had no room for is sent again, that of a reload too; none comes twice."""
    one = supervised(manager, Upstreamless())
    ready = b"READY=1\nSTATUS=the upstream answers\n"
    fill(manager)
    one.tell(None)
    assert ready not in queued(manager)
    one.tell(None)
    one.tell(None)
    assert queued(manager) == [ready]
    with one.reloading():
        fill(manager)
    assert b"READY=1\n" not in queued(manager)
    one.tell(None)
    one.tell(None)
    assert queued(manager) == [b"READY=1\n"]


def test_a_reload_makes_nothing_ready(manager: socket.socket) -> None:
    proxy = Upstreamless("no server has answered")
    one = supervised(manager, proxy)
    one.tell(None)
    with one.reloading():
        pass
    assert queued(manager) == [b"STATUS=not ready: no server has answered\n"]
    proxy.unready = None
    one.tell(None)
    assert queued(manager) == [b"READY=1\nSTATUS=the upstream answers\n"]


def test_a_watchdog_of_another_process_is_not_pinged(manager: socket.socket) -> None:
    """And no variable is left for a child."""
    environ = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1", "X": "1"}
    assert Notifier(environ).watchdog is None
    assert environ == {"X": "1"}
    assert Notifier({"WATCHDOG_USEC": "1000"}).watchdog is None  # nobody listens
    mine = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "2000", "WATCHDOG_PID": str(os.getpid())}
    assert Notifier(mine).watchdog == 0.002


def test_a_manager_may_have_an_abstract_name_or_be_gone() -> None:
    name = f"natsproxy-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name}")
        manager.settimeout(30)
        notifier = Notifier({"NOTIFY_SOCKET": f"@{name}"})
        notifier.send(READY=1, STATUS="fine\nSTOPPING=1")
        assert manager.recv(100) == b"READY=1\nSTATUS=fine STOPPING=1\n"
    notifier.send(READY=1)
    Notifier({}).send(READY=1)


def listening() -> socket.socket:
    """Return a socket that listens on a free port."""
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    made.listen()
    return made


def port(one: socket.socket) -> int:
    """Return the port of a socket."""
    return int(one.getsockname()[1])


@pytest.mark.server
def test_passed_sockets_are_used_for_their_listeners(nats_server: NatsServer, tmp_path: Path) -> None:
    """Clients that came before the proxy are served, and those that come after it are not lost."""
    first, second = listening(), listening()
    with first, second:
        early = socket.create_connection(first.getsockname())
        early.settimeout(30)
        environment = {"LISTEN_FDS": "2", "LISTEN_FDNAMES": "clients:more"}
        listen = ("--listen", f"127.0.0.1:{port(second)}", "--listen", f"127.0.0.1:{port(first)}")
        ready = tmp_path / "ready"
        options = (*listen, "--upstream", nats_server.url, "--ready-file", str(ready))
        with running(*options, environment=environment, sockets=(first, second)) as process:
            assert early.recv(4096).startswith(b"INFO ")
            until(ready.exists)
            assert ready.read_text() == f"127.0.0.1:{port(second)}\n127.0.0.1:{port(first)}\n"
            early.close()
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        late = socket.create_connection(first.getsockname())  # it waits for the next proxy
        late.close()


@pytest.mark.server
def test_a_passed_socket_without_a_listener_is_an_error(nats_server: NatsServer) -> None:
    with listening() as first, listening() as second:
        options = ("--listen", f"127.0.0.1:{port(first)}", "--upstream", nats_server.url)
        with running(*options, environment={"LISTEN_FDS": "2"}, sockets=(first, second)) as process:
            _, said = process.communicate(timeout=30)
            place = f"127.0.0.1:{port(second)}"
    assert f"the service manager passed a socket for {place}, which no --listen names" in said
    assert process.returncode == 2


def test_what_is_no_listening_socket_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sockets for another process are left alone."""
    environ = {"LISTEN_PID": "1", "LISTEN_FDS": "1", "X": "1"}
    assert passed_sockets(environ) == []
    assert environ == {"X": "1"}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        monkeypatch.setattr("natsproxy.net.systemd._FIRST_FD", os.dup(datagrams.fileno()))
        environ = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "clients"}
        with pytest.raises(
            ConfigError, match="clients was passed as a socket, but is no TCP socket that listens"
        ):
            passed_sockets(environ)


async def test_trouble_of_one_attempt_or_file_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said once for a file, and again after it was written meanwhile."""
    said: list[str] = []
    folder = tmp_path / "run"
    folder.mkdir()

    class Log:
        def error(self, text: str, **facts: Any) -> None:
            said.append(f"{text} {facts.get('reason', '')}".strip())

    class Broken(Upstreamless):
        tried = 0

        async def try_upstream(self) -> None:
            self.tried += 1
            raise ValueError("secret")

    proxy = Broken("no")
    monkeypatch.setattr(supervision, "BEAT", 0.001)
    monkeypatch.setattr(supervision, "_WHEN_NOT", 0.001)
    supervised = supervision.Supervision(proxy, Notifier({}), None, folder / "live")  # type: ignore[arg-type]
    supervised.prepare()
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervised.run, Log())
            await true(lambda: proxy.tried > 2)
            for count in (1, 2):
                shutil.rmtree(folder)
                await true(lambda: said.count(GONE) == count)  # noqa: B023 - it is called here
                folder.mkdir()
                await true((folder / "live").exists)
            nursery.cancel_scope.cancel()
    assert any(line.startswith("natsproxy failed, please report it: ValueError at") for line in said)
    assert not any("secret" in line for line in said)


async def true(read: Callable[[], Any]) -> None:
    """Wait until something is true."""
    while not read():  # noqa: ASYNC110 - it is polled
        await trio.sleep(0.001)


GONE = "state file not written No such file or directory"
