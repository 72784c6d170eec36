"""drop: frames are lost, as messages of a server that restarts or of a subscriber that is too slow.

Core NATS delivers at most once, so a lost message is within its promise; a lost ack makes JetStream deliver
again.  Only whole frames are dropped, and the stream still parses.  A verbose client gets the `+OK` of a
dropped PUB or SUB all the same.  Dropped deliveries do not count toward UNSUB max for the client; the session
keeps that count.  `op = "PING"` or `"PONG"` makes a link look dead to one side.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from natsproxy.rules.interface import View
from natsproxy.rules.model.rule import Action, Kind, StaticDecision
from natsproxy.rules.model.selector import Selector
from natsproxy.rules.model.verdicts import Drop
from natsproxy.wire.ops import Op


class Dropping(Action):
    """Drops every frame that it gets."""

    label = "drop"
    alters_delivery = True

    def static_decision(self, op: Op, subject: bytes, sid: bytes, view: View) -> StaticDecision | None:
        """Drop them all."""
        return StaticDecision(Drop())


def make(settings: Mapping[str, Any], selector: Selector) -> Action:
    """Return the action."""
    return Dropping()


KIND = Kind(
    "drop",
    "frames are lost",
    make,
    """
[[rules]]
name = "lost acks"
kind = "drop"
role = "ack"
probability = 0.05
""",
)
