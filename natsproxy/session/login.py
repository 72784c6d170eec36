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
   action (`Authenticate`), and `answered` takes the result.  Each CONNECT is checked: nats-server
   accepts a second one, and merges it over the first.
4. Between its CONNECT and its first PONG a client expects nothing else: INFOs that come then are held back.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple

from natsproxy import close_reasons
from natsproxy.protocol import gojson
from natsproxy.protocol.connect import AUTH_FIELDS, Connect, parse_connect
from natsproxy.protocol.errors import AUTH_TIMEOUT, AUTHORIZATION, UNKNOWN_OP, err_frame
from natsproxy.protocol.info import Info, InfoEdit, edited_info, rewrite_info, why_unusable
from natsproxy.protocol.jwt import NOBODY
from natsproxy.session.direction import DirectionPipe
from natsproxy.session.fences import Fences
from natsproxy.session.phase import Lifecycle, Phase, PhaseEvent, PipeEvent
from natsproxy.session.values import Act, Authenticate, Certificate, Identity, SessionSettings
from natsproxy.units import parse_version
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import S2C, Op
from natsproxy.wire.parse import head

_GIVEN: Final[dict[str, type]] = {"user": str, "pass": str}
_SIGNATURES: Final = frozenset({"sig", "proxy_sig"})
_MOST_EDITS: Final = 64
_MOST_INFOS: Final = 16  # the latest are kept for a client that has had no PONG: each tells the whole state


class UncheckedConnect(NamedTuple):
    """A CONNECT that is being checked, its ordinal, and its options over those of the connection."""

    frame: Frame
    ordinal: int
    connect: Connect


