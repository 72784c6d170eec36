"""`natsproxy run` as a separate process, for tests that kill it, limit it or measure its memory."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

_READY = 60.0  # seconds, for a machine that is busy with other work


class ProxyProcess:
    """A running proxy on a free port of the loopback, as a context manager.  log: its JSON lines."""

    def __init__(self, upstream: str, *options: str, before: Callable[[], None] | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="natsproxy-")
        self.log = Path(self._folder.name) / "log"
        self._options = ["--listen", "127.0.0.1:0", "--upstream", upstream, "--log-format", "json", *options]
        self._before = before
        self._lines: list[dict[str, Any]] = []
        self._read = 0  # bytes of the log
        self.process: subprocess.Popen[str] = None  # type: ignore[assignment]
        self.port = 0

    def __enter__(self) -> ProxyProcess:
        # A file, not a pipe: a pipe that nobody reads would stop the process.
        command = [sys.executable, "-m", "natsproxy", "run", *self._options]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stderr=log, text=True, preexec_fn=self._before)
        try:
            line = self.wait_for(lambda line: line["event"] == "listening")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        self.port = int(line["listen"][0].rpartition(":")[2])
        return self

    def lines(self) -> list[dict[str, Any]]:
        """Return the lines of the log so far."""
        with self.log.open("rb") as log:
            log.seek(self._read)
            data = log.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._lines += [json.loads(line) for line in whole.splitlines() if line[:1] == b"{"]
        self._read += len(whole)
        return self._lines.copy()

    def wait_for(self, wanted: Callable[[dict[str, Any]], bool], count: int = 1) -> dict[str, Any]:
        """Poll the log for the `count`th matching line and return it.

        Fails where none comes for long, or the process ends.
        """
        deadline, before = time.monotonic() + _READY, 0
        while time.monotonic() < deadline:
            found = [line for line in self.lines() if wanted(line)]
            if len(found) >= count:
                return found[count - 1]
            if len(found) > before:
                deadline, before = time.monotonic() + _READY, len(found)
            if self.process.poll() is not None:
                break
            time.sleep(0.005)
        raise AssertionError(f"no such line in the log: {self.log.read_text()}")

    def memory(self, field: str = "VmRSS") -> int:
        """Return its resident memory in bytes (`VmHWM`: the peak)."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith(field))
        return int(line.split()[1]) * 1024

    def drain(self) -> int:
        """Send SIGTERM and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_READY)

    def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        self.process.kill()
        self.process.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.kill()
        self._folder.cleanup()


def wait_until(condition: Callable[[], bool]) -> None:
    """Return once a condition holds."""
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)
