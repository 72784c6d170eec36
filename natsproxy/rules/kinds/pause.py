"""pause: nothing goes out for a while; bytes are kept, and go out when the rule ends.

Both peers see a network that has stalled: TCP stays open, PINGs get no answer.  nats-server closes with
`-ERR 'Stale Connection'` after `ping_max` unanswered PINGs (2, at intervals of 2 minutes).  A frame stops its
own direction, and with `both` the other one too: a half-open link, on which neither end hears anything, not
even the end of the other one.  The frame itself is the first that waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from natsproxy.rules.file import values
from natsproxy.rules.interface import LinkConditions
from natsproxy.rules.kinds.link import link_kind
from natsproxy.rules.model.rule import Setting


def _add(conditions: LinkConditions, settings: Mapping[str, Any]) -> LinkConditions:
    return conditions._replace(paused=True)


KIND = link_kind(
    "pause",
    "nothing goes out for a while, nothing is lost",
    _add,
    """
[[rules]]
name = "stuck for two seconds"
kind = "pause"
between = ["5s", "7s"]

[[rules]]
name = "half open from the third delivery on"
kind = "pause"
op = "MSG"
after = 2
limit = 1
both = true
""",
    Setting("both", values.boolean, False, "both directions stop, whichever of them the frame goes"),
)
