"""The shared part of the kinds that put conditions on a link: they differ in one line each.

Such a rule is in force from the frame that starts it, which is the first to meet it, or from the start of
`between`, for `lasts` or to the end of the window.  With `after = 2` the third frame starts it.  None of them
closes a connection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from natsproxy.rules.file import values
from natsproxy.rules.interface import LinkConditions
from natsproxy.rules.model.rule import Action, Kind, LinkAction, Setting
from natsproxy.rules.model.selector import Selector
from natsproxy.wire.ops import Direction

Change = Callable[[LinkConditions, Mapping[str, Any]], LinkConditions]
"""Adds the condition of one rule with these settings."""


class LinkCondition(LinkAction):
    """Puts a condition on a link as long as it is in force."""

    lasting = True

    def __init__(self, label: str, change: Change, settings: Mapping[str, Any]) -> None:
        self.label = label
        self.settings = settings
        self.lasts = settings.get("lasts")
        self.both = settings.get("both", False)
        self._change = change

    def apply(self, conditions: LinkConditions, age: int) -> LinkConditions:
        """Return `conditions` with that of this rule added."""
        return self._change(conditions, self.settings)


def link_kind(
    name: str,
    text: str,
    change: Change,
    example: str,
    *settings: Setting,
    direction: Direction | None = None,
) -> Kind:
    """Return a kind that puts a condition on links.  direction: the default, None for both."""

    def make(given: Mapping[str, Any], selector: Selector) -> Action:
        if given.get("both") and not selector.ops:
            raise ValueError(
                "both is for a rule that a frame starts: name an op or a role, or leave direction out"
            )
        return LinkCondition(name, change, given)

    lasts = Setting(
        "lasts",
        values.above_zero(values.duration),
        None,
        "how long, from the frame that starts it; without it: to the end",
    )
    return Kind(name, text, make, example, (*settings, lasts), ops=0, direction=direction)
