"""half_close: the receiver of one direction gets FIN while the other direction goes on.

A peer that has shut down one direction looks like this: NATS clients take FIN as the end of the connection
and reconnect.  Bytes that still come in the closed direction are lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from natsproxy.rules.interface import LinkConditions
from natsproxy.rules.kinds.link import link_kind
from natsproxy.wire.ops import S2C


def _add(conditions: LinkConditions, settings: Mapping[str, Any]) -> LinkConditions:
    return conditions._replace(finish=True)


KIND = link_kind(
    "half_close",
    "one direction ends, the other goes on",
    _add,
    """
[[rules]]
name = "no more from the server"
kind = "half_close"
direction = "s2c"
between = ["3s"]
""",
    direction=S2C,
)
