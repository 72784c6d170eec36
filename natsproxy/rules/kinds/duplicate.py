"""duplicate: frames arrive more than once, as from a sender that tries again after a lost answer.

JetStream drops a second publish only if its `Nats-Msg-Id` is that of the first, and delivers a message again
whose ack it did not get.  The copies follow the frame at once and share its delay.  Extra deliveries do not
count toward UNSUB max.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from natsproxy.rules.file import values
from natsproxy.rules.interface import View
from natsproxy.rules.model.rule import Action, Kind, Setting, StaticDecision
from natsproxy.rules.model.selector import MESSAGES, SUBSCRIPTIONS, Selector
from natsproxy.rules.model.verdicts import Duplicate
from natsproxy.wire.frames import Need
from natsproxy.wire.ops import Op

MOST_COPIES: Final = 100
"""All are in memory at once."""


class Duplicating(Action):
    """Sends copies behind each frame."""

    label = "duplicate"
    need = Need.PAYLOAD
    alters_delivery = True

    def __init__(self, copies: int) -> None:
        self.copies = copies

    def static_decision(self, op: Op, subject: bytes, sid: bytes, view: View) -> StaticDecision | None:
        """Send them all, and their copies."""
        return StaticDecision(Duplicate(self.copies))


def make(settings: Mapping[str, Any], selector: Selector) -> Action:
    """Return the action."""
    return Duplicating(settings["copies"])


KIND = Kind(
    "duplicate",
    "frames arrive more than once",
    make,
    """
[[rules]]
name = "twice"
kind = "duplicate"
op = "MSG"
subject = "work.>"
every = 10
""",
    (Setting("copies", values.count_to(MOST_COPIES), 1, "how many more"),),
    takes=MESSAGES | SUBSCRIPTIONS,
)
