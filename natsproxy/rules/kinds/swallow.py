"""swallow: messages are lost for a while, and the connection lives on, as if suspended.

The loss begins and ends at a frame boundary, so the stream still parses.  PINGs of the client are answered
even if the server does not, so that no client reconnects, and a verbose client gets its +OK.  The rest
passes: if a SUB or UNSUB were lost, client and server would have other subscriptions for good.
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
    "messages are lost for a while, as on a suspended connection: PINGs are answered, and frames that are "
    "no messages (SUB, UNSUB) pass, so that both sides agree afterwards",
    _add,
    """
[[rules]]
name = "black hole after the tenth order"
kind = "swallow"
direction = "c2s"
op = "PUB"
subject = "orders.>"
after = 10
limit = 1
lasts = "3s"
""",
)
