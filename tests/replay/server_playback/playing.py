"""A playback machine in a test."""

from __future__ import annotations

import gc
from collections.abc import Sequence

from natsproxy.replay.server_playback.actions import SendToClient
from natsproxy.replay.server_playback.playback import ServerPlayback
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, S2C
from natsproxy.wire.parse import frames
from tests.replay.scripted import Line, events

LARGE = b"PING\r\n" * 2000
"""Frames that make a read large: what was read with them must not keep it alive."""


def kept(size: int) -> list[Frame]:
    """Return the frames in memory whose bytes are a part of a read of a size."""
    return [one for one in gc.get_objects() if isinstance(one, Frame) and len(one.buffer) == size]


class Play:
    """A machine, and the bytes that each client got so far."""

    def __init__(self, lines: list[Line], **options: object) -> None:
        self.machine = ServerPlayback(events(lines), **options)  # type: ignore[arg-type]
        self.now = 0
        self.got: dict[int, bytes] = {}
        self.other: list[object] = []

    def open(self, live: int, name: str) -> None:
        self._do(self.machine.opened(live, ("127.0.0.1", 4222)))
        self.got[live] = b""
        self.send(live, b'CONNECT {"verbose":false,"headers":true,"name":"%b"}\r\n' % name.encode())

    def send(self, live: int, data: bytes) -> bytes:
        """Send frames; return what came back at once."""
        before = len(self.got[live])
        self._do(self.machine.received(live, list(frames(data, C2S)), self.now))
        return self.got[live][before:]

    def leave(self, live: int) -> None:
        """End the connection of a client."""
        self._do(self.machine.closed(live, self.now))

    def answer(self, live: int, data: bytes) -> bytes:
        """Let the real server answer; return what came of it."""
        before = len(self.got[live])
        for frame in frames(data, S2C):
            self._do(self.machine.answered(live, frame, self.now))
        return self.got[live][before:]

    def wait(self, ns: int) -> None:
        self.now += ns
        self._do(self.machine.tick(self.now))

    def _do(self, actions: Sequence[object]) -> None:
        for action in actions:
            if isinstance(action, SendToClient):
                self.got[action.client_id] = self.got.get(action.client_id, b"") + action.data
            else:
                self.other.append(action)
