"""Selectors choose the frames, and the connections, that a rule is about.

Theory
1. A selector has three parts, checked in this order.  The connection part is checked when a connection is
   bound; direction, op and subject depend on nothing else, so `RuleIndex` caches the answer and makes clauses
   for the scanner of them; the rest (queue, headers, size, role, status) is checked per frame, by `admits`.
2. Subjects are the client's, in both directions.  `side = "server"` makes them the server's.
3. The subject of a MSG is the message's, that of a SUB is its pattern, which a pattern of a rule
   matches as permissions do: wildcards in it are ordinary tokens.
4. Frames without a subject (UNSUB, PING, INFO, CONNECT, +OK, -ERR) are selected by `op` alone; together with
   `subject` that is a contradiction and refused.
5. The part of a frame that a rule must see (`need`) depends on its selector: headers, or the payload for
   roles that depend on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from ipaddress import ip_address, ip_network
from typing import Final, NamedTuple

from natsproxy.addresses import split_host_port
from natsproxy.protocol.headers import HeaderBlock
from natsproxy.protocol.subjects import matches
from natsproxy.rules.interface import View
from natsproxy.rules.model.roles import ROLES, Role
from natsproxy.wire.frames import Frame, Need
from natsproxy.wire.ops import MESSAGE_OPS, OPS, Direction, Op, op_mask

WITH_SUBJECT: Final = op_mask(
    *(spec.op for spec in OPS if any("subject" in form for form in spec.forms.values()))
)
MESSAGES: Final = op_mask(*MESSAGE_OPS)
SUBSCRIPTIONS: Final = op_mask(Op.SUB, Op.UNSUB)
SENDABLE: Final = (
    op_mask(*(spec.op for spec in OPS if spec.from_client)),
    op_mask(*(spec.op for spec in OPS if spec.from_server)),
)
"""The ops that clients send, and those that servers send."""


class Peer(NamedTuple):
    """Conditions on a connection; texts are shell patterns (`svc-*`), None for any.

    user: the one that the proxy has authenticated; where it authenticates nobody, any that CONNECT names
    (user, nkey, name or key of the JWT), which the server may still refuse: a client gets rid of no rule by
    naming another one as well.  address: an IP address or a network ("10.0.0.0/8").  tls_subject: of the
    client's certificate.  server: the name of its server, from INFO.  ordinal: the n-th connection that was
    accepted.
    """

    name: str | None = None
    user: str | None = None
    account: str | None = None
    lang: str | None = None
    version: str | None = None
    address: str | None = None
    tls_subject: str | None = None
    server: str | None = None
    ordinal: int | None = None

    def admits(self, view: View) -> bool:
        """Tell whether a connection meets them, by what is known of it now."""
        if self == ANYBODY:
            return True
        if self.ordinal is not None and self.ordinal != view.ordinal:
            return False
        if self.address is not None and not _in_network(view.address, self.address):
            return False
        client = view.connect
        glob = self.user
        if glob is not None and not any(fnmatchcase(user, glob) for user in client.users or ("",)):
            return False
        wanted = (
            (client.name, self.name),
            (client.lang, self.lang),
            (client.version, self.version),
            (view.tls_subject, self.tls_subject),
            (view.info.server_name, self.server),
            (view.info.remote_account, self.account),
        )
        return all(glob is None or fnmatchcase(value, glob) for value, glob in wanted)

    def words(self) -> list[str]:
        """Return each condition in a few words."""
        return [f"{key} {value}" for key, value in self._asdict().items() if value is not None]


ANYBODY: Final = Peer()


def _in_network(address: str, network: str) -> bool:
    try:
        return ip_address(split_host_port(address)[0]) in ip_network(network, strict=False)
    except ValueError:  # a Unix socket or a name: no network holds it
        return False


@dataclass(frozen=True, slots=True)
class Selector:
    """The conditions of a rule on frames; the default of a field is no condition.

    ops: an op bitmask.  subjects: None for any.  headers: name and shell pattern of a value (None: present).
    without: the same of headers that a frame must not have.  statuses: status codes of HMSG.  framed: the
    rule names conditions on frames, and does not rely on its kind's defaults.
    """

    directions: tuple[Direction, ...] = (Direction.C2S, Direction.S2C)
    ops: int = 0
    subjects: tuple[bytes, ...] | None = None
    unless: tuple[bytes, ...] = ()
    queues: tuple[bytes, ...] | None = None
    headers: tuple[tuple[bytes, str | None], ...] = ()
    without: tuple[tuple[bytes, str | None], ...] = ()
    statuses: tuple[int, ...] = ()
    min_size: int = 0
    max_size: int | None = None
    role: Role | None = None
    peer: Peer = ANYBODY
    side: str = "client"
    framed: bool = False

    def wants(self, direction: Direction) -> int:
        """Return the bitmask of the ops that it selects in a direction."""
        return self.ops & SENDABLE[direction] if direction in self.directions else 0

    @property
    def need(self) -> Need:
        """The part of a frame that it must see to decide."""
        role = self.role.need if self.role is not None else Need.LINE
        return max(role, Need.HEADERS if self.reads_headers else Need.LINE)

    @property
    def reads_headers(self) -> bool:
        """True if it has a condition on headers or status."""
        return bool(self.headers or self.without or self.statuses)

    @property
    def header_names(self) -> set[bytes]:
        """The headers that it asks for."""
        return {name for name, _ in (*self.headers, *self.without)}

    @property
    def dynamic(self) -> bool:
        """True if op and subject alone do not decide, and `admits` must be asked."""
        return (
            bool(self.queues or self.reads_headers or self.min_size or self.role) or self.max_size is not None
        )

    def admits(self, frame: Frame, view: View, headers: HeaderBlock | None = None) -> bool:
        """Tell whether queue, size, headers, status and role of a frame match.

        headers: its block, where somebody has read it.

        Direction, op and subject are not checked: `RuleIndex.candidates` has done that.
        """
        if not self.min_size <= frame.size or (self.max_size is not None and frame.size > self.max_size):
            return False
        if self.queues is not None and not self._queue(frame, view):
            return False
        if self.reads_headers and not self._headers(frame, headers):
            return False
        return self.role is None or self.role.admits(frame)

    def _queue(self, frame: Frame, view: View) -> bool:
        queue = frame.queue
        # A MSG does not carry its queue; its subscription does.
        if not queue and (sub := view.subs.get(frame.sid)) is not None:
            queue = sub.queue
        return bool(queue) and any(matches(pattern, queue) for pattern in self.queues or ())

    def _headers(self, frame: Frame, block: HeaderBlock | None) -> bool:
        if not frame.header_size:
            return not (self.headers or self.statuses)
        if block is None:
            block = HeaderBlock(frame.headers, self.header_names)
        if self.statuses and block.status not in self.statuses:
            return False
        return all(block.has(name, glob) for name, glob in self.headers) and not any(
            block.all_match(name, glob) for name, glob in self.without
        )

    def parts(self) -> list[Selector]:
        """Return the conditions that op and subject do not decide, each as a selector of its own."""
        alone = [
            Selector(queues=self.queues),
            Selector(headers=self.headers),
            Selector(without=self.without),
            Selector(statuses=self.statuses),
            Selector(min_size=self.min_size, max_size=self.max_size),
            Selector(role=self.role),
        ]
        return [part for part in alone if part.dynamic]

    def properties(self) -> str:
        """Return the words for queue, headers, status and size; empty for none."""
        words = []
        if self.queues is not None:
            words.append(f"queue {_listed(self.queues)}")
        for name, glob in self.headers:
            words.append(f"header {_header(name, glob)}")
        for name, glob in self.without:
            words.append(f"no header {_header(name, glob)}")
        if self.statuses:
            words.append(f"status {' or '.join(map(str, self.statuses))}")
        if self.min_size or self.max_size is not None:
            most = "" if self.max_size is None else f" to {self.max_size}"
            words.append(f"{self.min_size}{most} bytes{'' if most else ' or more'}")
        return ", ".join(words)

    def describe(self) -> str:
        """Return the selector in a few words."""
        words = ["/".join(d.label for d in self.directions)]
        words.append(" ".join(op.label for op in Op if self.ops >> op & 1) or "connections")
        if self.subjects is not None:
            words.append(f"on {_listed(self.subjects)}")
        if self.unless:
            words.append(f"but not {_listed(self.unless)}")
        if self.role is not None:
            words.append(f"that are {self.role.name}")
        wanted = self.properties()
        if wanted:
            words.append(f"with {wanted}")
        peer = ", ".join(self.peer.words())
        return " ".join(words) + (f" of clients with {peer}" if peer else "")


def _header(name: bytes, glob: str | None) -> str:
    return f"{name.decode('utf-8', 'replace')}: {'*' if glob is None else glob}"


def _listed(patterns: tuple[bytes, ...]) -> str:
    return ", ".join(pattern.decode("utf-8", "replace") for pattern in patterns)


def role_named(name: str) -> Role:
    """Return the role of that name.  Raises ValueError with the nearest name, or all."""
    if name not in ROLES:
        near = get_close_matches(name, ROLES, 1)
        hint = f"did you mean {near[0]!r}?" if near else ", ".join(ROLES)
        raise ValueError(f"must be a role, which {name!r} is not: {hint}")
    return ROLES[name]
