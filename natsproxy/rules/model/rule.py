"""A rule is selector x gate x action; this module says what an action is and what it may rely on.

Guarantees to an action
1. It is made once per rule, from checked settings; `bind` gives each connection its instance, which may be
   the action itself where it keeps nothing per connection.
2. `act` is called for a frame that the selector matched and the gate let through, in stream order, once per
   frame and direction.  The frame is as received but for what earlier rules replaced in it; it is whole when
   the action's `need` is PAYLOAD, has its headers when it is HEADERS.  None means: nothing to do after all.
3. An action returns a verdict and touches nothing outside itself.  What it raises closes that one connection.
4. `hit` carries the time, the number of the match and the dice: nothing else may decide.
5. Link actions bend the link while they are in force, they do not see bytes.
6. A rule of the same name and content survives a reload with its counts, its dice and its instances.

Frames that are too large to hold (`rule_buffer`) reach no action that needs their payload: a denying rule
closes the connection, any other lets the frame pass and says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, NamedTuple

from natsproxy.rules.file.values import Convert
from natsproxy.rules.interface import LinkConditions, View
from natsproxy.rules.model.gate import OPEN, Count, Gate
from natsproxy.rules.model.seeded_random import ACTION, Draws
from natsproxy.rules.model.selector import MESSAGES, Selector
from natsproxy.rules.model.verdicts import Close, StartCondition, Verdict
from natsproxy.wire.frames import Frame, Need
from natsproxy.wire.interest import Clause
from natsproxy.wire.ops import ALL_OPS, Direction, Op


class Stage(IntEnum):
    """Where a rule stands.  c2s frames pass the stages in this order, s2c frames in the opposite one."""

    FAULT = 0
    PERMISSION = 1
    REWRITE = 2


class Hit(NamedTuple):
    """One match that the gate let through: direction, time (ns), number of the match, dice, connection."""

    direction: Direction
    now: int
    m: int
    draws: Draws
    view: View

    def u(self, k: int = 0) -> float:
        """Return the action's k-th draw for this match, in (0, 1)."""
        return self.draws.u(ACTION + k)


class StaticDecision(NamedTuple):
    """What an action does to every frame of one op and subject (s2c: and sid), decided at once.

    drop: it drops them.  delay: it holds them for so long (ns), in order.  Neither: it leaves them alone.
    unless: a frame with these bytes in its headers is judged by itself; `b""` for none.
    admits: asked about each frame that is left alone (and the time), in order: what the action notes of it,
    and whether it is left alone indeed; the others are judged by themselves.
    """

    drop: bool = False
    delay: int = 0
    unless: bytes = b""
    admits: Callable[[Frame, int], bool] | None = None


class Action:
    """What a rule does to frames.  Immutable but for what `bind` makes."""

    stage: Stage = Stage.FAULT
    label: str = ""
    need: Need = Need.LINE
    guards: bool = False
    """It denies or separates: what cannot be framed must not pass."""
    alters_delivery: bool = False
    """It may drop or add deliveries."""
    answers: bool = False
    """It adds deliveries of its own, on reply subjects."""
    draws: bool = False
    """It throws dice of its own."""

    def bind(self, view: View) -> Action:
        """Return the instance of one connection."""
        return self

    def act(self, frame: Frame, hit: Hit) -> Verdict | None:
        """Return what becomes of a frame."""
        return None

    def static_decision(self, op: Op, subject: bytes, sid: bytes, view: View) -> StaticDecision | None:
        """Return what it does to all whole frames of a subject; None: it must see each.

        Holds c2s as long as the rules are bound, s2c until a subscription comes or goes.  For a judge
        (`Stage.PERMISSION`) only "leaves them alone" is an answer.
        """
        return None

    def revokes(self, view: View) -> list[tuple[bytes, str]]:
        """Return the live subscriptions (sids) that may not go on under it, with what the -ERR says."""
        return []

    def clauses(self, selector: Selector) -> tuple[tuple[Direction, Clause], ...] | None:
        """Return what the scanners look out for, None for what the selector says."""
        return None

    def describe(self) -> str:
        """Return what it does, in a few words."""
        return self.label


class LinkAction(Action):
    """What a rule does to links.

    With a frame selector it starts at a frame, else it is in force while its gate's window is open.
    lasts: ns from its start, None to the end of the window or the connection.
    """

    lasts: int | None = None
    delay: int = 0
    """What its firing says about time given (ns)."""
    opening: str = ""
    """What becomes of a new connection, `""` for the usual."""

    def act(self, frame: Frame, hit: Hit) -> Verdict | None:
        """Come into force with a frame."""
        return StartCondition()

    def apply(self, conditions: LinkConditions, age: int) -> LinkConditions:
        """Return the shape of a link with this action in force since `age` ns; rules add up."""
        return conditions

    def start(self, hit: Hit) -> tuple[list[tuple[Direction, bytes]], Close | None]:
        """Return frames to inject and a reason to close when it comes into force."""
        return [], None


REQUIRED: Final = object()


class Setting(NamedTuple):
    """A key of a rule: its converter, its default (REQUIRED for none) and what it means."""

    name: str
    convert: Convert
    default: Any
    text: str


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of rule.  make: settings and selector to action; raises ValueError with a clause.

    ops: what it selects where the rule names no op (0: connections).  takes: what it can be about at all.
    direction: where it goes if the rule does not say.
    selects: the selector keys that have a meaning for it, None for all.  gated: whether gate keys have.
    link: the action as one on links, where that is the same for a rule without frame selector and without a
    counting gate (None: it is not): whole runs of frames are handled as one then.
    example: a whole `[[rules]]` table in TOML, which is tested.
    """

    name: str
    text: str
    make: Callable[[Mapping[str, Any], Selector], Action]
    example: str
    settings: tuple[Setting, ...] = ()
    ops: int = MESSAGES
    takes: int = ALL_OPS
    direction: Direction | None = None
    selects: frozenset[str] | None = None
    gated: bool = True
    link: Callable[[Mapping[str, Any]], LinkAction | None] | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Rule:
    """One loaded rule.  `shared` is the proxy-wide count, which is all that changes.

    table: the rule as it was written.  where: file and line, for errors.
    """

    name: str
    kind: str
    selector: Selector
    action: Action
    gate: Gate = OPEN
    table: Mapping[str, Any] = field(default_factory=dict)
    where: str = ""
    shared: Count = field(default_factory=lambda: Count(since=-1))

    @property
    def content(self) -> str:
        """A text that two rules have in common when they were written the same."""
        return json.dumps(self.table, sort_keys=True, default=str)

    @property
    def need(self) -> Need:
        """How much of a frame must be seen for it."""
        return max(self.selector.need, self.action.need)
