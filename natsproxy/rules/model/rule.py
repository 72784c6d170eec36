"""A rule is a selector, a gate and an action; this module defines actions and what they may rely on.

Guarantees to an action
1. It is made once per rule, from checked settings; `bind` gives each connection its instance, which is the
   action itself where it keeps nothing per connection.
2. `act` is called for a frame that the selector matched and the gate let through, in stream order, once per
   frame and direction.  The frame is as received but for what earlier rules replaced in it; it is whole when
   the action's `need` is PAYLOAD, has its headers when it is HEADERS.  None leaves the frame alone.
3. An action returns a verdict and touches nothing outside itself.  An exception that it raises closes that
   one connection.
4. `hit` carries the time, the number of the match and its random numbers; nothing else may affect a verdict.
5. Link actions change the conditions of a link while they are in force; they never see bytes.
6. A rule of the same name and content survives a reload with its counts, random numbers and instances.
7. Its state on a connection is made when it is first asked about a frame there, or at once where a time
   counts from then.

Frames that are too large to hold (`rule_buffer`) reach no action that needs their payload: a guarding rule
(`guards`) closes the connection, any other lets the frame pass and reports that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from natsproxy.rules.interface import LinkConditions, View
from natsproxy.rules.model.counts import Count
from natsproxy.rules.model.delivery_filter import DeliveryFilter
from natsproxy.rules.model.gate import OPEN, Gate
from natsproxy.rules.model.seeded_random import ACTION, Draws
from natsproxy.rules.model.selector import MESSAGES, Selector
from natsproxy.rules.model.token_buckets import Tokens
from natsproxy.rules.model.verdicts import Close, StartCondition, Verdict
from natsproxy.wire.frames import Frame, Need
from natsproxy.wire.interest import Clause
from natsproxy.wire.ops import ALL_OPS, Direction, Op


class Stage(IntEnum):
    """The place of a rule in the order: c2s frames pass the stages upward, s2c frames downward."""

    FAULT = 0
    PERMISSION = 1
    LIMIT = 2
    STAMP = 3
    REWRITE = 4


class Hit(NamedTuple):
    """One match that the gate let through.

    now: its time (ns).  m: its number, from 1.  traced: the subject of the trace that a publish asks for,
    None where nobody has looked.
    """

    direction: Direction
    now: int
    m: int
    draws: Draws
    view: View
    traced: bytes | None = None

    def draw(self, k: int = 0) -> float:
        """Return the action's k-th draw for this match, in (0, 1)."""
        return self.draws.draw(ACTION + k)


Admits = Callable[[Frame, int], bool]
"""See `StaticDecision`."""


class StaticDecision(NamedTuple):
    """An action's decision on every frame of one op and subject (s2c: and sid).

    verdict: the same for each of them; None: it leaves them alone.  admits: called with each frame that is
    left alone and the time (ns), in order, so that the action can take note of it; False sends the frame to
    the general path.
    """

    verdict: Verdict | None = None
    admits: Admits | None = None


class Action:
    """The action of a rule on frames.  Immutable but for the instances that `bind` makes.

    label: the action's name in firings.  need: how much of a frame `act` reads.
    """

    stage: Stage = Stage.FAULT
    label: str = ""
    need: Need = Need.LINE
    ops: int = 0
    """The ops that it is about, where these are not those of its kind."""
    keeps: bool = False
    """It counts connections, and is told of those that it meets when it comes into force, and of each end."""
    connect_first: bool = False
    """It must see the CONNECT of a client before anything else."""
    guards: bool = False
    """It denies subjects or separates tenants: bytes that cannot be framed must not pass."""
    alone: bool = False
    """There can be one such rule only: a second one would undo what it does."""
    shadow: str = ""
    """The action of its firings where its verdicts are only reported, and not carried out."""
    alters_delivery: bool = False
    """It may drop or add deliveries."""
    answers: bool = False
    """It adds deliveries of its own, on reply subjects."""
    draws_random: bool = False
    """It draws random numbers of its own."""
    filtered: tuple[bytes, ...] = ()
    """It keeps messages on these patterns from a connection, once a subscription that collides with one of
    them has armed it (`delivery_filter.py`)."""
    traced: bool = False
    """It judges the subject of a publish, and so the one to which the server would publish a trace of it."""

    files: tuple[Path, ...] = ()
    """The files that it was made of, beside that of its rule."""
    on_frame: Literal["", "change", "hold"] = ""
    """The effect that its verdicts mostly have on the one frame that `act` gets: the native plane asks it by
    itself then, and the session asks again where the verdict is another.  So a second call says the same.
    """
    edits: frozenset[bytes] = frozenset()
    """The headers that it changes by `ChangeHeaders`; it does not look at the frame."""

    @property
    def fingerprint(self) -> str:
        """A mark of what it has read from a file: with another one, it belongs to another rule."""
        return ""

    def bind(self, view: View, deliveries: DeliveryFilter) -> Action:
        """Return the instance of one connection."""
        return self

    def act(self, frame: Frame, hit: Hit) -> Verdict | None:
        """Return the verdict on a frame, None to leave it alone; by default the static one."""
        static = self.static_decision(frame.op, frame.subject, frame.sid, hit.view)
        return None if static is None else static.verdict

    def static_decision(self, op: Op, subject: bytes, sid: bytes, view: View) -> StaticDecision | None:
        """Return the decision on all whole frames of a subject; None: it must see each frame.

        Holds c2s as long as the rules are bound, s2c until a subscription comes or goes.  An action that has
        one needs no `act`; one that has none is always asked by `act`, frame by frame.
        """
        return None

    def tokens(self, subject: bytes) -> Tokens | None:
        """Return what whole frames of a subject take, where all that its static decision admits are those for
        which the tokens are there; None: `admits` alone knows.  Holds as long as the static decision does.
        """
        return None

    def admits_sub(self, subject: bytes, queue: bytes) -> bool:
        """Tell whether a permission rule allows a subscription; live ones that it refuses are ended."""
        return True

    def succeed(self, former: Action) -> None:
        """Take over the counts of the action of a rule of the same name, which this one replaces."""

    def adopted(self, view: View) -> None:
        """Take note of a connection that is open when the rule comes into force on it."""

    def ended(self, view: View) -> None:
        """Take note that a connection is over, or that the rule is no longer in force on it."""

    def exhausted(self) -> Action:
        """Return the action in the state in which it acts, where that depends on earlier frames."""
        return self

    def set_clock(self, unix: Callable[[int], int]) -> None:
        """Take the function that returns the Unix time (ns) at a time of the proxy's clock."""

    def condition(self) -> str:
        """Return in words when it acts, beside its rule's gate; empty for always."""
        return ""

    def detail(self) -> str:
        """Return the detail of a firing for its last verdict."""
        return ""

    def clauses(self, selector: Selector) -> tuple[tuple[Direction, Clause], ...] | None:
        """Return the clauses for the scanners, None for those of the selector."""
        return None

    def describe(self) -> str:
        """Return its effect in a few words."""
        return self.label


