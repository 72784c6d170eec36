"""A blocking raw-socket client for the tests of this folder."""

from __future__ import annotations

import json
import socket


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
