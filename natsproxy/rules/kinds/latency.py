"""latency: frames arrive later, as over a long or a busy network.

The deadline is absolute, from when the frame arrived: a burst is delayed, not serialised.  Frames behind a
delayed one wait for it (NATS promises the order of a publisher) unless `overtake` is written.  Delays of
several rules add up.  The bytes that are held are bounded; above that the proxy no longer reads from the
sender.

A constant delay of everything is done on the link, run by run, and fires once per connection.  A constant
delay of some frames holds neighbours together: those of one read are one firing, whose `count` says how many.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from natsproxy.rules.file import values
from natsproxy.rules.interface import LinkConditions, View
from natsproxy.rules.model.rule import REQUIRED, Action, Hit, Kind, LinkAction, Setting, StaticDecision
from natsproxy.rules.model.seeded_random import Distribution
from natsproxy.rules.model.selector import Selector
from natsproxy.rules.model.verdicts import Hold, Verdict
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import ALL_OPS, Op


class Latency(Action):
    """Holds frames for a time drawn from a distribution."""

    label = "hold"

    def __init__(self, delay: Distribution, overtake: bool) -> None:
        self.delay = delay
        self.overtake = overtake
        self.draws_random = delay.name != "constant"
        self.on_frame = "hold" if self.draws_random and not overtake else ""

    def act(self, frame: Frame, hit: Hit) -> Verdict | None:
        """Hold the frame."""
        return self._hold(hit.draw())

    def static_decision(self, op: Op, subject: bytes, sid: bytes, view: View) -> StaticDecision | None:
        """Hold them all, if the delay is constant."""
        return None if self.draws_random else StaticDecision(self._hold(0.5))

    def _hold(self, u: float) -> Verdict | None:
        """Return the verdict for a random number; a delay of zero is none."""
        delay = round(self.delay.sample(u))
        return Hold(delay, self.overtake) if delay > 0 else None

    def describe(self) -> str:
        """Return the median delay and the distribution's name."""
        median = self.delay.sample(0.5) / 1e6
        return f"hold for {median:g} ms ({self.delay.name}){', others may overtake' if self.overtake else ''}"


class LinkLatency(LinkAction):
    """Holds all bytes of a direction for the same time: runs of frames stay whole."""

    label = "hold"
    lasting = True

    def __init__(self, delay: int) -> None:
        self.delay = delay

    def apply(self, conditions: LinkConditions, age: int) -> LinkConditions:
        """Add the delay."""
        return conditions._replace(delay=conditions.delay + self.delay)

    def describe(self) -> str:
        """Return the delay."""
        return f"hold all for {self.delay / 1e6:g} ms"


def link(settings: Mapping[str, Any]) -> LinkAction | None:
    """Return the action for whole links, None where frames differ in their delay or may overtake."""
    delay: Distribution = settings["delay"]
    if delay.name != "constant" or settings["overtake"]:
        return None
    return LinkLatency(round(delay.sample(0.5)))


def make(settings: Mapping[str, Any], selector: Selector) -> Action:
    """Return the action."""
    return Latency(settings["delay"], settings["overtake"])


KIND = Kind(
    "latency",
    "frames arrive later",
    make,
    """
[[rules]]
name = "slow orders"
kind = "latency"
direction = "s2c"
subject = "orders.>"
delay = { distribution = "lognormal", median = "40ms", sigma = 0.5 }
""",
    (
        Setting(
            "delay",
            values.delay,
            REQUIRED,
            '"250ms", or a table: distribution = "constant" (value), "uniform" (min, max), '
            '"normal" (mean, stddev), "lognormal" (median, sigma), "pareto" (scale, shape), '
            '"empirical" (values; or capture, a file whose answered requests are measured, and subject)',
        ),
        Setting("overtake", values.boolean, False, "whether frames behind it may pass it"),
    ),
    ops=ALL_OPS,
    link=link,
)
