"""One connection: its two directions, its fences, PINGs and subscriptions, and who its peers are.

Each part owns its state, and is created here.  The session, the rules (`rule_runner.py`) and the login work
on these parts.  Rules see the connection as their `View`.
"""

from __future__ import annotations

from natsproxy.capture.filter.redact import Secrets
from natsproxy.events import UNKNOWN, Who
from natsproxy.protocol.connect import Connect
from natsproxy.protocol.info import Info
from natsproxy.session.direction import DirectionPipe, PipeContext
from natsproxy.session.fences import ClientPings, Fences
from natsproxy.session.phase import Lifecycle
from natsproxy.session.subscriptions import Subscriptions
from natsproxy.session.values import Actions, Budget, Certificate, SessionSettings
from natsproxy.wire.frames import Need
from natsproxy.wire.ops import C2S, S2C, Direction
from natsproxy.wire.scanner import Interest, Scanner

_NOTHING = Interest()


class ProxiedConnection:
    """The parts of one connection, and what is known of its peers.

    pipes: the two directions, c2s first.  conn, ordinal: its number, in events and records, and among the
    accepted connections.  key: its name in rules and reports.  connect: the last CONNECT of the client,
    or the defaults before it.  info: the last INFO of the server.  last_connect, last_info: the same as
    frames.  asked: the server's first INFO asked for a login.  server_error: the text of an -ERR with which
    the server closes, "" for none.  subs: the live subscriptions by sid.
    """

    def __init__(
        self,
        settings: SessionSettings,
        conn: int,
        ordinal: int,
        address: str,
        certificate: Certificate,
        record: bool,
        budget: Budget,
    ) -> None:
        self.settings = settings
        self.conn = conn
        self.ordinal = ordinal
        self.address = address
        self._who = UNKNOWN
        self._who_of: tuple[object, ...] = ()
        self.secured(certificate)
        self.key = self.alike = f"#{ordinal}"
        self.info = Info()
        self.asked = False
        self.last_info = b""
        self.last_connect = b""
        self.server_error = ""
        self.actions = Actions()
        self.secrets = Secrets()
        context = PipeContext(settings, conn, record, budget, self.secrets, self.actions)
        self.pipes = self._pipe(C2S, context), self._pipe(S2C, context)
        shut = settings.identity is not None and settings.identity.asks
        self.lifecycle = Lifecycle(conn, self.actions, shut=shut)
        self.fences = Fences(self.pipes, self.lifecycle, settings.fence_timeout)
        self.subscriptions = Subscriptions(self.pipes, self.fences, self.lifecycle)
        self.client_pings = ClientPings(self.pipes, self.lifecycle, self.subscriptions.watch_ops)
        self.subs = self.subscriptions.table
        self.introduce(Connect())

    def _pipe(self, direction: Direction, context: PipeContext) -> DirectionPipe:
        scanner = Scanner(
            direction,
            _NOTHING,
            line_limit=context.settings.max_control_line,
            hold=0 if direction == C2S else context.settings.frame_hold_limit,
            buffer_limit=context.settings.rule_buffer,
        )
        return DirectionPipe(direction, scanner, context)

    # -- the client

    def introduce(self, connect: Connect) -> None:
        """Store the client's CONNECT options."""
        self.connect = connect
        self.subscriptions.verbose = connect.verbose

    def secured(self, certificate: Certificate) -> None:
        """Store the client's certificate: its handshake may come after INFO."""
        self.certificate = certificate
        self.tls_subject = certificate.subject

    @property
    def who(self) -> Who:
        """The client, as far as it is known now."""
        known = self.connect, self.info, self.certificate, self.lifecycle.logged_in
        if known != self._who_of:  # each firing has it: mostly the same values, which compare at once
            self._who_of = known
            self._who = Who(
                client=self.address,
                name=self.connect.name,
                user=self.connect.who,
                user_by=self.user_by,
                account=self.info.remote_account or self.connect.jwt.account,
                tls_subject=self.tls_subject,
            )
        return self._who

    @property
    def user_by(self) -> str:
        """Whose word the user is: that of "natsproxy", the "certificate", the "server", the "client"; or "".

        The server's word is that it has accepted a login which names one user only, and has looked at it.
        """
        if not self.connect.who:
            return ""
        identity = self.settings.identity
        if identity is not None and identity.logs_in:
            if identity.clients == "certificate" and self.connect.user == identity.user_of(self.certificate):
                return "certificate"
            return "natsproxy" if identity.clients == "users" else "client"
        return "server" if self._is_accepted() else "client"

    def _is_accepted(self) -> bool:
        """Tell whether the server has accepted the very user that CONNECT names."""
        connect, info = self.connect, self.info
        if not (self.lifecycle.logged_in and info.auth_required and connect.claims_one_user):
            return False
        if info.tls_verify:
            # With verify_and_map the user is that of our certificate, and CONNECT is not looked at.
            return connect.jwt.names_account(info.remote_account)
        # With no_auth_user, an nkey or a JWT that the server has no use for is not looked at.
        return self.asked or bool(connect.user)

    def login(self) -> dict[str, str]:
        """Return who the client is, for records: only what is known and verified.

        The user of a client that logs in at the server itself is not: only the server checks it.
        """
        identity, who = self.settings.identity, self.who._asdict()
        who["account"] = self.info.remote_account
        if identity is None or not identity.logs_in:
            del who["user"]
        return {name: who[name] for name in ("user", "account", "tls_subject") if who.get(name)}

    # -- the view of the rules

    @property
    def subs_version(self) -> int:
        """A number that changes whenever a live subscription is added, is removed or gets a limit."""
        return self.subs.version

    def count_sid(self, sid: bytes) -> None:
        """Count the messages on `sid` until the subscription ends, without looking at them."""
        self.subscriptions.count(sid)

    def watch_subject(self, direction: Direction, subject: bytes, need: Need) -> None:
        """Have the scanner return every message frame of exactly `subject`."""
        self.pipes[direction].scanner.watch_subjects[subject] = need

    def unwatch_subject(self, direction: Direction, subject: bytes) -> None:
        """Undo `watch_subject`."""
        self.pipes[direction].scanner.watch_subjects.pop(subject, None)
