"""The kinds of rules, one file each, in the one list that everything reads: parser, command line,
documents."""

from __future__ import annotations

from typing import Final

from natsproxy.rules.base import Kind
from natsproxy.rules.kinds import deny, drop, latency, permissions, rewrite

KINDS: Final[dict[str, Kind]] = {
    module.KIND.name: module.KIND for module in (permissions, deny, rewrite, latency, drop)
}
