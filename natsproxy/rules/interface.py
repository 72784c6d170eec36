"""The interface between the session and the rules: all that each side knows of the other.

The session asks a `ConnectionRules` (the rules of one connection) for a decision on each frame that its
interest wants, and carries out the `Decision`.  The rules see a `View` of the connection and never a socket.

Guarantees of the session to the rules
1. It calls `Chain.bind` when the connection opens, when its CONNECT is known, when the server has named its
   account (second INFO), and when the chain is swapped; `previous` is the result of the last call, so that
   counters and state can move over.
   A swap reaches the connections one after the other.  Each keeps its whole old chain until its turn, which
   comes between two of its frames: first `Chain.check` checks its live subscriptions in slices, and those
   that the new rules refuse are ended as they are found; then `bind` puts the whole new chain in force.
2. It calls `decide`, or `steps` where a frame has long headers, once per frame of interest, in stream order
   per direction, with the frame as received (s2c: as the server sent it).  They must not raise; if they do,
   the session closes that connection with the rule named, and no other.  Between two steps it deals with the
   other direction only, and swaps no chain.
3. It calls `decide` before it sends the frame on.  The subscriptions in the view already hold a SUB that is
   being decided; the session removes it again if the decision does not pass it on.
4. Times are nanoseconds of the proxy's one clock and never go back.
5. It calls `close` exactly once for each `ConnectionRules` that was the last one of its connection.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from natsproxy.events import Firing, Who
from natsproxy.protocol.connect import Connect
from natsproxy.protocol.info import Info
from natsproxy.rules.model.verdicts import Close
from natsproxy.wire.frames import Frame, Need
from natsproxy.wire.ops import Direction
from natsproxy.wire.scanner import Interest


@dataclass(slots=True)
class Subscription:
    """One live subscription of a connection, as both sides see it.

    subject: the subject in the client's SUB.  upstream: the subject in the SUB to the server (the same bytes
    unless rewritten).  max: the client's auto-unsubscribe count, 0 for none.  delivered: messages that went
    to the client since the SUB, kept only once `max` is set.  certain: the server has this SUB on that sid;
    False where it was at a limit, and refused this one or another that named the sid as well, or where it
    may still have an earlier one of that sid.
    counted: `max` is set or about to be, and the session looks at each delivery.
    ours: the server does not know `max`, or has lost its own count: the session ends the subscription.
    since: the messages that had come on the connection at its SUB.  unseen: the deliveries that the server
    may have made beside `delivered`, at most.  named_again: another SUB has named the sid.
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
    since: int = 0
    unseen: int = 0
    named_again: bool = False


class View(Protocol):
    """A connection as its rules see it; read-only but for the watches and counts of its methods.

    conn: the connection's number in records.  ordinal: its number among those accepted, from 1.  key: its
    name for random numbers, the same in each run.  alike: its key among the clients whose names differ in
    generated parts only, "worker-*/2".  address: the client's, behind a load balancer too.
    tls_subject: of its certificate, "" for none.
    """

    conn: int
    ordinal: int
    address: str
    tls_subject: str
    key: str
    alike: str
    connect: Connect
    info: Info

    @property
    def who(self) -> Who:
        """The client, for firings."""
        ...

    @property
    def subs(self) -> Mapping[bytes, Subscription]:
        """The live subscriptions by sid."""
        ...

    @property
    def subs_version(self) -> int:
        """A number that changes whenever a live subscription comes, goes or gets a limit."""
        ...

    def count_sid(self, sid: bytes) -> None:
        """Count the deliveries on `sid` from the next frame on, until the subscription ends."""
        ...

    def watch_subject(self, direction: Direction, subject: bytes, need: Need) -> None:
        """Ask for every message frame of exactly `subject`; the rule must unwatch it."""
        ...

    def unwatch_subject(self, direction: Direction, subject: bytes) -> None:
        """Undo `watch_subject`."""
        ...


