"""The login of a client: the greeting of its server, its CONNECT, and what it may send before.

Theory
1. Clients learn addresses from INFO and dial them later, so every INFO is rewritten: "strip" removes the
   addresses of the cluster, "self" puts the proxy's own in their place, "pass" keeps them.  The TLS fields
   are those of the client leg.  The nonce passes, for nkey and JWT users to sign, unless the proxy logs in
   itself.
2. Without an identity of the proxy, clients log in at the server themselves.  With credentials of its own the
   proxy takes the client's out of each CONNECT and puts its own in; clients see no nonce, and `auth_required`
   says what the proxy asks for.  Independently, the key of a trusted proxy signs the nonce (`proxy_sig`,
   ADR-55).
3. Nothing is forwarded from a client that must authenticate before it has: its first frame must be CONNECT,
   and its later bytes wait while that is checked.  The check takes 50 to 100 ms in a thread, so it is an
   action (`Authenticate`), and `answered` continues with the result.  Each CONNECT is checked: nats-server
   accepts a second one, and merges it over the first.
4. Between its CONNECT and its first PONG a client expects nothing else: INFOs that come then are held back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple

from natsproxy import close_reasons
from natsproxy.events import Greeted
from natsproxy.protocol import gojson
from natsproxy.protocol.connect import AUTH_FIELDS, Connect, parse_connect
from natsproxy.protocol.errors import AUTH_TIMEOUT, AUTHORIZATION, UNKNOWN_OP, err_frame
from natsproxy.protocol.info import Info, InfoEdit, edited_info, parse_info, rewrite_info
from natsproxy.rules.interface import Decision
from natsproxy.session.connection import ProxiedConnection
from natsproxy.session.direction import DirectionPipe
from natsproxy.session.phase import AFTER_CONNECT, BEFORE_INFO, Phase, PhaseEvent, PipeEvent
from natsproxy.session.rule_runner import RuleRunner
from natsproxy.session.values import Authenticate, Emit, Hooks, Identity, SessionSettings
from natsproxy.units import parse_version
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, S2C, Op
from natsproxy.wire.parse import head

_GIVEN: Final[dict[str, type]] = {"user": str, "pass": str}
_MOST_EDITS: Final = 64
_MOST_INFOS: Final = 16  # the latest are kept for a client that has had no PONG: each tells the whole state


class UncheckedConnect(NamedTuple):
    """A CONNECT that is being checked, its ordinal, and its options over those of the connection."""

    frame: Frame
    ordinal: int
    connect: Connect


class Login:
    """The login of one client.

    refusal: why no client can be served by this server, as a sentence, None while one can.  speak_by: the
    time (ns) by which the client must have sent something, None for no such time.
    """

    __slots__ = (
        "_connection",
        "_given",
        "_heard",
        "_held_infos",
        "_identity",
        "_key_of",
        "_lifecycle",
        "_nonce",
        "_runner",
        "_unchecked",
        "refusal",
        "speak_by",
    )

    def __init__(self, connection: ProxiedConnection, runner: RuleRunner, hooks: Hooks) -> None:
        self.refusal: str | None = None
        self.speak_by: int | None = None
        self._connection = connection
        self._lifecycle = connection.lifecycle
        self._runner = runner
        self._key_of, self._heard = hooks
        self._identity: Identity | None = connection.settings.identity
        self._unchecked: UncheckedConnect | None = None
        self._held_infos: list[tuple[Frame, int]] = []
        self._nonce = ""
        self._given: dict[str, str] = {}

    # -- the client's CONNECT

    def connect(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> None:
        """Handle CONNECT, at once or when the proxy has checked the client."""
        try:
            connect = self._known(parse_connect(frame.args, self._connection.connect))
        except ValueError as error:
            pipe.drop(frame, ordinal, now, "proxy")
            pipe.step(PipeEvent.END)
            why = f"a CONNECT that nats-server refuses: {error}"
            self._connection.fences.end_here(b"", close_reasons.CLIENT_PROTOCOL, why, now)
            return
        refused = self._lifecycle.phase is Phase.REFUSED
        if refused or not self._checks(pipe, frame, ordinal, connect, now):
            self._connected(pipe, frame, ordinal, connect, now)

    def _connected(self, pipe: DirectionPipe, frame: Frame, ordinal: int, connect: Connect, now: int) -> None:
        """Forward a CONNECT and bind the rules that apply to the client.  connect: its options, merged."""
        connection, lifecycle = self._connection, self._lifecycle
        connection.introduce(connect)
        if lifecycle.phase in AFTER_CONNECT:
            if clears_subscriptions(connection.info.version):
                for sid in (*connection.subs,):
                    connection.subscriptions.forget(sid)
        else:
            connection.key, connection.alike = self._key_of(connect.name, connection.ordinal)
        lifecycle.step(PhaseEvent.CONNECT)
        connection.last_connect = frame.raw
        c = connect
        greeted = Greeted(now, connection.conn, connection.key, c.name, c.lang, c.version, c.user)
        connection.actions.append(Emit(greeted))
        self.speak_by = None
        if lifecycle.phase is Phase.REFUSED:
            pipe.drop(frame, ordinal, now, "proxy")
            return
        # CONNECT gets a record of its own: secrets are taken out of it before it is written.
        pipe.flush(now)
        self._runner.bind(now)
        self._set_hold()
        args, identity = frame.args, self._identity
        if identity is not None:
            args = _server_connect(identity, args, self._nonce)
        # Rules see the frame that goes on: one that changes it must not bring the client's secrets back.
        shown = frame if args is frame.args else head(encode.connect(args), C2S) or frame
        decision = self._runner.decide(pipe, shown, now)
        self._forward(pipe, frame, ordinal, decision, encode.connect, args, now)

    def _set_hold(self) -> None:
        # Until headers are agreed the server may close on an HPUB line alone: hold nothing back.
        connection = self._connection
        limit, most = connection.settings.frame_hold_limit, connection.info.max_payload
        scanner = connection.pipes[C2S].scanner
        scanner.hold = min(limit, most or limit) if connection.connect.headers else 0
        scanner.max_payload = most

    def _known(self, connect: Connect) -> Connect:
        """Return the options of a client with its verified user, which rules match on."""
        identity = self._identity
        if identity is None or not identity.logs_in:
            return connect
        if identity.clients == "users" and self._lifecycle.phase is not Phase.REFUSED:
            return connect  # `_checks` is to come
        return connect._replace(user=identity.user_of(self._connection.certificate), nkey="")

    def _checks(self, pipe: DirectionPipe, frame: Frame, ordinal: int, connect: Connect, now: int) -> bool:
        """Return whether a CONNECT stops here: it is being checked, or was refused."""
        if self._identity is None or not self._identity.asks:
            return False
        if self._identity.clients == "certificate":
            refusal = self._refusal_of_certificate(self._identity)
            if refusal is None:
                self._lifecycle.shut = False
                return False
            self._refuse(pipe, frame, ordinal, refusal, now)
            return True
        self._given |= gojson.fill(frame.args, _GIVEN)
        self._unchecked = UncheckedConnect(frame, ordinal, connect)
        pipe.sender.surplus[frame.op] -= 1
        pipe.waiting = True
        user, password = (self._given.get(name, "") for name in _GIVEN)
        self._connection.actions.append(Authenticate(user, password))
        return True

    def _refusal_of_certificate(self, identity: Identity) -> str | None:
        if not self._connection.tls_subject:
            return "the client has shown no certificate"
        if identity.users is None or identity.user_of(self._connection.certificate):
            return None
        return "the client's certificate stands for no user"

    def answered(self, refusal: str | None, now: int) -> None:
        """Continue with the CONNECT of an `Authenticate`.  refusal: why it is refused, None if it is not."""
        connection = self._connection
        if self._unchecked is None or self._lifecycle.over:
            return
        (frame, ordinal, connect), pipe = self._let_go(self._unchecked), connection.pipes[C2S]
        pipe.waiting = False
        if refusal is not None:
            # For the log only: the rules do not see it.  The reason names the user that was claimed.
            known = connection.connect
            connection.introduce(connect._replace(user=known.user, nkey=known.nkey))
            self._refuse(pipe, frame, ordinal, refusal, now)
            return
        self._lifecycle.shut = False
        pipe.pending = True  # the bytes behind it
        self._connected(pipe, frame, ordinal, connect, now)

    def refuse_early(self, pipe: DirectionPipe, now: int) -> None:
        """End the connection of a client that sends anything before its CONNECT."""
        self._end(pipe, "the client sent something else before its CONNECT", now)

    def _refuse(self, pipe: DirectionPipe, frame: Frame, ordinal: int, why: str, now: int) -> None:
        pipe.drop(frame, ordinal, now, "proxy")
        self._end(pipe, why, now)

    def _end(self, pipe: DirectionPipe, why: str, now: int) -> None:
        pipe.step(PipeEvent.END)
        self._connection.fences.end_here(err_frame(AUTHORIZATION.text), close_reasons.UNAUTHORIZED, why, now)

    def abandon(self, now: int, cause: str) -> None:
        """Record a CONNECT that was being checked when the connection ended."""
        if self._unchecked is not None:
            frame, ordinal, _ = self._let_go(self._unchecked)
            self._connection.pipes[C2S].drop(frame, ordinal, now, cause)

    def _let_go(self, unchecked: UncheckedConnect) -> UncheckedConnect:
        """Return the CONNECT that was held, and count it again."""
        self._unchecked = None
        self._connection.pipes[C2S].sender.surplus[unchecked.frame.op] += 1
        return unchecked

    # -- the server's INFO

    def info(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> None:
        """Handle INFO: learn about the server, and forward it as the client is to see it."""
        connection, lifecycle = self._connection, self._lifecycle
        try:
            info = parse_info(frame.args)
        except ValueError as error:
            lifecycle.end(close_reasons.SERVER_PROTOCOL, f"an INFO that does not parse: {error}")
            return
        # The INFO after the first PONG names the account; later ones do not.
        account = info.remote_account or connection.info.remote_account
        connection.info = info if account == info.remote_account else info._replace(remote_account=account)
        self._heard(connection.conn, connection.info)
        first = lifecycle.phase in BEFORE_INFO
        self._set_hold()
        connection.last_info = frame.raw
        if first:
            self._greeted(frame.args, now)
        else:
            if info.remote_account:  # rules may ask for it
                self._runner.bind(now)
            if lifecycle.phase is Phase.CONNECTED:
                # A fence of ours provoked it: clients expect PONG first.
                self._hold_info(pipe, frame, ordinal, now)
                return
        self._send_info(pipe, frame, ordinal, now)

    def _greeted(self, args: bytes, now: int) -> None:
        """Handle the first INFO: the nonce, and whether the server can be proxied."""
        connection = self._connection
        connection.asked = connection.info.auth_required
        if connection.info.nonce:
            self._nonce = gojson.fill(args, {"nonce": str}).get("nonce", "")
        self.refusal = why_unusable(connection.info)
        timeout = connection.settings.auth_timeout
        self.speak_by = now + timeout if timeout else None
        self._lifecycle.step(PhaseEvent.INFO if self.refusal is None else PhaseEvent.UNUSABLE_INFO)

    def _hold_info(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> None:
        if len(self._held_infos) == _MOST_INFOS:
            oldest, place = self._held_infos.pop(0)
            pipe.sender.surplus[oldest.op] += 1
            pipe.drop(oldest, place, now, "proxy")
        # A copy: the frame itself would keep its whole read in memory.
        self._held_infos.append((head(frame.raw, S2C) or frame, ordinal))
        pipe.sender.surplus[frame.op] -= 1

    def _send_info(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> None:
        args = client_info(frame.args, self._connection.settings)
        decision = self._runner.decide(pipe, frame._replace(args=args), now)
        self._forward(pipe, frame, ordinal, decision, encode.info, args, now)

    def client_has_pong(self, pipe: DirectionPipe, now: int) -> None:
        """Handle the client's first PONG: forward the INFOs that were held back until then."""
        if self._lifecycle.phase is not Phase.CONNECTED:
            return
        self._lifecycle.step(PhaseEvent.PONG)
        pipe.flush(now)
        held, self._held_infos = self._held_infos, []
        for info, ordinal in held:
            pipe.sender.surplus[info.op] += 1
            self._send_info(pipe, info, ordinal, now)
        self._connection.client_pings.client_is_ready(now)

    def _forward(
        self,
        pipe: DirectionPipe,
        frame: Frame,
        ordinal: int,
        decision: Decision | None,
        form: Callable[[bytes], bytes],
        args: bytes,
        now: int,
    ) -> None:
        """Forward INFO or CONNECT with other arguments, as the rules decided.

        form: makes a frame of arguments.  args: the very same bytes where nothing changes.
        """
        if self._lifecycle.over:
            return
        if decision is not None:
            if decision.out is None and args is not frame.args:
                decision = decision._replace(out=(form(args),), cause=decision.cause or "proxy")
            self._runner.carry_out(pipe, frame, ordinal, decision, now)
        elif args is frame.args:
            pipe.flush(now)
            pipe.pass_(frame, ordinal, now)
        else:
            pipe.replace(frame, ordinal, Decision((form(args),), cause="proxy"), now)
        pipe.flush(now)

    # -- clients that are not served

    def turn_away(self, head: bytes, now: int) -> bool:
        """End the connection of a client whose first bytes are another protocol's; return whether they are.

        It gets the server's own answer, with no fence: it has sent nothing else that the server answers.
        """
        other, connection = other_protocol(head), self._connection
        if other is None:
            return False
        identity = connection.settings.identity
        asks = connection.info.auth_required
        if identity is not None and identity.logs_in:
            asks = identity.asks
        answer = encode.err((AUTHORIZATION if asks else UNKNOWN_OP).text)
        connection.pipes[S2C].inject(answer, Op.ERR.bit, now, "proxy")
        self._lifecycle.end(close_reasons.CLIENT_PROTOCOL, f"the client sent {other}")
        return True

    def end_if_stalled(self, now: int) -> None:
        """End a connection whose client sends no frame in time after INFO, as the server does."""
        if self.speak_by is None or self.speak_by > now:
            return
        self.speak_by = None
        c2s, s2c = self._connection.pipes
        if s2c.outbox.bytes or c2s.full:  # a rule holds its INFO or its frames back
            self.speak_by = now + self._connection.settings.auth_timeout
        elif not c2s.scanner.ordinal and not c2s.mid_frame:
            s2c.inject(encode.err(AUTH_TIMEOUT.text), Op.ERR.bit, now, "proxy")
            said = "did not finish its CONNECT" if c2s.in_bytes else "said nothing"
            self._lifecycle.end(close_reasons.STALLED, f"the client {said} in the auth time-out")


