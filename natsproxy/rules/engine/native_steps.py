"""The steps of the decisions that the native plane makes by itself: the rules on the frames of one key.

Theory
1. A step says what one rule does with each frame of an op and a subject (s2c: and sid).  C asks its gate and
   counts its matches (`_decisions.pyx`).  Where a rule acts, C does what the verdict says if it stands in
   `_EFFECTS`; else Python decides on that frame.
2. The conditions of a selector that depend on the frame are given to C as far as it can rule frames out by
   them; where it cannot, Python decides.
3. A rule with a condition, a gate or an action that this module does not know has no step: the frames that it
   selects go to Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from natsproxy.rules.interface import View
from natsproxy.rules.model.gate import Gate
from natsproxy.rules.model.rule import Stage
from natsproxy.rules.model.rule_state import RuleState
from natsproxy.rules.model.selector import Selector
from natsproxy.rules.model.token_buckets import Tokens
from natsproxy.rules.model.verdicts import Corrupt, Deny, Drop, Duplicate, Hold
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Direction, Op

NOTHING: Final = ()
"""The steps of a rule that neither acts on such frames nor counts them."""


class NativeStep(NamedTuple):
    """The part of one rule in a decision.

    gate: its compiled gate.  dice: the compiled numbers that this draws, if any; substream: the counts and
    the digest of the substream that it draws them from, if any.  owner: the batch that is told where the rule
    acts, with `fact`; None: Python decides there.  cause: for records.  head: takes the place of the first
    `cut` bytes; None: the frame is dropped, unless it gets `copies`, or `damage` to so many bytes of its body
    at most, or is held for `delay` ns.  asks: the owner says what is done with each frame (`FrameBatch.act`),
    and is told nothing; holds: it changes no byte then.  passes: the frame goes on as it came.  min_size,
    max_size: of the payload, in bytes.
    header: bytes that its headers must hold.  status: these must have one.  unsure: Python decides whether a
    frame that meets these conditions is selected.  tokens: what the frame takes of a limit; where they are
    not there, Python decides, and where they are, the rule does nothing.
    """

    gate: Any
    dice: Any = None
    substream: tuple[Any, bytes] | None = None
    owner: Any = None
    fact: object = None
    head: bytes | None = None
    cut: int = 0
    copies: int = 0
    damage: int = 0
    delay: int = 0
    asks: bool = False
    holds: bool = False
    passes: bool = False
    cause: str = ""
    min_size: int = 0
    max_size: int | None = None
    header: bytes = b""
    status: bool = False
    unsure: bool = False
    tokens: Tokens | None = None


class CompiledGates:
    """The gates of the rules of one connection, compiled when they are first asked for."""

    def __init__(self) -> None:
        self._gates: dict[tuple[RuleState, Direction], Any] = {}
        self._dice: dict[tuple[RuleState, Direction], Any] = {}

    def gate(self, state: RuleState, direction: Direction) -> Any | None:
        """Return the compiled gate of a rule in a direction, None for one that C does not know."""
        key = state, direction
        if key not in self._gates:
            self._gates[key] = _compiled(state, direction)
        return self._gates[key]

    def steps(self, state: RuleState, direction: Direction, frame: Frame) -> Sequence[NativeStep] | None:
        """Return the step of a rule on frames like this; `NOTHING` for none, None where Python decides.

        Like this: of its op, subject and sid.  The caller fills in the owner of one on which C can act, and
        its fact (`effect`).
        """
        action, selector = state.action, state.rule.selector
        op, subject, sid = frame.op, frame.subject, frame.sid
        if selector.side == "server" or not is_known(selector):
            return None
        if not may_select(selector, frame, state.view):
            return NOTHING
        static, tokens = action.static_decision(op, subject, sid, state.view), None
        if action.stage in (Stage.PERMISSION, Stage.LIMIT):
            # It counts only the frames on which it acts.
            if static is None:
                return None
            if static.verdict is None:
                if static.admits is None:
                    return NOTHING
                if (tokens := action.tokens(subject)) is None:
                    return None
        gate = self.gate(state, direction)
        if gate is None:
            return None
        step = NativeStep(gate, *self._draws(state, direction, op, subject, sid), tokens=tokens)
        return [_with_conditions(step, selector) if state.dynamic else step]

    def _draws(
        self, state: RuleState, direction: Direction, op: Op, subject: bytes, sid: bytes
    ) -> tuple[Any, tuple[Any, bytes] | None]:
        """Return the numbers and the substream of the matches of a key."""
        from natsproxy.rules.model import _gates  # type: ignore[attr-defined, unused-ignore]

        found = state.substream(direction, op, subject, sid)
        if found is not None:
            counts, digest, numbers = found
            return _gates.NativeDice(numbers.prefix), (counts, digest)
        if state.rule.gate.probability is None and not state.action.draws_random:
            return None, None
        key = state, direction
        if key not in self._dice:
            self._dice[key] = _gates.NativeDice(state.random(direction).prefix)
        return self._dice[key], None


def is_known(selector: Selector) -> bool:
    """Tell whether a selector has no condition on the frame but those that this module knows."""
    rest = replace(selector, queues=None, headers=(), statuses=(), min_size=0, max_size=None, role=None)
    return type(selector) is Selector and not rest.dynamic


def may_select(selector: Selector, frame: Frame, view: View) -> bool:
    """Tell whether a selector may select any frame of the op, the subject and the sid of this one."""
    role = selector.role
    if role is not None and not role.on_subject(frame.subject):
        return False
    # The queue is that of the subscription: all frames of a key have the same.
    return selector.queues is None or Selector(queues=selector.queues).admits(frame, view)


def _with_conditions(step: NativeStep, selector: Selector) -> NativeStep:
    """Return a step with the conditions on a frame as C asks them."""
    role = selector.role
    return step._replace(
        min_size=selector.min_size,
        max_size=selector.max_size,
        header=selector.headers[0][0] + b":" if selector.headers else b"",
        status=bool(selector.statuses) or (role is not None and role.by_status),
        unsure=bool(selector.headers or selector.statuses) or (role is not None and not role.by_subject),
    )


_EFFECTS: Final[dict[type, Callable[[Any], dict[str, Any]]]] = {
    Drop: lambda verdict: {},
    Duplicate: lambda verdict: {"copies": verdict.copies},
    Corrupt: lambda verdict: {"damage": verdict.count},
    Hold: lambda verdict: {"delay": verdict.delay},
}
"""The members of a step by its verdict: those that C carries out."""


def effect(
    state: RuleState, op: Op, subject: bytes, sid: bytes
) -> tuple[Drop | Duplicate | Corrupt | Hold | Deny, dict[str, Any]] | None:
    """Return the verdict of a rule on the frames of a key, with the members of its step; None: not for C."""
    static = state.action.static_decision(op, subject, sid, state.view)
    verdict = None if static is None else static.verdict
    if state.action.shadow:
        return (verdict, {"passes": True}) if isinstance(verdict, Deny) else None
    if not isinstance(verdict, Drop | Duplicate | Corrupt | Hold):
        return None
    if isinstance(verdict, Hold) and verdict.overtake:
        return None
    return verdict, _EFFECTS[type(verdict)](verdict)


def _compiled(state: RuleState, direction: Direction) -> Any | None:
    # Built with the plane that asks for it.
    from natsproxy.rules.model import _gates  # type: ignore[attr-defined, unused-ignore]

    gate = state.rule.gate
    known = Gate(
        gate.probability,
        gate.every,
        gate.first,
        gate.after,
        gate.limit,
        gate.between,
        gate.only,
        gate.per_proxy,
    )
    if type(gate) is not Gate or gate != known or gate.every == 0:
        return None
    try:
        return _gates.native_gate(
            gate, state.counts[direction], state.rule.shared, state.keys, direction.label
        )
    except OverflowError:  # too large for C
        return None
