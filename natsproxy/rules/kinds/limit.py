"""limit: how much a client may publish, in messages or bytes in a time, and how much it may have open.

`per` says who shares a limit: all frames of a connection, user, client name, account, address, subject
template, or of the proxy.  The count belongs to that key: a client that connects again goes on where it was,
and so does a rule of the same name after a change of the rules, as long as `per` is the same.  A user or a
name is what CONNECT says, which the server may still refuse, unless the proxy checks its clients.

A frame above the limit waits until its turn comes, in the order of its connection (`action = "wait"`): frames
behind it wait too, and above `queue` bytes the client is no longer read.  Connections that share a limit take
turns.  PONGs, and acks and flow-control answers of JetStream, do not wait; where a client is not read, the
proxy answers the server's PINGs.  The client's own PING keeps its place: its PONG says that the server has
all frames before it.  So a client whose frames wait longer than it waits for a PONG takes its connection for
stale; for such limits the other actions are better.

Acks and flow-control answers are not counted, unless the rule names them (`role = "ack"`, or a subject that
begins with $JS): who may not publish, must still be able to receive.

Numbers of live subscriptions and of connections have limits of the same sort (`count_limit.py`), and the
server's own -ERR.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from copy import copy
from functools import partial
from typing import Any, Final

from natsproxy.events import WOULD_LIMIT
from natsproxy.protocol.errors import publish_denied
from natsproxy.protocol.headers import build
from natsproxy.protocol.jetstream import keeps_delivery
from natsproxy.rules.file import values
from natsproxy.rules.interface import View
from natsproxy.rules.kinds.answer import listener
from natsproxy.rules.kinds.count_limit import ConnectionLimit, SubscriptionLimit
from natsproxy.rules.kinds.permissions import MODE, SHADOW
from natsproxy.rules.model.delivery_filter import DeliveryFilter
from natsproxy.rules.model.limit_keys import SCOPES, above, above_of, key_of
from natsproxy.rules.model.roles import PUBS
from natsproxy.rules.model.rule import Action, Hit, Kind, Setting, Stage, StaticDecision
from natsproxy.rules.model.selector import Selector
from natsproxy.rules.model.token_buckets import Rate, TokenBuckets, Tokens
from natsproxy.rules.model.verdicts import Answer, Close, Deny, Drop, Pace, Verdict
from natsproxy.units import HOUR, MINUTE, SECOND
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, Op

MOST_KEYS: Final = 10_000
"""Keys that have a bucket of their own, where a rule does not say how many."""
TOO_MANY: Final = build((), code=b"429", description=b"Too Many Requests")
"""The header block of the answer to a request above a limit."""


class RateLimit(Action):
    """Limits what goes to the server.  All connections share its buckets, by key.

    rate: in messages or, where `sized`, in bytes of whole frames.  scope: of `SCOPES`.  lasts: of a
    suspension, ns.  acks: those of JetStream count as well.  most: of keys.
    """

    stage = Stage.LIMIT

    def __init__(
        self,
        rate: Rate,
        scope: str,
        label: str,
        *,
        sized: bool = False,
        lasts: int = 0,
        acks: bool = False,
        most: int = MOST_KEYS,
        shadow: bool = False,
    ) -> None:
        self.rate, self.scope, self.label, self.sized = rate, scope, label, sized
        self.lasts, self.acks = lasts, acks
        self.guards, self.shadow = not shadow, WOULD_LIMIT if shadow else ""
        self.answers = self.alters_delivery = label == "reply" and not shadow
        self.buckets = TokenBuckets(most)
        self._view: View | None = None
        self._key: Hashable = None
        self._empty = False

    def bind(self, view: View, deliveries: DeliveryFilter) -> Action:
        """Return the instance of one connection, on the same buckets."""
        bound = copy(self)
        bound._view = view
        return bound

    def succeed(self, former: Action) -> None:
        """Go on with the buckets of the rule of this name that it replaces."""
        if isinstance(former, RateLimit) and former.scope == self.scope:
            former.buckets.most = self.buckets.most
            self.buckets = former.buckets

    def exhausted(self) -> Action:
        """Return an action that finds the limit reached, to explain what it does then."""
        other = copy(self)
        other._empty = True
        return other

    def act(self, frame: Frame, hit: Hit) -> Verdict | None:
        """Do what the rule says with a frame that is above the limit."""
        if self._within(frame, hit.view, hit.now):
            return None
        return self._exceeded(frame, hit)

    def static_decision(self, op: Op, subject: bytes, sid: bytes, view: View) -> StaticDecision | None:
        """Leave alone what is within the limit."""
        return StaticDecision(admits=self._admits) if self._counts(subject) else StaticDecision()

    def tokens(self, subject: bytes) -> Tokens | None:
        """Return what frames of a subject take: the view and its key stay as long as the rules are bound."""
        if self._view is None:
            return None
        return Tokens(self.buckets.bucket(key_of(self.scope, self._view, subject)), self.rate, self.sized)

    def _counts(self, subject: bytes) -> bool:
        return self.acks or not keeps_delivery(subject)

    def _admits(self, frame: Frame, now: int) -> bool:
        return self._view is not None and self._within(frame, self._view, now)

    def _within(self, frame: Frame, view: View, now: int) -> bool:
        """Tell whether a frame is within the limit, and count it then."""
        if not self._counts(frame.subject):
            return True
        key = self._key = self.buckets.known(key_of(self.scope, view, frame.subject), now)
        return not self._empty and self.buckets.take(key, self._units(frame), self.rate, now)

    def _units(self, frame: Frame) -> int:
        return frame.wire_size if self.sized else 1

    def _exceeded(self, frame: Frame, hit: Hit) -> Verdict:
        if self.label == "wait":
            return Pace(partial(self.buckets.reserve, self._key, self._units(frame), self.rate))
        if self.label == "reply":
            return _refusal(frame, hit.view)
        if self.label == "drop":
            return Drop()
        if self.label == "close":
            return Close(f"a limit was exceeded: {self.condition()}")
        if self.label == "suspend" and not self.buckets.is_suspended(self._key, hit.now):
            self.buckets.suspend(self._key, hit.now + self.lasts)
        return Deny(publish_denied(frame.subject))

    def condition(self) -> str:
        """Return the limit in words."""
        return above(self.rate.describe("bytes" if self.sized else "messages"), self.scope)

    def detail(self) -> str:
        """Return whose limit the last frame was above."""
        return above_of(self.condition(), self.scope, self._key, self.buckets.most)

    def describe(self) -> str:
        """Return its effect in a few words."""
        told = "report, and pass" if self.shadow else _EFFECTS[self.label]
        return f"{told} what is {self.condition()}"


_EFFECTS: Final = {
    "wait": "hold back",
    "drop": "drop",
    "deny": "deny",
    "reply": "answer with status 429, or drop where nobody waits for an answer,",
    "close": "close the connection at",
    "suspend": "deny for a time all from",
}


def _refusal(frame: Frame, view: View) -> Verdict:
    """Answer a request with status 429; drop what has no answer, or whose client takes no headers."""
    sid = listener(view, frame.reply)
    if sid is None or not view.connect.headers:
        return Drop()
    # The server acknowledges a request before it delivers the answer.
    ok = encode.OK if view.connect.verbose else b""
    return Answer(ok + encode.msg(frame.reply, sid, b"", headers=TOO_MANY))


_PERIODS: Final = {"s": SECOND, "min": MINUTE, "h": HOUR}


def _rate(read: Callable[[Any], int]) -> Callable[[Any], tuple[int, int]]:
    """Return a converter for "100/s", "5/min", "1GiB/h", or a number per second: units and period."""

    def convert(value: Any) -> tuple[int, int]:
        amount, period = value, "s"
        if isinstance(value, str):
            amount, slash, period = value.partition("/")
            if not slash:
                period = "s"
            if period not in _PERIODS:
                raise ValueError(f"must be a rate by s, min or h, such as '100/s', not {value!r}")
            if amount.strip().isdecimal():
                amount = int(amount)
        return read(amount), _PERIODS[period]

    return convert


_SORTS: Final = ("messages", "bytes", "subscriptions", "connections")
_OF_RATES: Final = ("burst", "suspend", "keys")
_UNKNOWN: Final = {
    "subscriptions": ("template",),
    "connections": ("connection", "template", "account"),  # the server names the account after CONNECT
}
"""The scopes that make no sense for a number of things."""


def make(settings: Mapping[str, Any], selector: Selector) -> Action:
    """Return the action."""
    given = [name for name in _SORTS if settings[name] is not None]
    if len(given) != 1:
        raise ValueError(f"it needs one of {', '.join(map(repr, _SORTS))}; give a rule for each")
    return (_rate_limit if given[0] in ("messages", "bytes") else _count_limit)(given[0], settings, selector)


def _count_limit(sort: str, settings: Mapping[str, Any], selector: Selector) -> Action:
    label = settings["action"] or "deny"
    if label not in ("deny", "close"):
        raise ValueError(f"action must be 'deny' or 'close' for {sort}, not {label!r}")
    if settings["per"] in _UNKNOWN[sort]:
        raise ValueError(f"per = {settings['per']!r} has no meaning for {sort}")
    if selector.framed or selector.unless:
        raise ValueError(f"for {sort} it can select clients only")
    if odd := [name for name in _OF_RATES if settings[name] is not None]:
        raise ValueError(f"{odd[0]} is for messages and bytes")
    made = ConnectionLimit if sort == "connections" else SubscriptionLimit
    return made(settings[sort], settings["per"], label, shadow=settings[MODE.name] == SHADOW)


def _rate_limit(sort: str, settings: Mapping[str, Any], selector: Selector) -> Action:
    count, period = settings[sort]
    label = settings["action"] or "wait"
    burst = settings["burst"]
    if burst is None:
        burst = max(1, count * SECOND // period)
    if (settings["suspend"] is not None) != (label == "suspend"):
        raise ValueError("suspend belongs to action = 'suspend', which needs it")
    named = selector.role is not None or any(one.startswith(b"$JS") for one in selector.subjects or ())
    return RateLimit(
        Rate(count, period, burst),
        settings["per"],
        label,
        sized=sort == "bytes",
        lasts=settings["suspend"] or 0,
        acks=named,
        most=settings["keys"] or MOST_KEYS,
        shadow=settings[MODE.name] == SHADOW,
    )


KIND = Kind(
    "limit",
    "what a client publishes, subscribes to or opens above a limit waits, or is refused",
    make,
    """
