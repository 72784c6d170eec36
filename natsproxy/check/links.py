"""Checks of a connection as a whole: PINGs, and clients that take nothing."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from natsproxy import close_reasons
from natsproxy.check.base import Check
from natsproxy.check.history import DELIVERIES, ClientConnection, History, Moment, Table
from natsproxy.check.statement import ProofFrame
from natsproxy.units import short_duration
from natsproxy.wire.ops import C2S, S2C, Direction, Op

_KEEP_ALIVE: Final = (Op.PING, Op.PONG)
_MOST: Final = 64
"""PINGs of one side that are remembered while they are open; no client has more."""


class UnansweredPings(Check):
    """PINGs of a client or of the server that had no PONG in five seconds, on a connection that stayed."""

    from_client = _KEEP_ALIVE
    from_server = _KEEP_ALIVE

    def __init__(self, name: str, history: History) -> None:
        super().__init__(name, history)
        self._open: Table[tuple[ClientConnection, Direction], deque[Moment]] = Table()
        self._lost: Table[tuple[ClientConnection, Direction], tuple[Moment, Moment]] = Table()

    def saw(self, moment: Moment) -> None:
        """Take the next frame."""
        if moment.frame.op == Op.PING:
            self._open.setdefault((moment.conn, moment.direction), deque(maxlen=_MOST)).append(moment)
        elif moment.frame.op == Op.PONG and moment.sent:
            key = (moment.conn, C2S if moment.direction == S2C else S2C)
            waiting = self._open.get(key)
            ping = waiting.popleft() if waiting else None
            # A PING that did not go on has no PONG; one that the proxy made is answered to the proxy.
            while waiting and ping is not None and not ping.passed:
                self._lost.setdefault(key, (ping, ping))
                ping = waiting.popleft()
            if ping is not None and ping.sent and not moment.passed:
                self._lost.setdefault(key, (ping, moment))

    def at_end(self) -> None:
        """Judge what is still open."""
        for (conn, direction), waiting in self._open.items():
            first, pong = self._lost.get((conn, direction), (None, None))
            if first is None:
                first = next((ping for ping in waiting if ping.sent), None)
            if first is None or not self.waited(conn, first.t, self.history.patience.pong):
                continue
            time = short_duration(self.history.until(conn) - first.t)
            who = "the server" if direction == C2S else "the client"
            lost = "" if first.passed else "; it did not reach its peer"
            lost = lost if pong is None or pong is first else "; the PONG was dropped"
            text = f"{conn.label}: {who} did not answer a PING in {time}{lost}"
            self.found(text, [first.proof, pong and pong.proof], first.t, conn)


@dataclass(slots=True)
class _Life:
    """The signs of life of a client: its open PING from the server, and the intervals of PINGs."""

    ping: ProofFrame | None = None
    message: ProofFrame | None = None
    last: dict[Direction, int] = field(default_factory=dict)
    interval: int = 0


class DeafClients(Check):
    """A client whose subscriptions live and that takes nothing for longer than its keep-alive.

    The signs: a PING of the server that reached it stays without PONG for longer than the interval of PINGs
    (as seen on the connection, else two minutes), or the proxy ended the connection because the client took
    no bytes.
    """

    from_client = _KEEP_ALIVE
    from_server = (*_KEEP_ALIVE, *DELIVERIES)

    def __init__(self, name: str, history: History) -> None:
        super().__init__(name, history)
        self._lives: Table[ClientConnection, _Life] = Table()

    def saw(self, moment: Moment) -> None:
        """Take the next frame."""
        op, direction = moment.frame.op, moment.direction
        if op == Op.PING:
            life = self._life(moment.conn)
            before = life.last.get(direction)
            life.last[direction] = moment.t
            if before is not None and moment.sent:
                life.interval = max(life.interval, moment.t - before)
            if direction == S2C and moment.passed and life.ping is None:
                life.ping, life.message = moment.proof, None
        elif op == Op.PONG and direction == C2S and moment.sent:
            self._life(moment.conn).ping = None
        elif op in DELIVERIES and moment.passed:
            life = self._life(moment.conn)
            if life.ping is not None and life.message is None:
                life.message = moment.proof

    def _life(self, conn: ClientConnection) -> _Life:
        return self._lives.setdefault(conn, _Life())

    def at_end(self) -> None:
        """Judge what is still open."""
        for conn, life in self._lives.items():
            if not any(sub.live for sub in conn.subs.values()):
                continue
            if conn.cause == close_reasons.SLOW:
                text = f"{conn.label}: the client took no bytes, with subscriptions live"
                self.found(text, [life.message], self.history.until(conn), conn)
            elif life.ping is not None:
                patience = self.history.patience
                interval = min(life.interval, patience.keep_alive) or patience.keep_alive
                if self.waited(conn, life.ping.t, max(interval, patience.pong)):
                    time = short_duration(self.history.until(conn) - life.ping.t)
                    text = f"{conn.label}: the client took nothing for {time}, with subscriptions live"
                    self.found(text, [life.ping, life.message], life.ping.t, conn)
