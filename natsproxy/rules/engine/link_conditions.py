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

from natsproxy.rules.interface import LinkConditions
from natsproxy.rules.model.rule import Hit, LinkAction, Rule
from natsproxy.rules.model.verdicts import Close
from natsproxy.wire.ops import C2S, Direction

if TYPE_CHECKING:
    from natsproxy.rules.engine.connection_rules import ActiveRules, RuleState


@dataclass(slots=True, eq=False)
class ActiveWindow:
    """When one rule is in force on one connection (ns); hit is what started it."""

    state: RuleState
    action: LinkAction
    begins: int
    ends: int | None
    hit: Hit
    started: bool = False

    def holds(self, now: int) -> bool:
        """Tell whether the rule is in force."""
        return self.begins <= now and (self.ends is None or now < self.ends)


class LinkRules:
    """The link rules of one connection."""

    def __init__(self, active: ActiveRules, before: LinkRules | None, now: int) -> None:
        self._active = active
        self._windows: dict[Rule, ActiveWindow | None] = {}
        self.opening = "serve"
        for rule in active.index.links:
            if before is not None and rule in before._windows:
                self._windows[rule] = before._windows[rule]
            elif not rule.selector.ops:
                self._windows[rule] = self._window(active.state(rule), now)
            else:
                self._windows[rule] = None
            window = self._windows[rule]
            if window is not None and window.action.opening and before is None:
                self._begin(window, now)
                self.opening = window.action.opening

    def _window(self, state: RuleState, now: int) -> ActiveWindow | None:
        """Return the span of a rule about connections, None where its gate says no."""
        hit, gate = self._active.match(state, C2S, now), replace(state.rule.gate, between=None)
        rule = state.rule
        count = rule.shared if gate.per_proxy else state.counts[C2S]
        if not gate.admits(count, hit.m, state.key, now, hit.draws.u, hit.direction.label):
            return None
        between = rule.gate.between
        begins = count.since + between[0] if between is not None else now
        ends = None if between is None or between[1] is None else count.since + between[1]
        return self._limited(state, begins, ends, hit)

    def _limited(self, state: RuleState, begins: int, ends: int | None, hit: Hit) -> ActiveWindow:
        action = state.action
        assert isinstance(action, LinkAction)
        if action.lasts is not None:
            last = begins + action.lasts
            ends = last if ends is None else min(ends, last)
        return ActiveWindow(state, action, begins, ends, hit)

    def start(self, state: RuleState, hit: Hit) -> None:
        """Let a rule come into force at a frame; one that is in force already begins anew."""
        window = self._limited(state, hit.now, None, hit)
        window.started = True  # the frame is the firing
        self._windows[state.rule] = window

    def conditions(self, direction: Direction, now: int) -> tuple[LinkConditions | None, int | None]:
        """Return the sum of what is in force on a direction, and when that changes (or `due` has work)."""
        conditions: LinkConditions | None = None
        changes: list[int] = []
        for rule, window in self._windows.items():
            if window is None or direction not in rule.selector.directions:
                continue
            if window.holds(now):
                conditions = window.action.apply(conditions or LinkConditions(), now - window.begins)
                if not window.started:
                    changes.append(now)
            changes += [time for time in (window.begins, window.ends) if time is not None and time > now]
        return conditions, min(changes, default=None)

    def due(self, now: int) -> tuple[list[tuple[Direction, bytes]], Close | None, int | None]:
        """Return what the rules that come into force now send, the first reason to close, the next time."""
        frames: list[tuple[Direction, bytes]] = []
        close: Close | None = None
        later: list[int] = []
        for window in self._windows.values():
            if window is None or window.started:
                continue
            if window.begins > now:
                later.append(window.begins)
                continue
            sends, ends = self._begin(window, now)
            frames += sends
            close = close or ends
        return frames, close, min(later, default=None)

    def _begin(self, window: ActiveWindow, now: int) -> tuple[list[tuple[Direction, bytes]], Close | None]:
        window.started = True
        rule = window.state.rule
        direction = rule.selector.directions[0]
        self._active.fired.append(
            self._active.firing(window.state, direction, now, window.hit.m, None, window.action.delay)
        )
        return window.action.start(window.hit._replace(now=now))
