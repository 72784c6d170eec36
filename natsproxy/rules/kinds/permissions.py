"""permissions: nats-server's permission map, enforced by the proxy with the server's error texts.

`publish`, `subscribe` and `allow_responses` are read as in nats-server.conf (`protocol/permissions.py`).  A
denied PUB or SUB does not reach the server; the client gets the server's `-ERR` at the frame's place, and the
connection stays.  Once a subscription wider than a deny entry was allowed, the proxy filters denied
messages from the deliveries on all subscriptions: the subject of the message counts (JetStream
delivers those of its stream to subscriptions of any subject).  A map that comes into force later ends the
live subscriptions that it does not admit, as a reload of the server does.

With `mode = "shadow"` all of that is only reported, as firings with the action "would deny": the frames pass.

Differences from nats-server
- A message that permissions keep from one queue member goes to another member on the server; here it is lost.
- A request whose only receivers were filtered gets a 503 from the server; here it times out.
- A message that permissions keep from a pull goes to the next pull on the server, again and again; here
  JetStream considers it delivered, and waits for its ack.
- The server's own 503 on a denied reply subject passes its filter; here it is filtered like any message.
- The server opens a reply (`allow_responses`) as it delivers; here it opens as that passes, so a client
  that answers a request before it arrives is denied.
- The server denies after its account's mappings; here the subject is the client's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from natsproxy.errors import ConfigError
from natsproxy.events import WOULD_DENY
from natsproxy.protocol.errors import publish_denied, subscribe_denied
from natsproxy.protocol.headers import trace_subject
from natsproxy.protocol.permissions import Permissions, ResponsePermissions, parse_permissions
from natsproxy.rules.file import values
from natsproxy.rules.interface import View
from natsproxy.rules.model.delivery_filter import DeliveryFilter
from natsproxy.rules.model.roles import MSGS, PUBS
from natsproxy.rules.model.rule import Action, Hit, Kind, Setting, Stage, StaticDecision
from natsproxy.rules.model.selector import Selector
from natsproxy.rules.model.verdicts import Close, Deny, Drop, Verdict
from natsproxy.wire.frames import Frame, Need
from natsproxy.wire.interest import Clause
from natsproxy.wire.ops import C2S, S2C, Direction, Op, op_mask

SUBS: Final = op_mask(Op.SUB)


class PermissionMap(Action):
    """A permission map.  Without connection state it serves all connections; `bind` adds the state."""

    stage = Stage.PERMISSION
    label = "deny"

    def __init__(self, permissions: Permissions, *, shadow: bool = False) -> None:
        self.permissions = permissions
        self.shadow, self.guards = WOULD_DENY if shadow else "", not shadow
        self.filtered = permissions.delivery_patterns
        self.alters_delivery = bool(self.filtered) and not shadow
        self.traced = permissions.limits_publishing
        self.responses: ResponsePermissions | None = None
        self._unbound: Action | None = None  # not `self`: that would be a reference cycle
        self._deliveries = DeliveryFilter()

    def bind(self, view: View, deliveries: DeliveryFilter) -> Action:
        """Return the map with the open replies and the filter of one connection."""
        active = PermissionMap(self.permissions, shadow=bool(self.shadow))
        active.responses = ResponsePermissions(self.permissions)
        active._unbound, active._deliveries = self, deliveries
        return active

    def act(self, frame: Frame, hit: Hit) -> Verdict | None:
        """Deny a frame that the map does not admit."""
        if PUBS >> frame.op & 1:
            return self._publish(frame, hit)
        if frame.op == Op.SUB:
            return self._subscribe(frame)
        return self._deliver(frame, hit)

    def _publish(self, frame: Frame, hit: Hit) -> Verdict | None:
        if frame.end - frame.line_end < frame.header_size:
            return Close("permissions cannot judge headers that are larger than the rule buffer")
        if frame.header_size:
            traced = trace_subject(frame.headers) if hit.traced is None else hit.traced
            if traced and not self._may_publish(traced, hit.now):
                return Deny(publish_denied(traced))
        return None if self._may_publish(frame.subject, hit.now) else Deny(publish_denied(frame.subject))

    def _may_publish(self, subject: bytes, now: int) -> bool:
        if self.responses is None:
            return self.permissions.can_publish(subject)
        return self.responses.can_publish(subject, now)

    def _subscribe(self, frame: Frame) -> Verdict | None:
        if self.permissions.can_subscribe(frame.subject, frame.queue):
            return None
        return Deny(subscribe_denied(frame.subject, frame.queue))

    def _deliver(self, frame: Frame, hit: Hit) -> Verdict | None:
        if self._deliveries.armed(self._unbound or self) and self._deniable(
            frame.subject, frame.sid, hit.view
        ):
            return Drop()
        self._open_reply(frame, hit.now)
        return None

    def _deniable(self, subject: bytes, sid: bytes, view: View) -> bool:
        """Tell whether an armed filter keeps a message from a subscription, live or just ended."""
        return self.permissions.delivery_denied(subject, self._deliveries.queue_of(sid, view.subs.get(sid)))

    def static_decision(self, op: Op, subject: bytes, sid: bytes, view: View) -> StaticDecision | None:
        """Leave alone the subjects that the map admits, and deny the others."""
        responds = self.permissions.responses is not None
        if PUBS >> op & 1:
            if self.permissions.can_publish(subject):
                return StaticDecision()
            if responds:
                return StaticDecision(admits=self._use_reply)
            return StaticDecision(Deny(publish_denied(subject)))
        # It does not count here whether it is armed: this answer holds until a subscription comes or goes; a
        # SUB that the server refuses may arm the filter without a change of the subscriptions.
        if self._deniable(subject, sid, view):
            return None
        return StaticDecision(admits=self._open_reply if responds else None)

    def _use_reply(self, frame: Frame, now: int) -> bool:
        return self.responses is not None and self.responses.use(frame.subject, now)

    def _open_reply(self, frame: Frame, now: int) -> bool:
        if frame.reply and self.responses is not None:
            self.responses.delivered(frame.reply, now)
        return True

    def admits_sub(self, subject: bytes, queue: bytes) -> bool:
        """Tell whether the map allows a subscription."""
        return self.permissions.can_subscribe(subject, queue)

    def clauses(self, selector: Selector) -> tuple[tuple[Direction, Clause], ...]:
        """Return clauses for the complement of the allowed subjects, and for the denied ones."""
        allow, deny = self.permissions.publish_patterns
        admitted, refused = self.permissions.subscribe_patterns
        found: list[tuple[Direction, Clause]] = []
        if admitted is not None:
            found.append((C2S, Clause(SUBS, Need.LINE, None, admitted)))
        if refused:
            found.append((C2S, Clause(SUBS, Need.LINE, refused)))
        if allow is not None:
            found.append((C2S, Clause(PUBS, selector.need, None, allow)))
        if deny:
            found.append((C2S, Clause(PUBS, selector.need, deny)))
        if self.permissions.responses is not None:
            found.append((S2C, Clause(MSGS, Need.LINE)))
        elif self.filtered:
            found.append((S2C, Clause(MSGS, Need.LINE, self.filtered)))
        return tuple(found)

    def describe(self) -> str:
        """Return its effect in a few words."""
        told = "report, and pass," if self.shadow else "deny"
        return f"{told} all that the permission map does not admit"


SHADOW: Final = "shadow"
"""The mode in which denials are only reported."""
MODE: Final = Setting(
    "mode",
    values.one_of("enforce", SHADOW),
    "enforce",
    'with "shadow" the frames pass, and firings tell what it would deny',
    'mode = "shadow"',
)
KEYS: Final = ("publish", "subscribe", "allow_responses")


def make(settings: Mapping[str, Any], selector: Selector) -> Action:
    """Return the action."""
    table = {key: settings[key] for key in KEYS if settings[key] is not None}
    if not table:
        raise ValueError("it needs 'publish', 'subscribe' or 'allow_responses'")
    try:
        return PermissionMap(parse_permissions(table), shadow=settings[MODE.name] == SHADOW)
    except ConfigError as error:
        raise ValueError(str(error).removeprefix("permissions.")) from None


def _as_written(value: Any) -> Any:
    return value


KIND = Kind(
    "permissions",
    "the permission map of nats-server, with its -ERR texts",
    make,
    """
[[rules]]
name = "billing"
kind = "permissions"
client = { name = "billing*" }
publish = { allow = ["billing.>", "_INBOX.>"], deny = "billing.admin.>" }
subscribe = ["billing.*", "_INBOX.>", "work.> billing"]
allow_responses = { max = 1, expires = "1m" }
""",
    (
        Setting("publish", _as_written, None, "a subject or a list (allow), or { allow, deny }"),
        Setting("subscribe", _as_written, None, 'the same; "subject queue" speaks of a queue'),
        Setting("allow_responses", _as_written, None, "true, or { max, expires }"),
        MODE,
    ),
    ops=PUBS | SUBS | MSGS,
    selects=frozenset({"client"}),
    gated=False,
)
