"""stop_reading: the proxy stops reading from the sender, whose socket buffers fill up.

A server sees a slow consumer: it closes the connection, in the middle of a frame and without an -ERR, once
its `write_deadline` (10 s) is over or `max_pending` (64 MiB) is used up.  The frame that starts it was read,
and passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from natsproxy.rules.interface import LinkConditions
from natsproxy.rules.kinds.link import link_kind
from natsproxy.wire.ops import S2C


def _add(conditions: LinkConditions, settings: Mapping[str, Any]) -> LinkConditions:
    return conditions._replace(stop_reading=True)


KIND = link_kind(
    "stop_reading",
    "the sender's bytes are not taken: a slow consumer",
    _add,
    """
[[rules]]
name = "slow consumer"
kind = "stop_reading"
direction = "s2c"
client = { name = "dashboard" }
between = ["1s", "20s"]
""",
    direction=S2C,
)
