"""The seam between the session and the rules: all that one knows of the other.

The session asks a `ConnectionRules` (the rules that apply to one connection) about each frame that its
interest
wants, and carries out the `Decision`.  The rules see a `View` of the connection and never a socket.

Guarantees of the session to the rules
1. `Chain.bind` is called when the connection opens, again when its CONNECT is known, when the server has
   told its account (second INFO), and when the chain is swapped; `previous` is what it returned before, so
   that counters and state can move over.
2. `decide` is called once per frame of interest, in stream order per direction, with the frame as it was
   received (s2c: as the server sent it).  It must not raise; if it does, that connection is closed with the
   rule named, and no other.
3. `decide` sees a frame before it is sent on.  The subscription table in the view already knows a SUB that
   is being decided; it forgets it again if the decision is not to pass it on.
4. Times are nanoseconds of the proxy's one clock and never go back.
5. `close` is called exactly once for each `ConnectionRules` that was the last of its connection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from natsproxy.wire.ops import Direction

if TYPE_CHECKING:
    from natsproxy.events import Firing
    from natsproxy.protocol.connect import Connect
    from natsproxy.protocol.info import Info
    from natsproxy.rules.model.verdicts import Close
    from natsproxy.wire.frames import Frame, Need
    from natsproxy.wire.scanner import Interest


@dataclass(slots=True)
class Subscription:
    """One live subscription of a connection, as both sides see it.

    subject: what the client asked for.  upstream: what the server was asked for (the same bytes unless
    rewritten).  max: the client's auto-unsubscribe count, 0 for none.  delivered: messages that went to the
    client since the SUB, kept only once there is such a count.  certain: the server has this SUB on that sid;
    not where it was at a limit, and refused this one or another that named the sid as well.
    counted: such a count is there or about to be, and each delivery is looked at.
    ours: the server does not know that count, or has lost its own: the session ends the subscription.
    """

    sid: bytes
    subject: bytes
    queue: bytes = b""
    upstream: bytes = b""
    max: int = 0
    delivered: int = 0
    certain: bool = True
    counted: bool = False
    ours: bool = False


class View(Protocol):
    """What a rule may see of its connection; read-only but for what it watches and counts."""

    conn: int
    ordinal: int
    address: str
    key: str
    connect: Connect
    info: Info

    @property
    def subs(self) -> Mapping[bytes, Subscription]:
        """The live subscriptions by sid."""
        ...

    @property
    def subs_version(self) -> int:
        """A number that is another one whenever a live subscription came, went or got a limit."""
        ...

    @property
    def verbose(self) -> bool:
        """Whether the client asked for (or left on) verbose mode."""
        ...

    @property
    def pedantic(self) -> bool:
        """Whether the client asked for (or left on) pedantic mode."""
        ...

    def count_sid(self, sid: bytes) -> None:
        """Count the deliveries on `sid` from the next frame on, until the subscription ends."""
        ...

    def watch_subject(self, direction: Direction, subject: bytes, need: Need) -> None:
        """Want every message frame of exactly `subject`; the rule must unwatch it."""
        ...

    def unwatch_subject(self, direction: Direction, subject: bytes) -> None:
        """Take back `watch_subject`."""
        ...


class LinkConditions(NamedTuple):
    """How a link of one direction is bent; the default bends nothing.

    paused: bytes are kept, nothing goes out.  swallow: frames are lost from the next frame boundary on.
    rate: bytes per second, None for no limit.  slice_size, slice_delay: bytes are sent in pieces of
    `slice_size` with `slice_delay` ns between.  stop_reading: the peer's bytes stay in its kernel.
    finish: the receiver gets FIN, what still comes is lost.  linger: ns to keep back the FIN of the sender.
    delay: ns by which all that goes out is late, counted from its arrival.
    """

    paused: bool = False
    swallow: bool = False
    rate: int | None = None
    slice_size: int = 0
    slice_delay: int = 0
    stop_reading: bool = False
    finish: bool = False
    linger: int = 0
    delay: int = 0


@dataclass(slots=True)
class Decision:
    """What becomes of one frame.

    out: None for the frame as received, else the whole frames (bytes) that go on in its place; `()` for none.
    answer: whole frames for the frame's sender, at this frame's place in the sender's stream.
    ok: a verbose sender still gets the `+OK` that the frame would have earned (dropped frames).
    upstream_subject: for a SUB that is rewritten: what the server is asked for.
    before, after: whole frames to send ahead of it and behind it.
    until: hold it to that time (ns).  overtake: frames behind it need not wait.  defer: send it after that
    many following frames of its direction, at `until` at the latest.
    close: end the connection (after answering).  firings: what the rules did, in order (their ordinal is the
    session's to fill in).  bent: a link rule came into force with this frame: ask for `shape` again.
    """

    out: tuple[bytes, ...] | None = None
    answer: bytes = b""
    ok: bool = False
    upstream_subject: bytes | None = None
    before: bytes = b""
    after: bytes = b""
    until: int | None = None
    overtake: bool = False
    defer: int = 0
    close: Close | None = None
    cause: str = ""
    firings: tuple[Firing, ...] = ()
    conditions_changed: bool = False


class BatchResult(NamedTuple):
    """What becomes of neighbouring frames of a list that are treated alike.

    stop: the index behind the last of them.  out: None for the frames as received, else what goes on in their
    place, one for each; empty for none.  until: hold them to that time (ns).  cause: the rule, for records.
    """

    stop: int
    out: Sequence[bytes] | None = None
    until: int | None = None
    cause: str = ""


FastPathFunction = Callable[[Sequence["Frame"], int, int, int], list[BatchResult]]
"""From neighbouring whole message frames, the index and the ordinal of the first and the time to what becomes
of them, as far as the short way reaches: the frame behind the last stretch goes to `decide`."""


class ConnectionRules(Protocol):
    """The rules of one connection.

    interest: what the scanners of both directions look out for, by direction.
    alters_delivery: some rule may drop or add deliveries, so UNSUB max is the session's to count.
    opening: what to do with a client that has just been accepted: "serve", "refuse" (RST), "close" (before
    INFO), "close-after-info".
    swift: by direction, the short way for frames that one rule does one simple thing to; None where there is
    none.  Not for a sid whose messages the session counts toward a limit, nor for dropping what earns +OK.
    revoked: live subscriptions (sids) that may not go on under rules that have just come into force, and what
    the -ERR says; the session ends them.
    remade: live subscriptions (sids) that the server has under another subject than these rules say, and that
    subject; the session makes them anew.
    fired: firings of link rules, which belong to no frame, and of the short way; the session takes them out
    after `bind`, `shape` and `due`, and after each read.
    """

    interest: tuple[Interest, Interest]
    alters_delivery: bool
    opening: str
    fastpath: tuple[FastPathFunction | None, FastPathFunction | None]
    revoked: list[tuple[bytes, str]]
    resubscribed: list[tuple[bytes, bytes]]

    @property
    def fired(self) -> list[Firing]:
        """What fired since it was last taken out."""
        ...

    def decide(self, direction: Direction, frame: Frame, now: int) -> Decision | None:
        """Return what becomes of `frame`, or None to pass it untouched."""
        ...

    def conditions(self, direction: Direction, now: int) -> tuple[LinkConditions | None, int | None]:
        """Return how the link is bent now, and when (ns) to ask again; None for never."""
        ...

    def due(self, now: int) -> tuple[list[tuple[Direction, bytes]], Close | None, int | None]:
        """Return frames to inject now (by where they go), a reason to close, and when to ask again."""
        ...

    def close(self, now: int) -> None:
        """Forget the connection."""
        ...


class Chain(Protocol):
    """The loaded rules of a proxy, immutable; one chain replaces another."""

    guards: bool
    """Some rule denies or separates tenants: what cannot be framed must not pass."""

    @property
    def text(self) -> str:
        """The rules as a rules file, for captures; `""` for none."""
        ...

    def bind(self, view: View, previous: ConnectionRules | None, now: int) -> ConnectionRules:
        """Return the rules that apply to a connection."""
        ...


class _NoRules:
    """The bound of an empty chain."""

    alters_delivery = False
    opening = "serve"
    fastpath: tuple[FastPathFunction | None, FastPathFunction | None] = (None, None)

    def __init__(self, interest: Interest) -> None:
        self.interest = (interest, interest)
        self.fired: list[Firing] = []
        self.revoked: list[tuple[bytes, str]] = []
        self.resubscribed: list[tuple[bytes, bytes]] = []

    def decide(self, direction: Direction, frame: Frame, now: int) -> Decision | None:
        return None

    def conditions(self, direction: Direction, now: int) -> tuple[LinkConditions | None, int | None]:
        return None, None

    def due(self, now: int) -> tuple[list[tuple[Direction, bytes]], Close | None, int | None]:
        return [], None, None

    def close(self, now: int) -> None:
        return None


class EmptyChain:
    """A chain without rules: everything passes untouched."""

    guards = False
    text = ""

    def __init__(self) -> None:
        from natsproxy.wire.scanner import Interest as CompiledInterest

        self._active = _NoRules(CompiledInterest())

    def bind(self, view: View, previous: ConnectionRules | None, now: int) -> ConnectionRules:
        """Return the one bound that asks for nothing."""
        return self._active
