"""A real nats-server for the tests of this folder, and a blocking raw-socket client."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

SERVER = Path(sys.executable).with_name("nats-server")


@contextlib.contextmanager
def running(folder: Path, config: str) -> Iterator[int]:
    """Run a server with a configuration on a free port of loopback; yields the port."""
    path = folder / "server.conf"
    path.write_text(f'host: "127.0.0.1"\nport: -1\nports_file_dir: "{folder}"\n{config}', encoding="utf-8")
    process = subprocess.Popen([SERVER, "-c", path], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = []
    try:
        for line in process.stderr:
            said.append(line)
            if (found := re.search(r"Listening for client connections on [^ ]*:(\d+)", line)) is not None:
                port = int(found[1])
            if "Server is ready" in line:
                break
        else:
            raise RuntimeError("nats-server did not start: " + "".join(said))
        drain = threading.Thread(target=process.stderr.read)
        drain.start()
        yield port
        process.kill()
        drain.join()
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


class Client:
    """A connection that sends bytes and reads until the PONG that answers its fence."""

    def __init__(self, port: int, **connect: object) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self._buffer = b""
        self._until(b"\r\n")
        options = {"verbose": False, "pedantic": False, "headers": True, **connect}
        self.exchange(b"CONNECT " + json.dumps(options).encode() + b"\r\n")

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._buffer:
            data = self._socket.recv(65536)
            if not data:
                raise EOFError(self._buffer)
            self._buffer += data
        read, _, self._buffer = self._buffer.partition(mark)
        return read

    def exchange(self, sent: bytes) -> bytes:
        """Send bytes and a PING; return what came before its PONG."""
        self._socket.sendall(sent + b"PING\r\n")
        return self._until(b"PONG\r\n")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
