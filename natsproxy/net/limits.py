"""Limits of a proxy's connections: their number, idle clients and slow clients.

| limit | setting | the client is told | cause of the end |
| --- | --- | --- | --- |
| connections in all | `max_connections` | INFO, then the server's own -ERR | `limit` |
| connections of one address | `max_connections_per_address` | the same | `limit` |
| legs that are being opened (PROXY header, TLS, WebSocket) | both of these, apart | nothing | `limit` |
| a client that sends nothing | `idle_timeout` | `-ERR 'Stale Connection'`, so that it reconnects | `idle` |
| a client that reads nothing | `write_deadline` | nothing: it would not read that either | `slow` |

A client that the proxy does not read (`_is_held`) does not count as silent.

The server has a `write_deadline` too, and ends its leg of a slow client.  The proxy would not learn that
before the client takes the earlier bytes.

The first bytes of a client have a time limit of their own, `auth_timeout`.  The kernel detects a peer that
vanished without closing (`tcp.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Final

import trio

from natsproxy import close_reasons
from natsproxy.addresses import split_host_port
from natsproxy.config.settings import ProxySettings
from natsproxy.net.clock import now_ns
from natsproxy.net.opening import OpeningFailed
from natsproxy.net.relay import Relay
from natsproxy.protocol.errors import STALE
from natsproxy.session.session import Session
from natsproxy.units import format_duration
from natsproxy.wire.ops import C2S

_UNCOUNTED: Final = nullcontext()  # where there is no limit
_LOOKS = 4  # looks at all connections in the shortest time-out


class Limits:
    """Counts the connections of a proxy, and ends idle and slow ones."""

    def __init__(self, settings: ProxySettings) -> None:
        self._settings = settings
        self._opening = self._connections = 0
        self._opening_by_address: Counter[str] = Counter()
        self._by_address: Counter[str] = Counter()
        self._progress: dict[Relay, _ClientProgress] = {}

    # -- numbers

    def opening(self) -> AbstractContextManager[None]:
        """Count a leg that is being opened; raises OpeningFailed where there are too many of them."""
        most = self._settings.max_connections
        return self._counted(most) if most else _UNCOUNTED

    @contextmanager
    def _counted(self, most: int) -> Iterator[None]:
        if self._opening >= most:
            raise OpeningFailed(
                close_reasons.LIMIT, f"{most} other connections are being opened (max-connections)"
            )
        self._opening += 1
        try:
            yield
        finally:
            self._opening -= 1

    def opening_from(self, peer: str) -> AbstractContextManager[None]:
        """Count a leg that is being opened as one of its client's, too; raises OpeningFailed as `opening`.

        peer: `host:port`.  Apart from the connections: a client that has as many as it may gets an -ERR, and
        only a leg that is open can carry one.
        """
        most = self._settings.max_connections_per_address
        return self._counted_from(split_host_port(peer)[0], most) if most else _UNCOUNTED

    @contextmanager
    def _counted_from(self, host: str, most: int) -> Iterator[None]:
        if self._opening_by_address[host] >= most:
            reason = f"{host} is opening {most} connections, max-connections-per-address"
            raise OpeningFailed(close_reasons.LIMIT, reason)
        self._opening_by_address[host] += 1
        try:
            yield
        finally:
            _count_down(self._opening_by_address, host)

    def enter(self, peer: str) -> str | None:
        """Count a connection until `leave`; return the limit that it exceeds, as a clause, or None.

        peer: `host:port`.
        """
        host = split_host_port(peer)[0]
        self._connections += 1
        self._by_address[host] += 1
        most, most_each = self._settings.max_connections, self._settings.max_connections_per_address
        if most and self._connections > most:
            return f"there are {most} connections, max-connections"
        if most_each and self._by_address[host] > most_each:
            return f"{host} has {most_each} connections, max-connections-per-address"
        return None

    def leave(self, peer: str) -> None:
        """Stop counting a connection."""
        host = split_host_port(peer)[0]
        self._connections -= 1
        _count_down(self._by_address, host)

    # -- time

    @property
    def watches(self) -> bool:
        """True if idle or slow clients are to be ended."""
        return bool(self._settings.idle_timeout or self._settings.write_deadline)

    async def watch(self, relays: dict[int, Relay]) -> None:
        """Check all connections periodically, until cancelled."""
        idle, deadline = self._settings.idle_timeout, self._settings.write_deadline
        pause = min(limit for limit in (idle, deadline) if limit) / _LOOKS / 1e9
        while True:
            await trio.sleep(pause)
            self._look(relays.values(), now_ns())

    def _look(self, relays: Iterable[Relay], now: int) -> None:
        """End the connections that made no progress within their time limits."""
        settings, before, self._progress = self._settings, self._progress, {}
        for relay in tuple(relays):
            progress = before.get(relay) or _ClientProgress(now)
            self._progress[relay] = progress
            progress.note(relay, now)
            if 0 < settings.write_deadline <= now - progress.taken:
                time = format_duration(settings.write_deadline)
                relay.kill(close_reasons.SLOW, f"the client took no bytes in {time}")
            elif 0 < settings.idle_timeout <= now - progress.sent:
                time = format_duration(settings.idle_timeout)
                detail = f"the client sent nothing in {time}"
                relay.control(
                    partial(Session.expel, error=STALE.text, cause=close_reasons.IDLE, detail=detail)
                )


def _count_down(counter: Counter[str], host: str) -> None:
    counter[host] -= 1
    if not counter[host]:
        del counter[host]


def _is_held(relay: Relay) -> bool:
    """Tell whether a client is not read, or a limit holds its frames.

    It is not read while it is paused, or its bytes wait, as for a server that takes none.
    """
    outbox = relay.session.pipes[C2S].outbox
    return outbox.conditions.stop_reading or outbox.paced > 0 or relay.client.readable


class _ClientProgress:
    """The progress of one client, as the last look saw it.

    sent: the time (ns) at which it sent bytes last, or was held.  taken: at which it took bytes, or had none
    to take.
    """

    __slots__ = ("_backlog", "_received", "sent", "taken")

    def __init__(self, now: int) -> None:
        self.sent = self.taken = now
        self._received = self._backlog = 0

    def note(self, relay: Relay, now: int) -> None:
        """Compare a connection with the last look."""
        relay.catch_up()
        received, backlog = relay.session.pipes[C2S].in_bytes, relay.client.backlog
        if received != self._received or _is_held(relay):
            self._received, self.sent = received, now
        # A client that takes bytes may have an equal backlog at one look, but not at each.
        if not backlog or backlog != self._backlog:
            self._backlog, self.taken = backlog, now
