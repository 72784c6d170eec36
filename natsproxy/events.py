"""Events: one typed family of values that log, captures and test handles subscribe to.

A time `t` is in nanoseconds of the proxy's clock.  `conn` is the connection's number within its recorder;
None where an event belongs to the proxy itself.  Events never carry payloads or secrets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

PASSED: Final = "passed"
"""The action of a firing whose rule could not see the whole of a frame, and let it pass."""
WOULD_DENY: Final = "would deny"
"""The action of a firing whose rule is in shadow, and let the frame pass that it would deny."""
WOULD_LIMIT: Final = "would limit"
"""The same of one that would hold, drop, refuse or answer the frame, since its sender is over a limit."""
SHADOWED: Final = (WOULD_DENY, WOULD_LIMIT)
"""The actions of rules in shadow."""


_CLAIMED: Final = "(claimed)"  # anybody may claim any name, and would fill the tables
_LONGEST_NAME: Final = 100


class Who(NamedTuple):
    """A client, as far as it is known; unknown facts are empty.

    client: its address.  name, user: of its CONNECT.  user_by: whose word the user is: "natsproxy" and
    "server" have accepted the login, the "certificate" of the client names it, the "client" only says so.
    account: the server's word, else that of the client's JWT.  tls_subject: of its certificate.
    """

    client: str = ""
    name: str = ""
    user: str = ""
    user_by: str = ""
    account: str = ""
    tls_subject: str = ""

    @property
    def labels(self) -> tuple[str, str]:
        """The user and the account for metrics: one who only claims a name has none of his own there."""
        if self.user_by == "client":
            return _CLAIMED, ""
        return self.user[:_LONGEST_NAME], self.account[:_LONGEST_NAME]


UNKNOWN: Final = Who()


@dataclass(frozen=True, slots=True)
class Opened:
    """A client connected and its server leg stands.

    proxied_by: the load balancer that told the client's address, "" for none.
    """

    t: int
    conn: int
    client: str
    upstream: str
    listener: str = ""
    ordinal: int = 0
    proxied_by: str = ""


@dataclass(frozen=True, slots=True)
class Greeted:
    """A client introduced itself (its CONNECT passed), or the server named its account."""

    t: int
    conn: int
    key: str
    name: str = ""
    lang: str = ""
    version: str = ""
    user: str = ""


@dataclass(frozen=True, slots=True)
class Closed:
    """A connection ended.

    cause: one of the short names in `close_reasons.py`.  detail: a sentence, where the cause
    alone does not explain the end.  *_bytes, *_frames: received in that direction.  duration: ns since
    the accept.  error: the -ERR with which the server closed.  upstream: the address of its server, ""
    where it had none.  who: the client.
    """

    t: int
    conn: int
    cause: str
    detail: str = ""
    c2s_bytes: int = 0
    c2s_frames: int = 0
    s2c_bytes: int = 0
    s2c_frames: int = 0
    duration: int = 0
    error: str = ""
    upstream: str = ""
    who: Who = UNKNOWN


@dataclass(slots=True)  # a frozen one takes four times as long to make, for each frame on which a rule acts
class Firing:
    """One time that a rule acted; nobody changes it once it was emitted.

    direction: "c2s" or "s2c".  ordinal: the frame's number as it arrived, None for an action on the link.
    m: the number of frames (or connections) that the rule's selector had matched, this one included.
    action: the action taken ("deny", "drop", "hold", ...).  delay: ns, 0 where there is none.
    key: the connection key, from which the rule's randomness is seeded.  subject: the client's subject, for
    logs (at most 256 bytes).  op: of the frame, "" for an action on the link.  role: the JetStream role that
    the rule selects, "" for none.
    count: the frames of one read, or of a few reads in a row, that the event stands for (rewrites, constant
    delays, drops, copies, damage, what a rule in shadow would deny); the other fields are those of the first.
    also: ordinal, `m`, subject and op of each other frame, where the event names them; `each` makes one
    firing of each.
    who: the client of the connection, as it was known then.
    """

    t: int
    conn: int
    rule: str
    kind: str
    direction: str
    ordinal: int | None
    m: int
    action: str
    delay: int = 0
    key: str = ""
    subject: str = ""
    detail: str = ""
    count: int = 1
    also: tuple[tuple[int, int, str, str], ...] = ()
    op: str = ""
    role: str = ""
    who: Who = UNKNOWN

    @property
    def acted(self) -> bool:
        """False if the rule let a frame pass that was too large for it, or is in shadow."""
        return self.action not in (PASSED, *SHADOWED)

    def each(self) -> Iterator[Firing]:
        """Yield one firing for each frame, or the event itself where `also` does not list them."""
        if not self.also:
            yield self
            return
        yield replace(self, count=1, also=())
        for ordinal, m, subject, op in self.also:
            yield replace(self, ordinal=ordinal, m=m, subject=subject, op=op, count=1, also=())


@dataclass(frozen=True, slots=True)
class RecordingResumed:
    """Recording goes on after it was suspended.

    reason: of the suspension.  since: its begin, ns.  bytes, frames: missing in the capture.
    """

    t: int
    conn: int | None
    reason: str
    bytes: int = 0
    frames: int = 0
    since: int = 0


@dataclass(frozen=True, slots=True)
class FailedOver:
    """A client goes on with another server, in the place of one that was lost.

    server: the name of the new one.  lasted: ns from the loss.  bytes: those of the client that waited.
    refused: requests that were under way, answered by 503.  subscriptions: those that the new server got.
    pulls: the same of JetStream pulls.  who: the client.
    """

    t: int
    conn: int
    server: str
    lasted: int
    bytes: int
    refused: int
    subscriptions: int
    pulls: int
    who: Who = UNKNOWN


@dataclass(frozen=True, slots=True)
class Notice:
    """A message for the operator, sent once.  level: "info", "warning" or "error"."""

    t: int
    conn: int | None
    level: str
    text: str
    data: dict[str, object] = field(default_factory=dict)


Event = Opened | Greeted | Closed | Firing | RecordingResumed | FailedOver | Notice
