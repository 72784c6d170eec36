"""A plan: the rules that apply to a connection, compiled; shared by all connections to which the same apply.

Theory
1. What depends on op and subject alone is asked once per subject and cached; the cache is emptied when it is
   full, since subjects are hostile and inboxes never repeat.
2. Rules are known by their place in the plan.  Their order is that of the stages (c2s: faults, permissions;
   s2c: permissions, faults) and inside a stage that of the file.
3. Clauses that differ in their patterns only are joined, so that a thousand rules are a handful of clauses.
4. Where something is rewritten, the scanner of s2c sees the server's subjects and the rules the client's.  A
   frame whose client subject a rule wants is either on that very subject or was rewritten; so the rewriter's
   clauses want all that may have been rewritten, at the greatest need of any rule.
5. A rule that drops or adds deliveries makes UNSUB max a matter of the session, which then must count from
   the SUB on, and whatever was subscribed to: JetStream delivers messages of other subjects there.
"""

from __future__ import annotations

from natsproxy.protocol.patternset import PatternSet
from natsproxy.rules.bounded_cache import remember
from natsproxy.rules.model.roles import MSGS, PUBS
from natsproxy.rules.model.rule import LinkAction, Rule
from natsproxy.rules.rewriting.frames import FrameRewriter
from natsproxy.wire.frames import Need
from natsproxy.wire.interest import Clause
from natsproxy.wire.ops import C2S, S2C, Direction, Op, op_mask
from natsproxy.wire.scanner import Interest


class _Table:
    """Which rules want frames of one op: some whatever the subject, some by patterns."""

    __slots__ = ("always", "excepting", "patterns", "simple")

    def __init__(self, wanted: list[tuple[int, Clause]]) -> None:
        self.always = tuple(place for place, clause in wanted if clause.match is None and not clause.unless)
        self.patterns = PatternSet(
            (pattern, place)
            for place, clause in wanted
            if not clause.unless
            for pattern in clause.match or ()
        )
        self.excepting = [
            (place, _set(clause.unless), None if clause.match is None else _set(clause.match))
            for place, clause in wanted
            if clause.unless
        ]
        self.simple = not self.excepting and not len(self.patterns)

    def find(self, subject: bytes) -> tuple[int, ...]:
        """Return the places that want a subject; the price does not grow with the patterns that do not."""
        if self.simple:
            return self.always
        found = [*self.always, *self.patterns.find(subject)]
        for place, unless, match in self.excepting:
            if not unless.matches(subject) and (match is None or match.matches(subject)):
                found.append(place)
        return tuple(sorted(set(found))) if len(found) > 1 else tuple(found)


def _set(patterns: tuple[bytes, ...]) -> PatternSet[None]:
    return PatternSet((pattern, None) for pattern in patterns)


class RuleIndex:
    """The compiled rules of some connections.  Immutable but for its caches."""

    def __init__(self, rules: tuple[Rule, ...], rewriter: FrameRewriter | None) -> None:
        self.rewriter = rewriter
        self.everything = rules
        self.links = tuple(rule for rule in rules if isinstance(rule.action, LinkAction))
        framed = [rule for rule in rules if rule.selector.ops]
        self.rules = (
            tuple(sorted(framed, key=lambda rule: rule.action.stage)),
            tuple(sorted(framed, key=lambda rule: -rule.action.stage)),
        )
        self._asking = [rule for rule in framed if _asks(rule)]
        self.asked_need = max((rule.need for rule in self._asking), default=Need.NONE)
        per_rule = tuple(
            [self._wants(rule, direction) for rule in self.rules[direction]] for direction in Direction
        )
        self._tables = tuple(
            [
                _Table(
                    [
                        (place, clause)
                        for place, clauses in enumerate(found)
                        for clause in clauses
                        if clause.ops >> op & 1
                    ]
                )
                for op in Op
            ]
            for found in per_rule
        )
        self.alters_delivery = any(self._alters(rule) for rule in rules)
        self._askers = _Table([(place, _question(rule)) for place, rule in enumerate(self._asking)])
        self._caches: tuple[dict[tuple[Op, bytes], tuple[int, ...]], ...] = ({}, {})
        self._asker_cache: dict[bytes, frozenset[object]] = {}
        self.interest = (self._compile(C2S, per_rule[C2S]), self._compile(S2C, per_rule[S2C]))

    def candidates(self, direction: Direction, op: Op, subject: bytes) -> tuple[int, ...]:
        """Return the places of the rules that op and subject select, in order."""
        cache = self._caches[direction]
        found = cache.get((op, subject))
        if found is None:
            found = remember(cache, (op, subject), self._tables[direction][op].find(subject), len(subject))
        return found

    def asking(self, subject: bytes) -> frozenset[object]:
        """Return the rules for which a PUB of this subject opens a request."""
        if not self._asking:
            return frozenset()
        found = self._asker_cache.get(subject)
        if found is None:
            asking = frozenset[object](self._asking[place] for place in self._askers.find(subject))
            found = remember(self._asker_cache, subject, asking, len(subject))
        return found

    def _alters(self, rule: Rule) -> bool:
        """Tell whether a rule may drop or add deliveries."""
        if not rule.action.alters_delivery:
            return False
        if rule.action.answers or _asks(rule):
            return True
        return any(clause.ops & MSGS for clause in self._wants(rule, S2C))

    def _wants(self, rule: Rule, direction: Direction) -> list[Clause]:
        """Return what a rule wants of a direction, in the subjects that the rules see."""
        own = rule.action.clauses(rule.selector)
        if own is not None:
            return [clause for way, clause in own if way == direction]
        selector = rule.selector
        ops = selector.wants(direction)
        if not ops or _asks(rule):
            return []
        if selector.subjects is None and not selector.unless:
            return [Clause(ops, rule.need)]
        if selector.side == "server" and self.rewriter is not None:
            return [Clause(ops, rule.need)]  # decided per frame, once the other subject is known
        return [Clause(ops, rule.need, selector.subjects, selector.unless)]

    def _compile(self, direction: Direction, found: list[list[Clause]]) -> Interest:
        clauses = [clause for group in found for clause in group]
        if direction == C2S:
            clauses += [_question(rule) for rule in self._asking]
        if direction == C2S and self.alters_delivery:
            clauses.append(Clause(op_mask(Op.SUB), Need.LINE))
        if self.rewriter is not None:
            need = max((clause.need for clause in clauses), default=Need.LINE)
            clauses += self.rewriter.clauses(direction, max(need, self.asked_need))
        return Interest(joined(clauses))


def joined(clauses: list[Clause]) -> tuple[Clause, ...]:
    """Join the clauses that differ in `match` only."""
    groups: dict[tuple[int, Need, tuple[bytes, ...], bool], dict[bytes, None]] = {}
    for clause in clauses:
        key = (clause.ops, clause.need, clause.unless, clause.match is None)
        groups.setdefault(key, {}).update(dict.fromkeys(clause.match or ()))
    return tuple(
        Clause(ops, need, None if everything else tuple(patterns), unless)
        for (ops, need, unless, everything), patterns in groups.items()
    )


def _asks(rule: Rule) -> bool:
    return rule.selector.role is not None and rule.selector.role.asks is not None


def _question(rule: Rule) -> Clause:
    """Return the clause of the PUBs whose answers a rule is about."""
    role, selector = rule.selector.role, rule.selector
    assert role is not None
    return Clause(PUBS, Need.LINE, selector.subjects or role.asks, (*selector.unless, *role.unless))
