"""The login of a client: its CONNECT on the way to the server, where the proxy has an identity.

A client that must prove who it is gets nothing through before that: its first frame is CONNECT, and behind a
CONNECT that is being checked its bytes wait.  The check itself takes a thread and 50 to 100 ms, so it is an
action (`Authenticate`), and `authenticated` goes on with the answer.  Each CONNECT is checked: nats-server
takes a second one, and merges it over the first.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from natsproxy.protocol import gojson
from natsproxy.protocol.connect import Connect
from natsproxy.protocol.errors import AUTHORIZATION, err_frame
from natsproxy.protocol.info import Info, parse_info, rewrite_info
from natsproxy.session import close_reasons
from natsproxy.session.actions import Authenticate
from natsproxy.session.connection import ConnectionState
from natsproxy.session.direction import DirectionPipe
from natsproxy.session.fences import PongQueue
from natsproxy.session.identity import Identity
from natsproxy.session.phase import Phase, PipeEvent
from natsproxy.session.values import SessionSettings
from natsproxy.units import parse_version
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S

_GIVEN: Final[dict[str, type]] = {"user": str, "pass": str}


class Asked(NamedTuple):
    """A CONNECT that is being checked, its ordinal, and its options over those of the connection."""

    frame: Frame
    ordinal: int
    connect: Connect


class Login:
    """The login of one client.

    asked: the CONNECT that is being checked, None for none.
    """

    __slots__ = ("_given", "_identity", "_nonce", "_pongs", "_state", "asked")

    def __init__(self, state: ConnectionState, pongs: PongQueue) -> None:
        self.asked: Asked | None = None
        self._identity: Identity | None = state.settings.identity
        self._state = state
        self._pongs = pongs
        self._nonce = ""
        self._given: dict[str, str] = {}

    def greeted(self, args: bytes) -> None:
        """Keep the nonce of the server's first INFO: later ones have none."""
        self._nonce = gojson.fill(args, {"nonce": str}).get("nonce", "")

    def known(self, connect: Connect) -> Connect:
        """Return the options of a client with the user that was checked, for rules go by it."""
        identity = self._identity
        if identity is None or not identity.logs_in:
            return connect
        if identity.clients == "users" and self._state.phase is not Phase.REFUSED:  # `checks` is to come
            return connect
        return connect._replace(user=identity.user_of(self._state.certificate), nkey="")

    def checks(self, pipe: DirectionPipe, frame: Frame, ordinal: int, connect: Connect, now: int) -> bool:
        """Return whether a CONNECT is dealt with for now: it is being checked, or was refused."""
        if self._identity is None or not self._identity.asks:
            return False
        if self._identity.clients == "certificate":
            refusal = self._refusal_of_certificate(self._identity)
            if refusal is None:
                self._state.shut = False
                return False
            self._refuse(pipe, frame, ordinal, refusal, now)
            return True
        self._given |= gojson.fill(frame.args, _GIVEN)
        self.asked = Asked(frame, ordinal, connect)
        pipe.sender.surplus[frame.op] -= 1
        pipe.waiting = True
        user, password = (self._given.get(name, "") for name in _GIVEN)
        self._state.actions.append(Authenticate(user, password))
        return True

    def _refusal_of_certificate(self, identity: Identity) -> str | None:
        if not self._state.tls_subject:
            return "the client has shown no certificate"
        if identity.users is None or identity.user_of(self._state.certificate):
            return None
        return "the client's certificate stands for no user"

    def answered(self, refusal: str | None, now: int) -> Asked | None:
        """Return the CONNECT that may go on; None where it was refused.  refusal: the reason, as a clause."""
        if self.asked is None or self._state.over:
            return None
        asked, pipe = self._let_go(self.asked), self._state.pipes[C2S]
        pipe.waiting = False
        if refusal is not None:
            # For the log; the rules see nothing of it any more.  The reason names the user that it is not.
            known = self._state.connect
            self._state.connect = asked.connect._replace(user=known.user, nkey=known.nkey)
            self._refuse(pipe, asked.frame, asked.ordinal, refusal, now)
            return None
        self._state.shut = False
        pipe.pending = True  # the bytes behind it
        return asked

    def refuse_early(self, pipe: DirectionPipe, now: int) -> None:
        """End the connection of a client that sends anything before its CONNECT."""
        self._end(pipe, "the client sent something else before its CONNECT", now)

    def _refuse(self, pipe: DirectionPipe, frame: Frame, ordinal: int, why: str, now: int) -> None:
        pipe.drop(frame, ordinal, now, "proxy")
        self._end(pipe, why, now)

    def _end(self, pipe: DirectionPipe, why: str, now: int) -> None:
        pipe.step(PipeEvent.END)
        self._pongs.end_here(err_frame(AUTHORIZATION.text), close_reasons.UNAUTHORIZED, why, now)

    def rewritten(self, args: bytes) -> bytes:
        """Return the arguments of a CONNECT as the server gets them; the same bytes without an identity."""
        return args if self._identity is None else self._identity.rewritten(args, self._nonce)

    def abandon(self, now: int, cause: str) -> None:
        """Record a CONNECT that was being checked when the connection ended."""
        if self.asked is not None:
            frame, ordinal, _ = self._let_go(self.asked)
            self._state.pipes[C2S].drop(frame, ordinal, now, cause)

    def _let_go(self, asked: Asked) -> Asked:
        """Return the CONNECT that was kept; the counters have it again."""
        self.asked = None
        self._state.pipes[C2S].sender.surplus[asked.frame.op] += 1
        return asked


