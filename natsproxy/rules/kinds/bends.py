"""Links that are slow, stuck or half dead: seven kinds that differ in one line each.

All of them last while their rule is in force: from the frame that starts them, or from the start of
`between`, for `lasts` or to the end of the window.  None of them closes a connection.

bandwidth     bytes go out at a rate
slice         bytes go out in small pieces, so that frames arrive in parts
pause         nothing goes out, nothing is lost, and then it goes on
swallow       messages are lost from the next frame boundary on, and then it goes on at a boundary
stop_reading  the sender's bytes stay in its kernel: what it sees is a slow consumer
half_close    the receiver gets FIN while the other direction goes on; what still comes is lost
slow_close    the end that one side makes reaches the other only later
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from natsproxy.rules.file import values
from natsproxy.rules.interface import LinkConditions
from natsproxy.rules.model.rule import REQUIRED, Action, Kind, LinkAction, Setting
from natsproxy.rules.model.selector import Selector
from natsproxy.wire.ops import S2C

Change = Callable[[LinkConditions, Mapping[str, Any]], LinkConditions]


class LinkCondition(LinkAction):
    """Bends a link as long as it is in force."""

    def __init__(self, label: str, change: Change, settings: Mapping[str, Any]) -> None:
        self.label = label
        self.settings = settings
        self.lasts = settings.get("lasts")
        self._change = change

    def apply(self, conditions: LinkConditions, age: int) -> LinkConditions:
        """Add this rule's part to the shape."""
        return self._change(conditions, self.settings)


def _bandwidth(conditions: LinkConditions, settings: Mapping[str, Any]) -> LinkConditions:
    rate = int(settings["rate"])
    return conditions._replace(rate=rate if conditions.rate is None else min(rate, conditions.rate))


def _slice(conditions: LinkConditions, settings: Mapping[str, Any]) -> LinkConditions:
    size = int(settings["size"])
    smaller = min(size, conditions.slice_size) if conditions.slice_size else size
    return conditions._replace(slice_size=smaller, slice_delay=conditions.slice_delay + settings["delay"])


def _kind(
    name: str, text: str, change: Change, example: str, *settings: Setting, toward_client: bool = False
) -> Kind:
    def make(given: Mapping[str, Any], selector: Selector) -> Action:
        return LinkCondition(name, change, given)

    lasts = Setting("lasts", values.above_zero(values.duration), None, "how long; without it: to the end")
    direction = S2C if toward_client else None
    return Kind(name, text, make, example, (*settings, lasts), ops=0, direction=direction)


BANDWIDTH: Final = _kind(
    "bandwidth",
    "bytes go out at a rate",
    _bandwidth,
    """
[[rules]]
name = "thin line"
kind = "bandwidth"
direction = "s2c"
rate = "64KiB"
""",
    Setting("rate", values.above_zero(values.size), REQUIRED, 'bytes per second, such as "64KiB"'),
)
SLICE: Final = _kind(
    "slice",
    "bytes go out in small pieces",
    _slice,
    """
[[rules]]
name = "in pieces"
kind = "slice"
size = 7
delay = "1ms"
""",
    Setting("size", values.above_zero(values.size), REQUIRED, "bytes in a piece"),
    Setting("delay", values.duration, 0, "time between pieces"),
)
PAUSE: Final = _kind(
    "pause",
    "nothing goes out for a while, nothing is lost",
    lambda conditions, settings: conditions._replace(paused=True),
    """
[[rules]]
name = "stuck for two seconds"
kind = "pause"
between = ["5s", "7s"]
""",
)
SWALLOW: Final = _kind(
    "swallow",
    "messages are lost for a while",
    lambda conditions, settings: conditions._replace(swallow=True),
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
STOP_READING: Final = _kind(
    "stop_reading",
    "the sender's bytes are not taken: a slow consumer",
    lambda conditions, settings: conditions._replace(stop_reading=True),
    """
[[rules]]
name = "slow consumer"
kind = "stop_reading"
direction = "s2c"
client = { name = "dashboard" }
between = ["1s", "20s"]
""",
    toward_client=True,
)
HALF_CLOSE: Final = _kind(
    "half_close",
    "one direction ends, the other goes on",
    lambda conditions, settings: conditions._replace(finish=True),
    """
[[rules]]
name = "the server fell silent"
kind = "half_close"
direction = "s2c"
between = ["3s"]
""",
    toward_client=True,
)
SLOW_CLOSE: Final = _kind(
    "slow_close",
    "the end of a connection reaches the other side later",
    lambda conditions, settings: conditions._replace(linger=max(conditions.linger, settings["delay"])),
    """
[[rules]]
name = "late FIN"
kind = "slow_close"
delay = "2s"
""",
    Setting("delay", values.above_zero(values.duration), REQUIRED, "how much later"),
)
LINK_CONDITIONS: Final = (BANDWIDTH, SLICE, PAUSE, SWALLOW, STOP_READING, HALF_CLOSE, SLOW_CLOSE)
