"""Link rules of one connection: when they are in force, how they bend the link, what they send or end.

Theory
1. A link rule without a frame selector is about connections: its gate is asked once, when the connection is
   bound, and `between` is the window in which it is in force.  One with a frame selector comes into force at
   the frame that fires it.  `lasts` ends either.
2. The shape of a link is the sum of the rules in force on its direction.  What a rule does once, when it
   comes into force (frames of ours, a close), is handed out by `due`.
3. A rule loaded later is in force at once on the connections that are already open.  A window is counted from
   the start of the connection, or with `per = "proxy"` from when the rule was loaded.
4. A rule that is taken away leaves nothing behind: the link is straight again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from natsproxy.rules.base import Hit, LinkAction, Rule
from natsproxy.rules.seam import Shape
from natsproxy.rules.verdicts import Close
from natsproxy.wire.ops import C2S, Direction

if TYPE_CHECKING:
    from natsproxy.rules.bound import Instance, RuleBound


@dataclass(slots=True, eq=False)
class Span:
    """When one rule is in force on one connection (ns); hit is what started it."""

    item: Instance
    action: LinkAction
    begins: int
    ends: int | None
    hit: Hit
    started: bool = False

    def holds(self, now: int) -> bool:
        """Tell whether the rule is in force."""
        return self.begins <= now and (self.ends is None or now < self.ends)


class Links:
    """The link rules of one connection."""

    def __init__(self, bound: RuleBound, before: Links | None, now: int) -> None:
        self._bound = bound
        self._spans: dict[Rule, Span | None] = {}
        self.opening = "serve"
        for rule in bound.plan.links:
            if before is not None and rule in before._spans:
                self._spans[rule] = before._spans[rule]
            elif not rule.selector.ops:
                self._spans[rule] = self._window(bound.instance(rule), now)
            else:
                self._spans[rule] = None
            span = self._spans[rule]
            if span is not None and span.action.opening and before is None:
                self._begin(span, now)
                self.opening = span.action.opening

    def _window(self, item: Instance, now: int) -> Span | None:
        """Return the span of a rule about connections, None where its gate says no."""
        hit, gate = self._bound.match(item, C2S, now), replace(item.rule.gate, between=None)
        rule = item.rule
        count = rule.shared if gate.per_proxy else item.counts[C2S]
        if not gate.admits(count, hit.m, item.key, now, hit.roll.u, hit.direction.label):
            return None
        between = rule.gate.between
        begins = count.since + between[0] if between is not None else now
        ends = None if between is None or between[1] is None else count.since + between[1]
        return self._span(item, begins, ends, hit)

    def _span(self, item: Instance, begins: int, ends: int | None, hit: Hit) -> Span:
        action = item.action
        assert isinstance(action, LinkAction)
        if action.lasts is not None:
            last = begins + action.lasts
            ends = last if ends is None else min(ends, last)
        return Span(item, action, begins, ends, hit)

    def start(self, item: Instance, hit: Hit) -> None:
        """Let a rule come into force at a frame; one that is in force already begins anew."""
        span = self._span(item, hit.now, None, hit)
        span.started = True  # the frame is the firing
        self._spans[item.rule] = span

    def shape(self, direction: Direction, now: int) -> tuple[Shape | None, int | None]:
        """Return the sum of what is in force on a direction, and when that changes (or `due` has work)."""
        shape: Shape | None = None
        changes: list[int] = []
        for rule, span in self._spans.items():
            if span is None or direction not in rule.selector.directions:
                continue
            if span.holds(now):
                shape = span.action.bend(shape or Shape(), now - span.begins)
                if not span.started:
                    changes.append(now)
            changes += [time for time in (span.begins, span.ends) if time is not None and time > now]
        return shape, min(changes, default=None)

    def due(self, now: int) -> tuple[list[tuple[Direction, bytes]], Close | None, int | None]:
        """Return what the rules that come into force now send, the first reason to close, the next time."""
        frames: list[tuple[Direction, bytes]] = []
        close: Close | None = None
        later: list[int] = []
        for span in self._spans.values():
            if span is None or span.started:
                continue
            if span.begins > now:
                later.append(span.begins)
                continue
            sends, ends = self._begin(span, now)
            frames += sends
            close = close or ends
        return frames, close, min(later, default=None)

    def _begin(self, span: Span, now: int) -> tuple[list[tuple[Direction, bytes]], Close | None]:
        span.started = True
        rule = span.item.rule
        direction = rule.selector.directions[0]
        self._bound.fired.append(
            self._bound.firing(span.item, direction, now, span.hit.m, None, span.action.delay)
        )
        return span.action.start(span.hit._replace(now=now))