class Login:
    """The login of one client: which of its CONNECTs go on, and how.

    refusal: why no client can be served by this server, as a sentence, None while one can.  speak_by: the
    time (ns) by which the client must have sent something, None for no such time.
    """

    __slots__ = (
        "_act",
        "_asked",
        "_c2s",
        "_fences",
        "_given",
        "_held_infos",
        "_identity",
        "_lifecycle",
        "_nonce",
        "_s2c",
        "_settings",
        "_unchecked",
        "refusal",
        "speak_by",
    )

    def __init__(
        self,
        settings: SessionSettings,
        pipes: tuple[DirectionPipe, DirectionPipe],
        fences: Fences,
        lifecycle: Lifecycle,
        act: Act,
    ) -> None:
        self.refusal: str | None = None
        self.speak_by: int | None = None
        self._settings = settings
        self._c2s, self._s2c = pipes
        self._fences = fences
        self._lifecycle = lifecycle
        self._act = act
        self._identity: Identity | None = settings.identity
        self._unchecked: UncheckedConnect | None = None
        self._held_infos: list[tuple[Frame, int]] = []
        self._nonce = ""
        self._asked = False  # the server's first INFO asked for a login
        self._given: dict[str, str] = {}

    # -- the client's CONNECT

    def connect(
        self, frame: Frame, ordinal: int, known: Connect, certificate: Certificate, now: int
    ) -> Connect | None:
        """Return the options of a CONNECT that goes on; None for one that is refused, or to be checked.

        known: the options of the connection so far.
        """
        try:
            connect = self._verified(parse_connect(frame.args, known), certificate)
        except ValueError as error:
            self._c2s.drop(frame, ordinal, now, "proxy")
            self._c2s.step(PipeEvent.END)
            why = f"a CONNECT that nats-server refuses: {error}"
            self._fences.end_here(b"", close_reasons.CLIENT_PROTOCOL, why, now)
            return None
        refused = self._lifecycle.phase is Phase.REFUSED
        if refused or not self._checks(frame, ordinal, connect, certificate, now):
            return connect
        return None

    def _verified(self, connect: Connect, certificate: Certificate) -> Connect:
        """Return the options of a client with its verified user, which rules match on."""
        identity = self._identity
        if identity is None or not identity.logs_in:
            return connect
        if identity.clients == "users" and self._lifecycle.phase is not Phase.REFUSED:
            return connect._replace(nkey="", jwt=NOBODY)  # `_checks` is to come
        return connect._replace(user=identity.user_of(certificate), nkey="", jwt=NOBODY)

    def _checks(
        self, frame: Frame, ordinal: int, connect: Connect, certificate: Certificate, now: int
    ) -> bool:
        """Return whether a CONNECT stops here: it is being checked, or was refused."""
        if self._identity is None or not self._identity.asks:
            return False
        if self._identity.clients == "certificate":
            refusal = _refusal_of(certificate, self._identity)
            if refusal is None:
                self._lifecycle.shut = False
                return False
            self._refuse(frame, ordinal, refusal, now)
            return True
        self._given |= gojson.fill(frame.args, _GIVEN)
        self._unchecked = UncheckedConnect(frame, ordinal, connect)
        self._c2s.sender.surplus[frame.op] -= 1
        self._c2s.waiting = True
        user, password = (self._given.get(name, "") for name in _GIVEN)
        self._act(Authenticate(user, password))
        return True

    def answered(self, refusal: str | None, now: int) -> UncheckedConnect | None:
        """Take the answer to an `Authenticate`; return the CONNECT that it is about, None for none.

        refusal: why it is refused, and ends here; None where it is to go on.
        """
        if self._unchecked is None or self._lifecycle.over:
            return None
        checked = self._let_go(self._unchecked)
        self._c2s.waiting = False
        if refusal is None:
            self._lifecycle.shut = False
            self._c2s.pending = True  # the bytes behind it
        else:
            self._refuse(checked.frame, checked.ordinal, refusal, now)
        return checked

    def server_connect(self, args: bytes) -> bytes:
        """Return the arguments of CONNECT as the server gets them; the very same where nothing changes."""
        return args if self._identity is None else _server_connect(self._identity, args, self._nonce)

    def refuse_early(self, now: int) -> None:
        """End the connection of a client that sends anything before its CONNECT."""
        self._end("the client sent something else before its CONNECT", now)

    def _refuse(self, frame: Frame, ordinal: int, why: str, now: int) -> None:
        self._c2s.drop(frame, ordinal, now, "proxy")
        self._end(why, now)

    def _end(self, why: str, now: int) -> None:
        self._c2s.step(PipeEvent.END)
        self._fences.end_here(err_frame(AUTHORIZATION.text), close_reasons.UNAUTHORIZED, why, now)

    def abandon(self, now: int, cause: str) -> None:
        """Record a CONNECT that was being checked when the connection ended."""
        if self._unchecked is not None:
            frame, ordinal, _ = self._let_go(self._unchecked)
            self._c2s.drop(frame, ordinal, now, cause)

    def _let_go(self, unchecked: UncheckedConnect) -> UncheckedConnect:
        """Return the CONNECT that was held, and count it again."""
        self._unchecked = None
        self._c2s.sender.surplus[unchecked.frame.op] += 1
        return unchecked

    def is_repeatable(self, connect: Connect) -> bool:
        """Tell whether another server would take the client's only CONNECT: it signs no nonce."""
        ours = self._identity is not None and self._identity.logs_in
        return self._lifecycle.logged_in and (ours or not connect.credentials & _SIGNATURES)

    # -- the server's INFO

    def greeted_again(self, info: Info, args: bytes) -> None:
        """Handle the first INFO of another server in the place of a lost one.  args: of its frame."""
        self._asked = info.auth_required
        self._nonce = gojson.fill(args, {"nonce": str}).get("nonce", "")

    def greeted(self, info: Info, args: bytes, now: int) -> None:
        """Handle the first INFO: the nonce, and whether the server can be proxied.  args: of its frame."""
        self._asked = info.auth_required
        if info.nonce:
            self._nonce = gojson.fill(args, {"nonce": str}).get("nonce", "")
        self.refusal = why_unusable(info)
        timeout = self._settings.auth_timeout
        self.speak_by = now + timeout if timeout else None
        self._lifecycle.step(PhaseEvent.INFO if self.refusal is None else PhaseEvent.UNUSABLE_INFO)

    def hold_info(self, frame: Frame, ordinal: int, now: int) -> None:
        """Hold an INFO back until the client has had its first PONG."""
        if len(self._held_infos) == _MOST_INFOS:
            oldest, place = self._held_infos.pop(0)
            self._s2c.sender.surplus[oldest.op] += 1
            self._s2c.drop(oldest, place, now, "proxy")
        # A copy: the frame itself would keep its whole read in memory.
        self._held_infos.append((head(frame.raw, S2C) or frame, ordinal))
        self._s2c.sender.surplus[frame.op] -= 1

    def held_infos(self) -> list[tuple[Frame, int]]:
        """Return the INFOs that were held back, with their ordinals, and count them again."""
        held, self._held_infos = self._held_infos, []
        for frame, _ in held:
            self._s2c.sender.surplus[frame.op] += 1
        return held

    # -- who the client is

    def user_by(self, connect: Connect, info: Info, certificate: Certificate) -> str:
        """Return whose word the user is: "natsproxy", "certificate", "server" or "client"; "" without a user.

        The server's word is that it has accepted a login which names one user only, and has looked at it.
        To ask it is no better: `$SYS.REQ.USER.INFO` and connz repeat the user of CONNECT, also one that
        it had no use for.
        """
        if not connect.who:
            return ""
        identity = self._identity
        if identity is not None and identity.logs_in:
            if identity.clients == "certificate" and connect.user == identity.user_of(certificate):
                return "certificate"
            return "natsproxy" if identity.clients == "users" else "client"
        return "server" if self._is_accepted(connect, info) else "client"

    def _is_accepted(self, connect: Connect, info: Info) -> bool:
        """Tell whether the server has accepted the very user that CONNECT names."""
        if not (self._lifecycle.logged_in and info.auth_required and connect.claims_one_user):
            return False
        if info.tls_verify:
            # With verify_and_map the user is that of our certificate, and CONNECT is not looked at.
            return connect.jwt.names_account(info.remote_account)
        # With no_auth_user, an nkey or a JWT that the server has no use for is not looked at.
        return self._asked or bool(connect.user)

    # -- clients that are not served

    def turn_away(self, head: bytes, info: Info, now: int) -> bool:
        """End the connection of a client whose first bytes are another protocol's; return whether they are.

        It gets the server's own answer, with no fence: it has sent nothing else that the server answers.
        """
        other = other_protocol(head)
        if other is None:
            return False
        identity = self._identity
        asks = identity.asks if identity is not None and identity.logs_in else info.auth_required
        answer = encode.err((AUTHORIZATION if asks else UNKNOWN_OP).text)
        self._s2c.inject(answer, Op.ERR.bit, now, "proxy")
        self._lifecycle.end(close_reasons.CLIENT_PROTOCOL, f"the client sent {other}")
        return True

    def end_if_stalled(self, now: int) -> None:
        """End a connection whose client sends no frame in time after INFO, as the server does."""
        if self.speak_by is None or self.speak_by > now:
            return
        self.speak_by = None
        c2s, s2c = self._c2s, self._s2c
        if s2c.outbox.bytes or c2s.full:  # a rule holds its INFO or its frames back
            self.speak_by = now + self._settings.auth_timeout
        elif not c2s.scanner.ordinal and not c2s.mid_frame:
            s2c.inject(encode.err(AUTH_TIMEOUT.text), Op.ERR.bit, now, "proxy")
            said = "did not finish its CONNECT" if c2s.in_bytes else "said nothing"
            self._lifecycle.end(close_reasons.STALLED, f"the client {said} in the auth time-out")


def _refusal_of(certificate: Certificate, identity: Identity) -> str | None:
    if not certificate.subject:
        return "the client has shown no certificate"
    if identity.users is None or identity.user_of(certificate):
        return None
    return "the client's certificate stands for no user"


_TLS = ("tls_available", "tls_required", "tls_verify")


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


def not_lame(args: bytes) -> bytes:
    """Return the arguments of an INFO without the lame duck mode."""
    return rewrite_info(args, remove=("ldm",))


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