class LinkConditions(NamedTuple):
    """Conditions of a link in one direction; the default is an undisturbed link.

    paused: bytes are kept, nothing goes out.  swallow: frames are lost from the next frame boundary on.
    rate: bytes per second, None for no limit.  slice_size, slice_delay: bytes are sent in pieces of
    `slice_size` with `slice_delay` ns between.  stop_reading: nothing is read from the sender.
    finish: the receiver gets FIN, bytes that still come are lost.  fin_delay: ns by which the FIN of the
    sender is delayed.  delay: ns by which all bytes are delayed, counted from their arrival.
    """

    paused: bool = False
    swallow: bool = False
    rate: int | None = None
    slice_size: int = 0
    slice_delay: int = 0
    stop_reading: bool = False
    finish: bool = False
    fin_delay: int = 0
    delay: int = 0


class Decision(NamedTuple):
    """The decision on one frame.  It is a tuple, the cheapest frozen value to make.

    out: None for the frame as received, else the whole frames (bytes) that go on in its place; `()` for none.
    answer: whole frames for the frame's sender, at this frame's place in the sender's stream.
    ok: a verbose sender still gets the `+OK` that the frame would have earned (dropped frames).
    upstream_subject: for a SUB that is rewritten: its subject for the server.
    before, after: whole frames to send ahead of it and behind it.
    until: hold it to that time (ns).  paces: hold it until its turn comes (see `Pace`), behind all that
    waits; PONGs and acks behind it need not wait.  overtake: frames behind it need not wait.  defer: send it
    after that many following frames of its direction, at `until` at the latest.
    close: end the connection (after answering); `out` is the frame without that, of which `close.at` says how
    much goes on.  cause: the rule that acted last, for records.  firings: in order; the session fills in
    their ordinal.  conditions_changed: a link rule came into force with this frame: ask for `conditions`
    again, before it goes on.
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
    paces: tuple[Callable[[int], int], ...] = ()


class BatchResult(NamedTuple):
    """The decision on a batch: neighbouring frames of a list.

    stop: the index behind the last of them.  out: None for the frames as received, else the frames that go on
    in their place, one for each; empty for none.  until: hold them to that time (ns).  cause: the rule, for
    records.
    """

    stop: int
    out: Sequence[bytes] | None = None
    until: int | None = None
    cause: str = ""


BatchFunction = Callable[[Sequence["Frame"], int, int, int], list[BatchResult]]
"""Takes neighbouring whole message frames, the index and the ordinal of the first and the time (ns).  Returns
the decisions on batches from there on; the frame behind the last batch goes to `decide`."""


class SubscriptionCheck(Protocol):
    """The check of a connection's live subscriptions against rules that are about to come into force.

    done: all of them were checked, and none was added since.
    """

    done: bool

    def step(self, reached: Callable[[], bool] = ...) -> list[tuple[bytes, str]]:
        """Continue until `reached`; return the sids of subscriptions to end, with the texts of their -ERR."""
        ...


class ConnectionRules(Protocol):
    """The rules of one connection.

    interest: the frames that the scanners look out for, by direction.
    alters_delivery: some rule may drop or add deliveries, so the session must count toward UNSUB max.
    connect_first: a client must send its CONNECT before anything else.
    opening: what to do with a client that was just accepted: "serve", "refuse" (RST), "close" (before INFO),
    "close-after-info".
    batch_functions: by direction, the function for batches of plain messages; None where there is none.  Not
    for a sid whose deliveries the session counts, nor for frames of a verbose client that earn +OK.
    revoked: live subscriptions (sids) that these rules, just come into force, refuse, and the texts of their
    -ERR; the session ends them.
    resubscribed: live subscriptions (sids) that the server has under another subject than these rules map
    them to, and that subject; the session resubscribes them there.
    fired: firings of link rules, which belong to no frame, and of batches; the session empties the list
    after `bind`, `conditions` and `due`, and after each read.
    """

    interest: tuple[Interest, Interest]
    alters_delivery: bool
    connect_first: bool
    opening: str
    batch_functions: tuple[BatchFunction | None, BatchFunction | None]
    revoked: list[tuple[bytes, str]]
    resubscribed: list[tuple[bytes, bytes]]

    @property
    def fired(self) -> list[Firing]:
        """The firings since the session last emptied the list."""
        ...

    def decide(self, direction: Direction, frame: Frame, now: int) -> Decision | None:
        """Return the decision on `frame`, or None to pass it untouched."""
        ...

    def steps(self, direction: Direction, frame: Frame, now: int) -> Generator[None, None, Decision | None]:
        """Make the same decision in steps, each of which takes little time."""
        ...

    def renamed(self, subject: bytes) -> bytes | None:
        """Return the subject under which a client's publish would go on, None where chance decides."""
        ...

    def decisions(self, direction: Direction) -> object | None:
        """Return the static decisions, for the native plane (`rules/engine/_decisions.pyx`).

        None where there are none.  Valid until the session next runs, which asks for it again.
        Frames to which the plane applies it reach neither `decide` nor a batch function; their firings are in
        `fired`.
        """
        ...

    def conditions(self, direction: Direction, now: int) -> tuple[LinkConditions | None, int | None]:
        """Return the conditions of the link now, and when (ns) to ask again; None for never."""
        ...

    def due(self, now: int) -> tuple[list[tuple[Direction, bytes]], Close | None, int | None]:
        """Return frames to inject now (with their direction), a reason to close, and when to ask again."""
        ...

    def close(self, now: int) -> None:
        """Forget the connection."""
        ...


