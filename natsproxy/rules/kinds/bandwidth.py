"""bandwidth: bytes go out at a limited rate, as on a slow line.

The frames wait in the proxy, which reads no more from their sender once it holds `queue` bytes.  A server
whose bytes are not read within its `write_deadline` (10 s) closes the connection as a slow consumer.  Of
several rules on a link the lowest rate counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from natsproxy.rules.file import values
from natsproxy.rules.interface import LinkConditions
from natsproxy.rules.kinds.link import link_kind
from natsproxy.rules.model.rule import REQUIRED, Setting


def _add(conditions: LinkConditions, settings: Mapping[str, Any]) -> LinkConditions:
    rate = int(settings["rate"])
    return conditions._replace(rate=rate if conditions.rate is None else min(rate, conditions.rate))


KIND = link_kind(
    "bandwidth",
    "bytes go out at a rate",
    _add,
    """
[[rules]]
name = "thin line"
kind = "bandwidth"
direction = "s2c"
rate = "64KiB"
""",
    Setting("rate", values.above_zero(values.size), REQUIRED, 'bytes per second, such as "64KiB"'),
)
