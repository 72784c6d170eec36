"""What happened, as values: one typed family that log, metrics, captures and test handles subscribe to.

Times are nanoseconds of the proxy's one clock.  `conn` is the connection's number within its recorder;
None where an event belongs to the proxy.  Events never carry payloads or secrets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Opened:
    """A client connected and its server leg stands."""

    t: int
    conn: int
    client: str
    upstream: str
    listener: str = ""
    ordinal: int = 0


@dataclass(frozen=True, slots=True)
class Greeted:
    """A client said who it is (its CONNECT passed), or the server told its account."""

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

    cause: one of the short names in `session/close_reasons.py`.  detail: a sentence where there is more to
    say.
    bytes and frames are what arrived, per direction.  error: the -ERR with which the server closed.  name,
    user: who the client said it is.
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
    name: str = ""
    user: str = ""


@dataclass(frozen=True, slots=True)
class Firing:
    """One time that a rule acted.

    direction: "c2s" or "s2c".  ordinal: the frame's number as it arrived, None for link actions.
    m: how many frames (or connections) the rule's selector had matched, this one included.
    action: what was done ("deny", "drop", "hold", ...).  delay: ns given, 0 where none.
    key: the connection key of the dice.  subject: the client's subject, for logs (at most 256 bytes).
    count: how many frames of one read it speaks for (rewrites, constant delays, drops); all else is the
    first's.
    also: the ordinal, `m` and subject of the other frames it speaks for, where they are told (drops); `each`
    takes them apart.
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
    also: tuple[tuple[int, int, str], ...] = ()

    def each(self) -> Iterator[Firing]:
        """Yield the firings that it stands for: itself, where none are told apart."""
        if not self.also:
            yield self
            return
        yield replace(self, count=1, also=())
        for ordinal, m, subject in self.also:
            yield replace(self, ordinal=ordinal, m=m, subject=subject, count=1, also=())


@dataclass(frozen=True, slots=True)
class Gap:
    """A capture that stood still goes on: for what reason, since when, and what is missing in it."""

    t: int
    conn: int | None
    reason: str
    bytes: int = 0
    frames: int = 0
    since: int = 0


@dataclass(frozen=True, slots=True)
class Notice:
    """Something an operator should read once: level is "info", "warning" or "error"."""

    t: int
    conn: int | None
    level: str
    text: str
    data: dict[str, object] = field(default_factory=dict)


Event = Opened | Greeted | Closed | Firing | Gap | Notice
