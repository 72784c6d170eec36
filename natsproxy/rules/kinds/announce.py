"""announce: the client gets an INFO as if the server had sent it: lame duck mode, other servers or limits.

nats-server sends such an INFO when its cluster changes and when it is about to stop (`ldm`), to clients whose
CONNECT has `protocol` 1 and that have had their first PONG; other clients get none, here too.  It has the
members of the server's last INFO and those of the rule.  The INFO goes out when the rule comes into force: at
once, or when `between` begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from natsproxy.protocol import gojson
from natsproxy.protocol.info import Info
from natsproxy.rules.kinds.info import MEMBERS, members
from natsproxy.rules.model.rule import Action, Hit, Kind, LinkAction
from natsproxy.rules.model.selector import Selector
from natsproxy.rules.model.verdicts import Close
from natsproxy.wire import encode
from natsproxy.wire.ops import S2C, Direction

# Fields that a later INFO does not have, and addresses that would lead clients past the proxy.
_OURS = ("nonce", "other_port", "connect_urls", "ws_connect_urls", "connect_info")


class Announcing(LinkAction):
    """Injects an INFO."""

    label = "announce"

    def __init__(self, put: Mapping[str, Any]) -> None:
        self.put = put

    def start(self, hit: Hit) -> tuple[list[tuple[Direction, bytes]], Close | None]:
        """Send the INFO now."""
        return [(S2C, encode.info(gojson.dumps({**last_members(hit.view.info), **self.put})))], None


def last_members(info: Info) -> dict[str, Any]:
    """Return the members of a server's INFO, without the ones that a later INFO does not repeat."""
    return {key: value for key, value in info._asdict().items() if value and key not in _OURS}


def make(settings: Mapping[str, Any], selector: Selector) -> Action:
    """Return the action."""
    put = members(settings)
    if not put:
        raise ValueError("it needs something to announce, such as lame_duck = true")
    return Announcing(put)


KIND = Kind(
    "announce",
    "the server seems to announce lame duck mode, or anything else in an INFO",
    make,
    """
[[rules]]
name = "lame duck"
kind = "announce"
between = ["10s"]
lame_duck = true
""",
    MEMBERS,
    ops=0,
    selects=frozenset({"client"}),
)