class LinkAction(Action):
    """The action of a rule on links.

    With a frame selector it starts at a frame, else it is in force while its gate's window is open.
    lasts: ns from its start, None to the end of the window or the connection.
    """

    lasts: int | None = None
    delay: int = 0
    """The delay in its firing (ns)."""
    opening: str = ""
    """The treatment of a new connection (see `ConnectionRules.opening`), `""` to serve it."""
    both: bool = False
    """It is in force in both directions, whatever the selector says."""
    lasting: bool = False
    """It puts conditions on the link (`apply`), and so acts on later frames as well."""

    def act(self, frame: Frame, hit: Hit) -> Verdict | None:
        """Come into force with a frame."""
        return StartCondition()

    def apply(self, conditions: LinkConditions, age: int) -> LinkConditions:
        """Return `conditions` with those of this action added, which is in force since `age` ns."""
        return conditions

    def start(self, hit: Hit) -> tuple[list[tuple[Direction, bytes]], Close | None]:
        """Return frames to inject and a reason to close when it comes into force."""
        return [], None


Convert = Callable[[Any], Any]
"""Reads a value of a rules file; raises ValueError with the end of a sentence that begins with the key."""
REQUIRED: Final = object()


class Setting(NamedTuple):
    """A key of a rule: its converter, its default, its meaning, and a line with it.

    default: a text as it would be written, or any other value converted; REQUIRED for none.
    """

    name: str
    convert: Convert
    default: Any
    text: str
    example: str = ""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of rule.  make: settings and selector to action; raises ValueError with a clause.

    ops: the ops that it selects where the rule names none (0: connections).  takes: the ops that a rule may
    name.  direction: used if the rule has none.
    selects: the selector keys that have a meaning for it, None for all.  gated: whether gate keys have one.
    link: the action as one on links, where that is the same for a rule without frame selector and without a
    counting gate (None: it is not): the session then handles whole runs of frames as one.
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
    """One loaded rule.  Only `shared` changes, the count over all connections.

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
    content: str = field(init=False, repr=False)
    """Equal for two rules that were written the same and have read the same."""

    def __post_init__(self) -> None:
        # Compared as written: two functions made of equal settings would not be equal.
        written = json.dumps(self.table, sort_keys=True, default=str)
        object.__setattr__(self, "content", written + self.action.fingerprint)

    @property
    def need(self) -> Need:
        """The part of a frame that selector and action read."""
        return max(self.selector.need, self.action.need)

    def as_json(self) -> Any:
        """Return the table as JSON has it: dates, for example, are texts."""
        return json.loads(json.dumps(self.table, default=str))

    def never_fired(self) -> str:
        """Return why a rule that has not fired has not, as far as its own counts tell."""
        matched = self.shared.matched
        found = f"{matched} {'frame' if self.selector.ops else 'connection'}{'s' * (matched != 1)}"
        if not matched:
            return f"it selects {self.selector.describe()}, and there was none"
        if not self.gate.open:
            return f"it selected {found}, and its gate ({self.gate.describe()}) let none through"
        return f"it selected {found}, which it left alone"
