"""swallow: messages are lost for a while, and the connection lives on, as if suspended.

The loss begins and ends at a frame boundary, so the stream still parses.  All that is no message passes: both
sides get answers to their PINGs, so that no client reconnects, and subscriptions are made and ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from natsproxy.rules.interface import LinkConditions
from natsproxy.rules.kinds.link import link_kind


def _add(conditions: LinkConditions, settings: Mapping[str, Any]) -> LinkConditions:
    return conditions._replace(swallow=True)


KIND = link_kind(
    "swallow",
    "messages are lost for a while",
    _add,
    """
[[rules]]
name = "black hole after the tenth order"
kind = "swallow"
direction = "c2s"
op = "PUB"
subject = "orders.>"
after = 9
limit = 1
lasts = "3s"
""",
)
