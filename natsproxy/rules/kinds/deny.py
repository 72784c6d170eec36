"""deny: subjects are forbidden, by patterns; short for a permission map that has only denials.

`subject` is denied for publishing and subscribing, or only for the ops that `op` names ("PUB" or
"SUB").  Texts, order and the filter of deliveries to wider subscriptions are those of `permissions`.  Unlike
a map it has a gate, which counts the frames that it would deny or filter.

A condition on headers or size (`without = { X-Approved = "*" }`) makes it a rule about publishing.  With
`wildcard` it is one about subscriptions whose pattern is too wide, and filters no deliveries: those that
remain are narrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from natsproxy.events import WOULD_DENY
from natsproxy.protocol.errors import subscribe_denied
from natsproxy.protocol.permissions import PermissionEntry, Permissions
from natsproxy.protocol.subjects import has_wildcard
from natsproxy.rules.file import values
from natsproxy.rules.kinds.permissions import MODE, SHADOW, SUBS, PermissionMap
from natsproxy.rules.model.roles import MSGS, PUBS
from natsproxy.rules.model.rule import Action, Hit, Kind, Setting, Stage
from natsproxy.rules.model.selector import Selector
from natsproxy.rules.model.verdicts import Deny, Verdict
from natsproxy.wire.frames import Frame


def make(settings: Mapping[str, Any], selector: Selector) -> Action:
    """Return the action."""
    shadow, wildcard = settings[MODE.name] == SHADOW, settings["wildcard"]
    if wildcard is not None:
        return _too_wide(wildcard, selector, shadow=shadow)
    if not selector.subjects:
        raise ValueError(
            "it needs 'subject', the patterns that are denied, or 'api', calls of the JetStream API"
        )
    if selector.unless:
        raise ValueError("unless has no meaning for a denial: use a permission map with allow and deny")
    if selector.ops & ~(PUBS | SUBS | MSGS) or not selector.ops & (PUBS | SUBS):
        raise ValueError("op must be PUB, HPUB or SUB: other frames are not denied")
    if selector.dynamic and not selector.ops & PUBS:
        raise ValueError("a subscription has no headers and no payload")
    entries = tuple(PermissionEntry(pattern) for pattern in selector.subjects)
    publish = entries if selector.ops & PUBS else ()
    subscribe = entries if selector.ops & SUBS and not selector.dynamic else ()
    permissions = Permissions(publish_deny=publish, subscribe_deny=subscribe)
    return PermissionMap(permissions, shadow=shadow)


class TooWide(Action):
    """Denies subscriptions with a wildcard among the first tokens of their subject.

    level: the number of these tokens.
    """

    stage = Stage.PERMISSION
    label = "deny"
    ops = SUBS

    def __init__(self, level: int, *, shadow: bool) -> None:
        self._level = level
        self.shadow, self.guards = WOULD_DENY if shadow else "", not shadow

    def act(self, frame: Frame, hit: Hit) -> Verdict | None:
        """Deny a SUB that is too wide."""
        if self.admits_sub(frame.subject, frame.queue):
            return None
        return Deny(subscribe_denied(frame.subject, frame.queue))

    def admits_sub(self, subject: bytes, queue: bytes) -> bool:
        """Tell whether a subscription is narrow."""
        return not has_wildcard(b".".join(subject.split(b".", self._level)[: self._level]))

    def describe(self) -> str:
        """Return its effect in a few words."""
        first = "first token" if self._level == 1 else f"first {self._level} tokens"
        told = "report, and pass," if self.shadow else "deny"
        return f"{told} subscriptions with a wildcard in the {first}"


def _too_wide(level: int, selector: Selector, *, shadow: bool) -> Action:
    if not selector.ops & SUBS:
        raise ValueError("wildcard is about subscriptions: op can be SUB only")
    if selector.dynamic:
        raise ValueError("wildcard is about subscriptions, which have no headers and no payload")
    return TooWide(level, shadow=shadow)


KIND = Kind(
    "deny",
    "subjects are forbidden, with the server's -ERR",
    make,
    """
[[rules]]
name = "no admin"
kind = "deny"
subject = "admin.>"
""",
    (
        MODE,
        Setting(
            "wildcard",
            values.count,
            None,
            "only subscriptions with a wildcard among their first n tokens; on all subjects, or on these",
            "wildcard = 1",
        ),
    ),
    ops=PUBS | SUBS | MSGS,
    selects=frozenset(
        {"subject", "api", "unless", "op", "client", "header", "without", "min_size", "max_size"}
    ),
)
