"""deny: subjects are forbidden, by patterns; short for a permission map that has only denials.

`subject` is denied for publishing and subscribing, or only for the ops that `op` names ("PUB" or
"SUB").  Texts, order and the filter of deliveries to wider subscriptions are those of `permissions`.  Unlike
a map it has a gate, which counts the frames that it would deny or filter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from natsproxy.protocol.permissions import PermissionEntry, Permissions
from natsproxy.rules.kinds.permissions import MODE, SHADOW, SUBS, PermissionMap
from natsproxy.rules.model.roles import MSGS, PUBS
from natsproxy.rules.model.rule import Action, Kind
from natsproxy.rules.model.selector import Selector


def make(settings: Mapping[str, Any], selector: Selector) -> Action:
    """Return the action."""
    if not selector.subjects:
        raise ValueError(
            "it needs 'subject', the patterns that are denied, or 'api', calls of the JetStream API"
        )
    if selector.unless:
        raise ValueError("unless has no meaning for a denial: use a permission map with allow and deny")
    if selector.ops & ~(PUBS | SUBS | MSGS) or not selector.ops & (PUBS | SUBS):
        raise ValueError("op must be PUB, HPUB or SUB: other frames are not denied")
    entries = tuple(PermissionEntry(pattern) for pattern in selector.subjects)
    publish = entries if selector.ops & PUBS else ()
    subscribe = entries if selector.ops & SUBS else ()
    permissions = Permissions(publish_deny=publish, subscribe_deny=subscribe)
    return PermissionMap(permissions, shadow=settings[MODE.name] == SHADOW)


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
    (MODE,),
    ops=PUBS | SUBS | MSGS,
    selects=frozenset({"subject", "api", "unless", "op", "client"}),
)
