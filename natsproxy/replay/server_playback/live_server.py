"""A real server that answers unrecorded frames: which frames are forwarded to it, and when.

Nothing is forwarded before the first unrecorded frame: a program that sends only recorded ones needs no
server.  Then the current subscriptions of all clients go first: the frame may cause messages to any of them.
Each client has its own connection to the server, so the frame waits until the server has the subscriptions
of the other clients.
"""

from __future__ import annotations

from collections.abc import Mapping

from natsproxy.replay.server_playback.actions import Action, ForwardToServer, SendToClient
from natsproxy.replay.server_playback.client import Client
from natsproxy.replay.server_playback.effect_source import ClientFrame, EffectSource
from natsproxy.replay.server_playback.new_episodes import NewEpisodes
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Op


class LiveServer(EffectSource):
    """Forwards frames of clients.

    clients: the live ones, by number.  new_episodes: collects the unrecorded frames, None for not at all.
    """

    def __init__(self, clients: Mapping[int, Client], new_episodes: NewEpisodes | None = None) -> None:
        self.new_episodes = new_episodes
        self._clients = clients
        self._begun = False

    def accompany(self, client: Client, frame: Frame, now: int) -> list[Action]:
        """Forward a frame that unrecorded ones depend on: SUB, UNSUB, answer to flow control.

        Before the first unrecorded frame, subscriptions are kept to be sent with it.
        """
        unpassed = client.unpassed
        if frame.op == Op.UNSUB and self.new_episodes is not None:
            self.new_episodes.unsubscribed(client, frame, now)
        if self._begun:
            return [_forward(client, frame.raw)]
        if frame.op == Op.SUB:
            unpassed[frame.sid] = frame.raw
        elif frame.op != Op.UNSUB:
            pass  # it answers recorded flow control
        elif not frame.args.strip():
            unpassed.pop(frame.sid, None)
        elif frame.sid in unpassed:  # the limit replaces an earlier one
            sub, end, _ = unpassed[frame.sid].partition(b"\n")
            unpassed[frame.sid] = sub + end + frame.raw
        return []

    def on_frame(self, sent: ClientFrame) -> list[Action]:
        """Forward an unrecorded SUB or publish, after all subscriptions if it is the first."""
        client, frame = sent.client, sent.frame
        actions = [] if self._begun else self._begin(client)
        if frame.op != Op.SUB:  # that was forwarded by `accompany`
            actions.append(_forward(client, frame.raw))
        if self.new_episodes is not None:
            client.committed = True
            self.new_episodes.sent(client, frame, sent.now)
        return actions

    def answered(self, client: Client, frame: Frame, now: int) -> list[Action]:
        """Pass a message, an error or a PONG of the server on to a client."""
        if self.new_episodes is not None and frame.op != Op.PONG:
            self.new_episodes.answered(client, frame, now)
        client.received(frame.sid, frame)
        return [SendToClient(client.id, frame.raw)]

    def on_leave(self, client: Client, now: int) -> list[Action]:
        """Record the end of an added connection."""
        if self.new_episodes is not None:
            self.new_episodes.ended(client, now)
        return []

    def _begin(self, client: Client) -> list[Action]:
        self._begun = True
        actions: list[Action] = []
        for other in self._clients.values():
            if other is not client and other.unpassed:
                actions.append(_forward(other, _taken(other), barrier=True))
        if client.unpassed:
            actions.append(_forward(client, _taken(client)))
        return actions


def _forward(client: Client, data: bytes, *, barrier: bool = False) -> ForwardToServer:
    client.passed = True
    return ForwardToServer(client.id, data, barrier)


def _taken(client: Client) -> bytes:
    data = b"".join(client.unpassed.values())
    client.unpassed.clear()
    return data