[[rules]]
name = "a hundred orders a second"
kind = "limit"
subject = "orders.>"
messages = "100/s"
burst = 200
per = "user"

[[rules]]
name = "no floods"
kind = "limit"
bytes = "1MiB/s"
per = "address"
action = "deny"
mode = "shadow"

[[rules]]
name = "ten connections each"
kind = "limit"
connections = 10
per = "user"
""",
    (
        Setting(
            "messages",
            _rate(values.count),
            None,
            'messages in a time: "100/s", "5/min", "1000/h"; a number is per second',
        ),
        Setting(
            "bytes", _rate(values.above_zero(values.size)), None, 'bytes of whole frames: "64KiB/s", "1GiB/h"'
        ),
        Setting("subscriptions", values.count, None, "live subscriptions"),
        Setting("connections", values.count, None, "connections that are open, from their CONNECT on"),
        Setting(
            "burst",
            values.above_zero(values.size),
            None,
            "how many messages or bytes may come at once; those of a second without it",
            "burst = 200",
        ),
        Setting(
            "per",
            values.one_of(*SCOPES),
            "connection",
            'who shares the limit: all frames of a "connection", "user", "client" name, "account", '
            '"address", subject "template", or of the "proxy"',
            'per = "user"',
        ),
        Setting(
            "action",
            values.one_of("wait", "drop", "deny", "reply", "close", "suspend"),
            None,
            'what happens above it: "wait": the frame is held back, and the client no longer read once too '
            'much waits; "drop"; "deny": with the server\'s -ERR for a denied publish; "reply": requests get '
            'status 429, other frames are dropped; "close": the connection ends; "suspend": all frames of '
            'that user, client, ... are denied for the time in suspend. For messages and bytes it is "wait" '
            'if nothing is said; for subscriptions and connections "deny", or "close" without an -ERR',
            'action = "reply"',
        ),
        Setting(
            "suspend",
            values.above_zero(values.duration),
            None,
            "the time of a suspension, from the frame that was above the limit",
            'suspend = "1m"',
        ),
        Setting(
            "keys",
            values.count,
            None,
            "how many users, clients, ... have a rate of their own at a time, 10000 if nothing is said; "
            "those beyond them share one",
        ),
        MODE,
    ),
    ops=PUBS,
    takes=PUBS,
    direction=C2S,
    gated=False,
)
