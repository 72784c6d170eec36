"""Link rules of one connection: when they are in force, and the conditions that they put on the link.

Theory
1. A link rule without a frame selector is about connections: its gate decides once, when the connection is
   bound, and `between` is the window in which it is in force.  One with a frame selector comes into force at
   the frame that fires it, which is the first that it affects.  `lasts` ends either.
2. The conditions of a link are the sum of the rules in force on its direction, or on both.  An action that a
   rule takes once, when it comes into force (injected frames, a close), is returned by `due`.
3. A rule loaded later is in force at once on the connections that are already open.  A window is counted from
   the start of the connection or, if that is later, from when the rule came into force on it; with `per =
   "proxy"`, and where its times begin with `+`, from when the rule came into force.  A connection that opens
   when the window is over is not affected by the rule.
4. When a rule is removed, its conditions end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from natsproxy.events import Firing
from natsproxy.rules.interface import LinkConditions
from natsproxy.rules.model.rule import Hit, LinkAction, Rule
from natsproxy.rules.model.rule_state import RuleState
from natsproxy.rules.model.verdicts import Close
from natsproxy.wire.ops import C2S, Direction


@dataclass(slots=True, eq=False)
class ActiveWindow:
    """The time in which one rule is in force on one connection (ns); ends: None for never.

    hit: the match that started it.  started: its firing is reported, and its action taken.
    """

    state: RuleState
    action: LinkAction
    begins: int
    ends: int | None
    hit: Hit
    started: bool = False

    def contains(self, now: int) -> bool:
        """Tell whether the rule is in force."""
        return self.begins <= now and (self.ends is None or now < self.ends)


class LinkRules:
    """The link rules of one connection.

    fired: the list to which their firings are added.  previous: the link rules of the connection before a
    reload, whose windows go on.
    """

    def __init__(
        self,
        rules: Sequence[Rule],
        states: Mapping[Rule, RuleState],
        fired: list[Firing],
        previous: LinkRules | None,
        now: int,
    ) -> None:
        self._fired = fired
        self._windows: dict[Rule, ActiveWindow | None] = {}
        self.opening = "serve"
        for rule in rules:
            if previous is not None and rule in previous._windows:
                self._windows[rule] = previous._windows[rule]
                continue
            state = states[rule]
            opening = _link_action(state).opening
            # An open connection cannot be turned away any more, so the rule does not count it.
            passed_over = rule.selector.ops or (opening and previous is not None)
            self._windows[rule] = window = None if passed_over else self._window(state, now)
            if window is not None and opening:
                self._begin(window, now)
                self.opening = opening

    def _window(self, state: RuleState, now: int) -> ActiveWindow | None:
        """Return the window of a rule about connections, None if its gate does not let it through."""
        hit, gate, between = state.match(C2S, now), state.rule.gate, state.rule.gate.between
        count = state.rule.shared if gate.per_proxy else state.counts[C2S]
        begins = count.since + between.start if between is not None else now
        ends = None if between is None or between.end is None else count.since + between.end
        if ends is not None and ends <= now:
            return None
        if not _link_action(state).opening:
            # `between` sets the window; the gate must not refuse one that opens later.
            gate = replace(gate, between=None)
        if not gate.admits(count, hit.m, state.keys, now, hit.draws.draw, hit.direction.label):
            return None
        return self._limited(state, begins, ends, hit)

    def _limited(self, state: RuleState, begins: int, ends: int | None, hit: Hit) -> ActiveWindow:
        action = _link_action(state)
        if action.lasts is not None:
            last = begins + action.lasts
            ends = last if ends is None else min(ends, last)
        return ActiveWindow(state, action, begins, ends, hit)

    def start(self, state: RuleState, hit: Hit) -> None:
        """Put a rule in force at a frame; one that is in force already starts again."""
        window = self._limited(state, hit.now, None, hit)
        window.started = True  # the decision on the frame reports the firing
        self._windows[state.rule] = window

    def conditions(self, direction: Direction, now: int) -> tuple[LinkConditions | None, int | None]:
        """Return the sum of the rules in force on a direction, and when it changes or `due` has work (ns)."""
        if not self._windows:  # by far the most connections
            return None, None
        conditions: LinkConditions | None = None
        changes: list[int] = []
        for rule, window in self._windows.items():
            if window is None or not (window.action.both or direction in rule.selector.directions):
                continue
            if window.contains(now):
                conditions = window.action.apply(conditions or LinkConditions(), now - window.begins)
                if not window.started:
                    changes.append(now)
            changes += [time for time in (window.begins, window.ends) if time is not None and time > now]
        return conditions, min(changes, default=None)

    def due(self, now: int) -> tuple[list[tuple[Direction, bytes]], Close | None, int | None]:
        """Start the rules that come into force: return their frames, the first close, the next time (ns)."""
        frames: list[tuple[Direction, bytes]] = []
        close: Close | None = None
        later: list[int] = []
        for window in self._windows.values():
            if window is None or window.started:
                continue
            if window.begins > now:
                later.append(window.begins)
                continue
            injected, ending = self._begin(window, now)
            frames += injected
            close = close or ending
        return frames, close, min(later, default=None)

    def _begin(self, window: ActiveWindow, now: int) -> tuple[list[tuple[Direction, bytes]], Close | None]:
        window.started = True
        direction = window.state.rule.selector.directions[0]
        self._fired.append(window.state.firing(direction, now, window.hit.m, delay=window.action.delay))
        return window.action.start(window.hit._replace(now=now))


def _link_action(state: RuleState) -> LinkAction:
    assert isinstance(state.action, LinkAction)
    return state.action
