"""slice: bytes go out in small pieces, so that frames arrive in parts.

TCP promises no more than the order of the bytes; a client that takes each read for a whole frame fails here.
Of several rules on a link the smallest size counts, and their delays add up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from natsproxy.rules.file import values
from natsproxy.rules.interface import LinkConditions
from natsproxy.rules.kinds.link import link_kind
from natsproxy.rules.model.rule import REQUIRED, Setting


def _add(conditions: LinkConditions, settings: Mapping[str, Any]) -> LinkConditions:
    size = int(settings["size"])
    smaller = min(size, conditions.slice_size) if conditions.slice_size else size
    return conditions._replace(slice_size=smaller, slice_delay=conditions.slice_delay + settings["delay"])


KIND = link_kind(
    "slice",
    "bytes go out in small pieces",
    _add,
    """
[[rules]]
name = "in pieces"
kind = "slice"
size = 7
delay = "1ms"
""",
    Setting("size", values.above_zero(values.size), REQUIRED, "bytes in a piece"),
    Setting("delay", values.delay_time, 0, "time between pieces"),
)
