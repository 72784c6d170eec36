"""The kinds of rules in the one list that parser, command line and documents read."""

from __future__ import annotations

from typing import Final

from natsproxy.rules.kinds import (
    announce,
    answer,
    close,
    corrupt,
    deny,
    drop,
    duplicate,
    error,
    headers,
    info,
    latency,
    permissions,
    refuse,
    reorder,
    reset,
    rewrite,
    truncate,
)
from natsproxy.rules.kinds.bends import LINK_CONDITIONS
from natsproxy.rules.model.rule import Kind

_LISTED: Final = (
    permissions.KIND,
    deny.KIND,
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
    *LINK_CONDITIONS,
)
KINDS: Final[dict[str, Kind]] = {kind.name: kind for kind in _LISTED}
