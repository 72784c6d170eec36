"""The upstream: dials the server, waits for its greeting, and reports outages to the operator.

An attempt lasts from the dial to the server's first line, INFO.  A connection alone proves nothing: a load
balancer, or the port mapping of a container, accepts connections for a server that is gone, and a server
with `handshake_first` accepts them and sends nothing.  One ClientHello per outage, on a connection of its
own, tells these two apart.

An outage is a warning when it begins, one more for each further reason, and one when it is over, with the
number of connections that were turned away.  Each attempt of each client would only repeat them.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from contextlib import suppress

import trio

from natsproxy.config.settings import ProxySettings
from natsproxy.events import Event, Notice
from natsproxy.net.leg import Leg, LegLost
from natsproxy.session.greeting import refusal_of
from natsproxy.units import format_duration

_RETRY = 0.05  # seconds between attempts while a client is kept waiting
_LONGEST_LINE = 1 << 20  # bytes of the first line
_HELLO_TIMEOUT = 1.0  # seconds for the answer to a ClientHello
_TLS_RECORDS = (b"\x15", b"\x16")  # the first byte of an alert and of a handshake


class NoServer(Exception):
    """The upstream cannot be used now; the text is the reason."""


class Upstream:
    """The server of a proxy, and its outages.  clock: in nanoseconds, for events."""

    def __init__(
        self, settings: ProxySettings, emit: Callable[[Event], None], clock: Callable[[], int]
    ) -> None:
        self._settings = settings
        self._emit = emit
        self._clock = clock
        self._reasons: set[str] = set()  # of this outage, as reported; empty: there is none
        self._since = 0
        self._turned_away = 0
        self._tls: bool | None = None  # whether a server without a greeting speaks TLS; None: not known yet
        self._probing = trio.Lock()

    async def dial(self) -> tuple[Leg, bytes]:
        """Return a leg and the bytes received on it; try again for the time of `upstream_hold`.

        Raises NoServer.
        """
        deadline = trio.current_time() + self._settings.upstream_hold / 1e9
        while True:
            try:
                leg, greeting = await self._attempt()
            except NoServer as error:
                self._down(str(error))
                if trio.current_time() >= deadline:
                    self._turned_away += 1
                    raise
                await trio.sleep(_RETRY)
                continue
            why = refusal_of(greeting)
            if why is None:
                self._up()
            else:  # the session turns the client away, with an -ERR that it understands
                self._down(f"{self._settings.upstream}: {why}")
                self._turned_away += 1
            return leg, greeting

    async def _attempt(self) -> tuple[Leg, bytes]:
        upstream, limit = self._settings.upstream, self._settings.connect_timeout
        reason = f"cannot connect to {upstream}: no answer in time"
        leg = None
        try:
            with trio.move_on_after(limit / 1e9):
                leg = await self._connect()
                reason = f"{upstream} accepts connections and sends no INFO in {format_duration(limit)}"
                greeting = await _first_line(leg)
                if greeting:
                    kept, leg = leg, None
                    return kept, greeting
                reason = f"{upstream} closes connections before its INFO"
        except OSError as error:
            raise NoServer(f"cannot connect to {upstream}: {_reason(error)}") from None
        finally:
            if leg is not None:
                leg.close()
        if leg is not None and await self._speaks_tls():
            reason = f"{upstream} speaks TLS from the first byte (handshake_first), natsproxy does not yet"
        raise NoServer(reason)

    async def _connect(self) -> Leg:
        upstream = self._settings.upstream
        stream = await trio.open_tcp_stream(upstream.host, upstream.port)
        return Leg.from_stream(stream, keepalive=self._settings.keepalive)

    async def _speaks_tls(self) -> bool:
        """Tell whether a server that gave no greeting answers a ClientHello; it gets one per outage."""
        async with self._probing:
            if self._tls is None:
                self._tls = False
                with trio.move_on_after(_HELLO_TIMEOUT):
                    self._tls = await self._answers_hello()
            return self._tls

    async def _answers_hello(self) -> bool:
        try:
            leg = await self._connect()
        except OSError:
            return False
        try:
            leg.write(_client_hello())
            return (await leg.receive())[:1] in _TLS_RECORDS
        except LegLost:
            return False
        finally:
            leg.close()

    # -- outages

    def _down(self, reason: str) -> None:
        if not self._reasons:
            self._since = self._clock()
        if reason not in self._reasons:
            self._reasons.add(reason)
            self._emit(Notice(self._clock(), None, "warning", f"the upstream cannot be used: {reason}"))

    def _up(self) -> None:
        if self._reasons:
            facts: dict[str, object] = {
                "seconds": round((self._clock() - self._since) / 1e9, 3),
                "connections_turned_away": self._turned_away,
            }
            self._emit(Notice(self._clock(), None, "warning", "the upstream is back", facts))
            self._reasons.clear()
            self._turned_away = 0
            self._tls = None


async def _first_line(leg: Leg) -> bytes:
    """Return the bytes of a server up to its first line end or more; `b""` where the stream ends before."""
    line = b""
    try:
        while b"\n" not in line and len(line) < _LONGEST_LINE:
            data = await leg.receive()
            if not data:
                return b""
            line += data
    except LegLost:
        return b""
    return line


def _client_hello() -> bytes:
    out = ssl.MemoryBIO()
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(ssl.MemoryBIO(), out, server_hostname="nats")
    with suppress(ssl.SSLWantReadError):  # it waits for an answer that it will not be given
        client.do_handshake()
    return out.read()


def _reason(error: OSError) -> str:
    """Return the reason why a connection cannot be made: that of the first address that was tried."""
    cause: BaseException | None = error.__cause__
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    first = cause if isinstance(cause, OSError) else error
    number = first.errno or 0  # below zero: the name is not resolved; getaddrinfo has numbers of its own
    return os.strerror(number) if number > 0 else first.strerror or str(first)
