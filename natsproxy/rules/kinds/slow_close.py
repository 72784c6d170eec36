"""slow_close: the end of a connection reaches the other side later, as if its FIN were held up.

The client goes on sending to a server that has gone, or the server keeps the subscriptions of a client that
has gone.  Of several rules on a link the longest delay counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from natsproxy.rules.file import values
from natsproxy.rules.interface import LinkConditions
from natsproxy.rules.kinds.link import link_kind
from natsproxy.rules.model.rule import REQUIRED, Setting


def _add(conditions: LinkConditions, settings: Mapping[str, Any]) -> LinkConditions:
    return conditions._replace(fin_delay=max(conditions.fin_delay, settings["delay"]))


KIND = link_kind(
    "slow_close",
    "the end of a connection reaches the other side later",
    _add,
    """
[[rules]]
name = "late FIN"
kind = "slow_close"
delay = "2s"
""",
    Setting("delay", values.above_zero(values.delay_time), REQUIRED, "how much later"),
)
