"""reset: connections end with RST on both legs, at once; bytes still on their way are lost.

Peers see this when a host crashes, or a firewall or load balancer drops the connection.  With a frame
selector it happens at that frame; without one when the rule comes into force (also on connections that are
already open), or when `between` begins.  With `at` the receiver of the frame has the part of it before the
RST: that waits until the receiver's kernel has the bytes, for a second at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from natsproxy.rules.kinds.close import AT, AT_A_FRAME, ending
from natsproxy.rules.model.rule import Action, Kind
from natsproxy.rules.model.selector import Selector


def make(settings: Mapping[str, Any], selector: Selector) -> Action:
    """Return the action."""
    return ending("reset", settings, selector, reset=True)


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
    (AT,),
    ops=0,
)
