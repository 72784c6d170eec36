"""The playback of clients in a test: it notes the bytes of each connection, without sockets and clock."""

from __future__ import annotations

from natsproxy.replay.client_playback.playback import ClientPlayback
from natsproxy.replay.client_playback.state import CloseConnection, Dial, Write
from tests.replay.scripted import MS, Line, events, named

PATIENCE = 1000 * MS


class Play:
    """A machine whose connections stand as soon as they are dialled."""

    def __init__(self, lines: list[Line], speed: float | None = None, **options: object) -> None:
        self.machine = ClientPlayback(events(lines), speed=speed, patience=PATIENCE, **options)  # type: ignore[arg-type]
        assert self.machine.advance(0) == []  # it reads ahead before its clock starts
        self.now = 0
        self.sent: dict[int, bytes] = {}
        self.left: list[int] = []

    def go(self, ns: int = 0) -> None:
        dialled = self.advance(ns)
        while dialled or self.machine.deadline == self.now:
            dialled = self.advance()

    def advance(self, ns: int = 0) -> bool:
        """Carry out what the machine says when it is asked once; tell whether it dialled."""
        self.now += ns
        dialled = False
        for action in self.machine.advance(self.now):
            if isinstance(action, Dial):
                self.machine.connected(action.conn)
                self.sent[action.conn.number] = b""
                dialled = True
            elif isinstance(action, Write):
                self.sent[action.conn.number] += action.data
            else:
                assert isinstance(action, CloseConnection)
                self.left.append(action.conn.number)
        return dialled

    def receive(self, conn: int, data: bytes) -> None:
        for action in self.machine.received(named(conn), data):
            assert isinstance(action, Write)
            self.sent[action.conn.number] += action.data
        self.go()

    def give_up(self) -> None:
        """Let time pass until everything was sent, in vain or not; each wait must have an end."""
        while not self.machine.done:
            deadline = self.machine.deadline
            assert deadline is not None, "it waits for ever"
            self.go(max(0, deadline - self.now))
