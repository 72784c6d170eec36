"""The frames of clients that go to a real server, and from when on.

Nothing goes there before the first unrecorded frame: a program that sends what was recorded needs no server.
Then the subscriptions that all clients have by now go first.  The frame may cause messages to any of them,
and the connections to the server are separate: it waits until the server has the other clients'
subscriptions.
"""

from __future__ import annotations

from collections.abc import Mapping

from natsproxy.replay.server_playback.actions import Action, ForwardToServer
from natsproxy.replay.server_playback.binding import Client
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Op


class Forwarding:
    """Appends `ForwardToServer` actions for the frames of clients.

    clients: all that are there, by number.  actions: those that the driver is given next.
    """

    def __init__(self, clients: Mapping[int, Client], actions: list[Action]) -> None:
        self._clients = clients
        self._actions = actions
        self._begun = False

    def accompany(self, client: Client, frame: Frame) -> None:
        """Pass on a frame that makes unrecorded ones work: a SUB, an UNSUB, an answer to flow control.

        Before the first unrecorded frame, what it will need of them is kept.
        """
        unpassed = client.unpassed
        if self._begun:
            self._forward(client, frame.raw)
        elif frame.op == Op.SUB:
            unpassed[frame.sid] = frame.raw
        elif frame.op != Op.UNSUB:
            return  # the flow that it answers is a recorded one
        elif not frame.args.strip():
            unpassed.pop(frame.sid, None)
        elif frame.sid in unpassed:  # a limit, which replaces the one before
            sub, end, _ = unpassed[frame.sid].partition(b"\n")
            unpassed[frame.sid] = sub + end + frame.raw

    def unrecorded(self, client: Client, frame: Frame) -> None:
        """Pass an unrecorded SUB or publish on; it may be the first."""
        if not self._begun:
            self._begun = True
            for other in self._clients.values():
                if other is not client and other.unpassed:
                    self._forward(other, _taken(other), barrier=True)
            if client.unpassed:
                self._forward(client, _taken(client))
        if frame.op != Op.SUB:  # that was passed on by `accompany`
            self._forward(client, frame.raw)

    def _forward(self, client: Client, data: bytes, *, barrier: bool = False) -> None:
        client.passed = True
        self._actions.append(ForwardToServer(client.id, data, barrier))


def _taken(client: Client) -> bytes:
    data = b"".join(client.unpassed.values())
    client.unpassed.clear()
    return data
