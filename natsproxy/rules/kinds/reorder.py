"""reorder: a frame goes after some of those that follow it.

NATS keeps the order of one publisher on one connection; this rule breaks that promise on purpose, as two
publishers or a reconnect do.  A frame waits until `by` more frames of its direction have gone, or until
`within` is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from natsproxy.rules.file import values
from natsproxy.rules.model.rule import Action, Hit, Kind, Setting
from natsproxy.rules.model.selector import MESSAGES, SUBSCRIPTIONS, Selector
from natsproxy.rules.model.verdicts import Reorder, Verdict
from natsproxy.wire.frames import Frame, Need


class Reordering(Action):
    """Lets frames be overtaken."""

    label = "reorder"
    need = Need.PAYLOAD

    def __init__(self, by: int, within: int) -> None:
        self.by = by
        self.within = within

    def act(self, frame: Frame, hit: Hit) -> Verdict | None:
        """Put the frame aside."""
        return Reorder(self.by, hit.now + self.within)


def make(settings: Mapping[str, Any], selector: Selector) -> Action:
    """Return the action."""
    return Reordering(settings["by"], settings["within"])


KIND = Kind(
    "reorder",
    "frames are overtaken by those behind them",
    make,
    """
[[rules]]
name = "out of order"
kind = "reorder"
subject = "events.>"
probability = 0.1
by = 3
within = "500ms"
""",
    (
        Setting("by", values.count, 1, "how many frames may pass it"),
        Setting("within", values.above_zero(values.delay_time), "1s", "how long it waits for them at most"),
    ),
    takes=MESSAGES | SUBSCRIPTIONS,
)
