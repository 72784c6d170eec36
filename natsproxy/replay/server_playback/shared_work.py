"""Work that clients share: messages of a pull consumer go to any worker that asks, as from a server.

Each worker gets the messages that it got in the recording, as long as it asks for them.  Those of a worker
that disconnected go to the others at once; those of one that never connected, or has fallen silent, once
another worker has waited for `PATIENCE`.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from natsproxy.replay.conversation.frame_kind import Consumer, Share
from natsproxy.replay.server_playback.actions import Action
from natsproxy.replay.server_playback.client import Client
from natsproxy.replay.server_playback.effect_source import ClientFrame, EffectSource
from natsproxy.replay.server_playback.progress import ConnectionProgress, Progress
from natsproxy.replay.server_playback.recorded_effects import PATIENCE, RecordedEffects

_Asker = tuple[int, Consumer]


class SharedWork(EffectSource):
    """Gives the messages of workers that do not ask for them to workers that do."""

    def __init__(self, progress: Progress, clients: Mapping[int, Client], effects: RecordedEffects) -> None:
        self._progress = progress
        self._clients = clients
        self._effects = effects
        self._heard: dict[int, int] = {}
        self._asking: dict[_Asker, int] = {}
        self._due: list[tuple[int, _Asker]] = []

    def on_frame(self, sent: ClientFrame) -> list[Action]:
        """Note when a client last sent a frame, and since when it has been asking."""
        client, request = sent.client, sent.request
        self._heard[client.id] = sent.now
        if request is not None and request.batch is not None:
            asker = client.id, request.consumer
            if asker not in self._asking and any(self._others(client, request.consumer)):
                self._asking[asker] = sent.now
                heapq.heappush(self._due, (sent.now + PATIENCE, asker))
        return []

    def on_leave(self, client: Client, now: int) -> list[Action]:
        """Give the messages of a disconnected client to the others."""
        self._heard.pop(client.id, None)
        left = client.playing
        return [] if left is None or not left.left else self._effects.give_away(left, now)

    def next_due(self) -> int | None:
        """Return the time at which a client has waited for `PATIENCE`."""
        return self._due[0][0] if self._due else None

    def on_time(self, now: int) -> list[Action]:
        """Give clients that have waited long enough what others do not ask for."""
        actions: list[Action] = []
        while self._due and self._due[0][0] <= now:
            _, asker = heapq.heappop(self._due)
            client = self._clients.get(asker[0])
            since = self._asking.pop(asker)
            if client is None:
                continue
            since = max(since, client.fed)
            if since + PATIENCE > now:
                self._asking[asker] = since
                heapq.heappush(self._due, (since + PATIENCE, asker))
                continue
            for other in self._others(client, asker[1]):
                if other.client_id is None or self._heard.get(other.client_id, 0) + PATIENCE <= now:
                    actions += self._effects.give_away(other, now)
        return actions

    def _others(self, client: Client, consumer: Consumer) -> list[ConnectionProgress]:
        """Return the other recorded connections that still have messages of a consumer."""
        share = Share("consumer", *consumer)
        return [
            one
            for one in self._progress.connections.values()
            if one is not client.playing
            and share in one.recorded.shares
            and one.unsent
            and not one.gives_away
        ]