_TLS = ("tls_available", "tls_required", "tls_verify")


def why_unusable(info: Info) -> str | None:
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


def _server_connect(identity: Identity, args: bytes, nonce: str) -> bytes:
    """Return the arguments of a client's CONNECT as the server gets them.

    nonce: of the server's first INFO, or "".  Raises ValueError where `args` is not an object.
    """
    own: dict[str, str] = {}
    remove: set[str] = set()
    if identity.credentials is not None:
        own = identity.credentials.connect_fields(nonce)
        remove = set(AUTH_FIELDS).difference(own)
    if identity.key is not None and nonce:
        own["proxy_sig"] = identity.key.sign(nonce)
    return gojson.rewrite(args, remove=remove.difference(own), set=own)


def client_info(args: bytes, settings: SessionSettings) -> bytes:
    """Return the arguments of INFO as the client gets them; the very same bytes where nothing changes."""
    s = settings
    identity = None if s.identity is None or s.identity.credentials is None else s.identity.clients
    return edited_info(args, _edit(s.advertise, s.self_host, s.self_port, s.self_urls, s.tls, identity))


def _auth_edits(clients: str | None) -> tuple[set[str], dict[str, Any]]:
    """Return the members of INFO that clients do not get, and those that they get changed.

    clients: how they log in (see `Identity`); None where they do so at the server.
    """
    if clients is None:
        return set(), {}
    if clients == "users":
        return {"nonce"}, {"auth_required": True}
    return {"nonce", "auth_required"}, {}


@lru_cache(_MOST_EDITS)  # each connection asks for one
def _edit(
    advertise: str, host: str, port: int, urls: tuple[str, ...], tls: tuple[str, ...], clients: str | None
) -> InfoEdit:
    """Return the edit of INFO; the arguments are fields of the settings.

    clients: how clients log in where the proxy does so itself (see `Identity`), None where it does not.
    """
    hidden, edits = _auth_edits(clients)
    remove = ({*_TLS} - {*tls}) | hidden
    change: dict[str, Any] = dict.fromkeys(tls, True) | edits
    if advertise != "pass":
        if port:
            change |= {"host": host, "port": port}
        remove.add("ws_connect_urls")
        if advertise == "self" and urls:
            change["connect_urls"] = list(urls)
        else:
            remove.add("connect_urls")
    return InfoEdit.of(remove, change)


def lame_duck(args: bytes) -> bytes:
    """Return the arguments of an INFO in lame duck mode."""
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
