"""The kinds of rules, one file each, in the one list that parser, command line and documents read.

In: the checked settings and the selector of a rule.  Out: its `Action`, which returns verdicts on frames, or
conditions of a link.  The kinds of the second sort share `link.py`.  A new kind is a module with a `KIND`, a
row of `_LISTED`, a line in `natsproxy/testing/faults.py` and a test; read `drop.py` first, then
`model/rule.py` for the guarantees of an action.
"""

from __future__ import annotations

from typing import Final

from natsproxy.rules.kinds import (
    announce,
    answer,
    bandwidth,
    close,
    corrupt,
    deny,
    drop,
    duplicate,
    error,
    half_close,
    headers,
    info,
    latency,
    limit,
    pause,
    permissions,
    refuse,
    reorder,
    reset,
    rewrite,
    slice,
    slow_close,
    stamp,
    stop_reading,
    swallow,
    trace,
    truncate,
)
from natsproxy.rules.model.rule import Kind

_LISTED: Final = (
    permissions.KIND,
    deny.KIND,
    limit.KIND,
    stamp.KIND,
    trace.KIND,
    rewrite.KIND,
    latency.KIND,
    drop.KIND,
    duplicate.KIND,
    reorder.KIND,
    corrupt.KIND,
    truncate.KIND,
    headers.KIND,
    answer.KIND,
    error.KIND,
    info.KIND,
    announce.KIND,
    close.KIND,
    reset.KIND,
    refuse.KIND,
    bandwidth.KIND,
    slice.KIND,
    pause.KIND,
    swallow.KIND,
    stop_reading.KIND,
    half_close.KIND,
    slow_close.KIND,
)
"""In the order in which lists show them: kinds that are alike are neighbours."""
KINDS: Final[dict[str, Kind]] = {kind.name: kind for kind in _LISTED}