class Chain(Protocol):
    """The loaded rules of a proxy, immutable; one chain replaces another."""

    guards: bool
    """Some rule denies or separates tenants: bytes that cannot be framed must not pass."""

    @property
    def text(self) -> str:
        """The rules as a rules file, for captures; `""` for none."""
        ...

    def begin(self, now: int, unix: Callable[[int], int] | None = None) -> None:
        """Come into force at `now` (ns), from which new rules count their time.

        unix: returns the Unix time (ns) at a time of the proxy's clock; None: they are the same.
        """
        ...

    def bind(
        self,
        view: View,
        previous: ConnectionRules | None,
        now: int,
        check: SubscriptionCheck | None = None,
    ) -> ConnectionRules:
        """Return the rules that apply to a connection; check: a finished one, which is not repeated."""
        ...

    def check(self, view: View, previous: ConnectionRules) -> SubscriptionCheck | None:
        """Return the check to run before `bind` when replacing another chain; None if none is needed."""
        ...


class _NoRules:
    """The rules of a connection under an empty chain."""

    alters_delivery = False
    connect_first = False
    opening = "serve"
    batch_functions: tuple[BatchFunction | None, BatchFunction | None] = (None, None)

    def __init__(self, interest: Interest) -> None:
        self.interest = (interest, interest)
        self.fired: list[Firing] = []
        self.revoked: list[tuple[bytes, str]] = []
        self.resubscribed: list[tuple[bytes, bytes]] = []

    def renamed(self, subject: bytes) -> bytes | None:
        return subject

    def decide(self, direction: Direction, frame: Frame, now: int) -> Decision | None:
        return None

    def steps(self, direction: Direction, frame: Frame, now: int) -> Generator[None, None, Decision | None]:
        yield from ()
        return None

    def decisions(self, direction: Direction) -> object | None:
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
        self._rules = _NoRules(Interest())

    def begin(self, now: int, unix: Callable[[int], int] | None = None) -> None:
        """Do nothing: there is no rule."""

    def bind(
        self,
        view: View,
        previous: ConnectionRules | None,
        now: int,
        check: SubscriptionCheck | None = None,
    ) -> ConnectionRules:
        """Return the rules that want no frame, shared by all connections."""
        return self._rules

    def check(self, view: View, previous: ConnectionRules) -> SubscriptionCheck | None:
        """Return None: every subscription is allowed."""
        return None
