"""pause: nothing goes out for a while; bytes are kept, and go out when the rule ends.

Both peers see a network that has stalled: TCP stays open, PINGs get no answer.  nats-server closes with
`-ERR 'Stale Connection'` after `ping_max` unanswered PINGs (2, at intervals of 2 minutes).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from natsproxy.rules.interface import LinkConditions
from natsproxy.rules.kinds.link import link_kind


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
""",
)
