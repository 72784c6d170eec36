"""A lot: the frames of one read to which one rule does the same simple thing (see `shuttle.py`).

The gate is asked about a stretch of matches at once.  An open gate lets all of them through; dice alone are
thrown in one loop; what counts or looks at the clock is asked match by match.  The numbers are the same as
those of the long way: `m` is the count of matches, s2c the dice are those of each frame's strand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from natsproxy.events import Firing
from natsproxy.rules.base import Blanket
from natsproxy.rules.gate import Gate
from natsproxy.rules.seam import Stretch
from natsproxy.rules.turn import text
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, Direction

if TYPE_CHECKING:
    from natsproxy.rules.bound import Instance, RuleBound


class Lot:
    """What one rule does to frames of one read, and what it did."""

    __slots__ = (
        "_blanket",
        "_bound",
        "_count",
        "_delay",
        "_direction",
        "_drawn",
        "_item",
        "_name",
        "_now",
        "_probability",
        "_told",
    )

    def __init__(self, bound: RuleBound, item: Instance, direction: Direction, blanket: Blanket) -> None:
        self._bound = bound
        self._item = item
        self._direction = direction
        self._blanket = blanket
        self._now = 0
        self._name = item.rule.name
        gate = item.rule.gate
        self._probability = gate.probability or 0.0
        self._drawn = gate.probability is not None and gate == Gate(probability=gate.probability)
        self._count = 0
        self._told: list[tuple[int, int, str]] = []  # ordinal, m and subject

    def take(
        self, frames: Sequence[Frame], at: int, stop: int, base: int, now: int, found: list[Stretch]
    ) -> None:
        """Deal with the frames from index `at` to `stop`; base: the ordinal of the frame at index 0."""
        self._now = now
        ahead = self._item.counts[self._direction].matched + 1 - at  # what makes an index a match's number
        fired = self._fired(frames, at, stop)
        if self._blanket.drop or self._item.gated:  # each counts: to see what followed, to do it again
            self._told += [(base + place, ahead + place, text(frames[place][5])) for place in fired]
        elif fired and not self._count:
            self._told.append((base + fired[0], ahead + fired[0], text(frames[fired[0]][5])))
        self._count += len(fired)
        place, last = at, len(fired)
        index = 0
        while index < last:
            if fired[index] > place:
                found.append(Stretch(fired[index]))
            place = fired[index] + 1
            index += 1
            while index < last and fired[index] == place:
                place += 1
                index += 1
            found.append(self._acted(place))
        if place < stop:
            found.append(Stretch(stop))

    def _acted(self, stop: int) -> Stretch:
        if self._blanket.drop:
            return Stretch(stop, (), None, self._name)
        return Stretch(stop, None, self._now + self._blanket.delay, self._name)

    def _fired(self, frames: Sequence[Frame], at: int, stop: int) -> Sequence[int]:
        """Count matches and return the indices of those that the gate lets through."""
        item, size = self._item, stop - at
        if item.gated and not self._drawn:
            return [place for place in range(at, stop) if self._opens(frames[place])]
        count = item.counts[self._direction]
        m = count.matched + 1
        count.matched += size
        item.rule.shared.matched += size
        if not item.gated:
            return range(at, stop)
        fired: list[int] = []
        if self._direction == C2S:
            dice = self._bound.dice(item, C2S)
            fired += [at + hit - m for hit in dice.below(m, size, self._probability)]
        else:
            while at < stop:
                end = self._alike(frames, at, stop)
                roll = self._bound.roll(item, self._direction, frames[at], m, end - at)
                fired += [at + hit - roll.m for hit in roll.dice.below(roll.m, end - at, self._probability)]
                at = end
        count.fired += len(fired)
        return fired

    @staticmethod
    def _alike(frames: Sequence[Frame], at: int, stop: int) -> int:
        """Return the index behind the neighbours of one subject and sid."""
        subject, sid = frames[at][5], frames[at][7]
        while at < stop and frames[at][5] == subject and frames[at][7] == sid:
            at += 1
        return at

    def _opens(self, frame: Frame) -> bool:
        """Count one match and ask the gate about it."""
        item, gate, bound = self._item, self._item.rule.gate, self._bound
        count = item.counts[self._direction]
        m = bound.count(item, self._direction)
        roll = bound.roll(item, self._direction, frame, m)
        counted = item.rule.shared if gate.per_proxy else count
        return gate.admits(counted, m, item.key, self._now, roll.u, self._direction.label)

    def firing(self) -> Firing | None:
        """Return the one event for all that it did; None for nothing."""
        if not self._told:
            return None
        (ordinal, m, subject), *also = self._told
        count, self._count, self._told = self._count, 0, []
        firing = self._bound.firing(self._item, self._direction, self._now, m, None, self._blanket.delay)
        return replace(firing, ordinal=ordinal, subject=subject, count=count, also=tuple(also))
