"""A replay job: it plays the clients of a capture to a server, several times, recorded on request.

The second and later iterations play the same conversation under other names (`iterations.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from natsproxy.addresses import Address
from natsproxy.capture.format.connection import ConnectionChoice, ConnectionId
from natsproxy.replay.client_playback.batches import batches
from natsproxy.replay.client_playback.credentials import ReplayCredentials
from natsproxy.replay.client_playback.iterations import Iteration
from natsproxy.replay.client_playback.playback import ClientPlayback, Refused
from natsproxy.replay.client_playback.player import ClientPlayer
from natsproxy.replay.client_playback.state import MissingList
from natsproxy.replay.observe import observe


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """Options of a replay.

    speed: a factor on the recorded times, None for no schedule.  patience: ns to wait for a frame's
    requirements. iterations: how many times.  connections: the recorded ones to play, empty for all.
    refused: is called with the text of each -ERR; True ends an iteration.
    """

    speed: float | None = 1.0
    patience: int = 5_000_000_000
    iterations: int = 1
    connections: ConnectionChoice = field(default_factory=ConnectionChoice)
    credentials: ReplayCredentials = field(default_factory=ReplayCredentials)
    refused: Refused = lambda conn, text: False


class ReplayJob:
    """One replay of a capture against a server.

    missing: the requirements that were not met.  unknown: the chosen connections that the capture lacks.
    """

    def __init__(self, capture: Path, options: ReplayOptions, observed: Path | None = None) -> None:
        self.missing = MissingList()
        self.unknown: list[str] = []
        self.iteration = 0
        self.machine: ClientPlayback | None = None
        self._capture, self._options, self._observed = capture, options, observed
        self._totals = {"frames": 0, "bytes": 0, "received": 0, "connections": 0}
        self._seconds = 0.0
        self._lags = (0, 0)

    async def run(self, server: Address) -> None:
        """Play all iterations.  Raises NatsproxyError where a replay cannot go on."""
        if self._observed is None:
            await self._play(server)
            return
        async with observe(self._observed, server) as proxy:
            await self._play(proxy.listen[0])

    async def _play(self, address: Address) -> None:
        options, played = self._options, set[ConnectionId]()

        def keep(conn: ConnectionId) -> bool:
            if options.connections and conn not in options.connections:
                return False
            played.add(conn)
            return True

        for self.iteration in range(options.iterations):
            machine = self.machine = ClientPlayback(
                Iteration(self.iteration).batches(batches(self._capture)),
                speed=options.speed,
                patience=options.patience,
                keep=keep,
                refused=options.refused,
            )
            player, began = ClientPlayer(machine, address, options.credentials), trio.current_time()
            try:
                await player.run()
            finally:
                self._seconds += trio.current_time() - began
                self._count(machine, player)
        self.unknown = options.connections.without(played)

    def _count(self, machine: ClientPlayback, player: ClientPlayer) -> None:
        self.missing.join(machine.missing)
        self._totals["frames"] += machine.sent
        self._totals["bytes"] += machine.sent_bytes
        self._totals["received"] += machine.received_frames
        self._totals["connections"] += player.connected
        p99, worst = self._lags
        self._lags = (max(p99, machine.lag.percentile(0.99)), max(worst, machine.lag.worst))

    def facts(self) -> dict[str, Any]:
        """Return the counts and times of the replay as JSON values."""
        frames, seconds = self._totals["frames"], self._seconds
        return {
            **self._totals,
            "seconds": round(seconds, 3),
            "frames_per_second": round(frames / seconds) if seconds else 0,
            "lag_p99_ms": round(self._lags[0] / 1e6, 3),
            "worst_lag_ms": round(self._lags[1] / 1e6, 3),
            "missing": self.missing.total,
        }
