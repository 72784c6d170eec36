"""reset: connections end with RST on both legs, at once; bytes still on their way are lost.

Peers see this when a host crashes, or a firewall or load balancer drops the connection.  With a frame
selector it happens at that frame; without one when the rule comes into force (also on connections that are
already open), or when `between` begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from natsproxy.rules.kinds.close import AT_A_FRAME
from natsproxy.rules.model.rule import Action, Hit, Kind, LinkAction
from natsproxy.rules.model.selector import Selector
from natsproxy.rules.model.verdicts import Close, Verdict
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Direction


class Resetting(LinkAction):
    """Ends connections with RST."""

    label = "reset"

    def act(self, frame: Frame, hit: Hit) -> Verdict | None:
        """End the connection at this frame."""
        return Close("reset", reset=True)

    def start(self, hit: Hit) -> tuple[list[tuple[Direction, bytes]], Close | None]:
        """End the connection now."""
        return [], Close("reset", reset=True)


def make(settings: Mapping[str, Any], selector: Selector) -> Action:
    """Return the action."""
    return Resetting()


KIND = Kind(
    "reset",
    f"connections end with RST, {AT_A_FRAME}",
    make,
    """
[[rules]]
name = "cut at the third order"
kind = "reset"
op = "PUB"
subject = "orders.>"
after = 2
limit = 1
""",
    ops=0,
)