_TLS = ("tls_available", "tls_required", "tls_verify")


def refusal(info: Info) -> str | None:
    """Return why a server with this INFO cannot be proxied, as a sentence; None if it can."""
    if info.other_port:
        return f"the upstream is a {info.other_port} port, not a client port: give the server's client port"
    return None


def info_of(greeting: bytes) -> Info | None:
    """Return the INFO of a server's first line; None if it is another line, or does not parse."""
    line, _, _ = greeting.partition(b"\n")
    op, _, args = line.partition(b" ")
    if op.upper() != b"INFO":
        return None
    try:
        return parse_info(args.strip(b" \t\r"))  # as the session reads it again
    except ValueError:
        return None


def rewritten(args: bytes, settings: SessionSettings) -> bytes:
    """Return the arguments of INFO as the client gets them; the very same bytes where nothing changes."""
    remove = {*_TLS} - {*settings.tls}
    change: dict[str, Any] = dict.fromkeys(settings.tls, True)
    if settings.identity is not None:
        hidden, edits = settings.identity.info_edits()
        remove |= hidden
        change |= edits
    if settings.advertise == "pass":
        return rewrite_info(args, remove=remove, set=change)
    if settings.self_port:
        change |= {"host": settings.self_host, "port": settings.self_port}
    remove.add("ws_connect_urls")
    if settings.advertise == "self" and settings.self_urls:
        change["connect_urls"] = list(settings.self_urls)
    else:
        remove.add("connect_urls")
    return rewrite_info(args, remove=remove, set=change)


def lame_duck(args: bytes) -> bytes:
    """Return the arguments of an INFO that says: this connection ends soon."""
    return rewrite_info(args, remove=("nonce",), set={"ldm": True})


_OTHERS = (
    (b"\x16", "a TLS ClientHello: the listener is a plain one, and clients reach it by nats://"),
    (b"GET ", "an HTTP request: WebSocket clients need a ws:// listener"),
    (b"PROXY ", "a PROXY protocol header: it comes from no network that the listener names"),
    (
        b"\r\n\r\n\x00\r\nQUIT\n",
        "a PROXY protocol v2 header: it comes from no network that the listener names",
    ),
    (b"\x10", "an MQTT CONNECT: MQTT is not supported"),
)


def other_protocol(head: bytes) -> str | None:
    """Return the protocol of a client whose first bytes are not NATS, as a clause; None if unknown."""
    return next((name for prefix, name in _OTHERS if head.startswith(prefix)), None)


def clears_subscriptions(version: str) -> bool:
    """True if a second CONNECT drops all subscriptions on this server (2.11.17, 2.12.8, 2.14.0 and later)."""
    release = parse_version(version)
    return release >= (2, 14, 0) or (2, 12, 8) <= release < (2, 13, 0) or (2, 11, 17) <= release < (2, 12, 0)
