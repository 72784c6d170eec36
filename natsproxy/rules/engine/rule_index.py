"""The rule index: it finds the rules for an op and a subject.

All connections to which the same rules apply share one index.

Theory
1. An answer that depends on op and subject alone is computed once per subject and cached; a full cache is
   emptied, since clients choose the subjects and inboxes never repeat.
2. Rules are identified by their place in the index.  They are ordered by stage (c2s: faults, permissions;
   s2c: permissions, faults), and inside a stage as in the file.
3. Clauses that differ in their patterns only are joined: a thousand rules become a handful of clauses.
4. Where a rule rewrites, the scanner of s2c sees the server's subjects and the rules see the client's.  A
   frame whose client subject a rule wants is either on that very subject or was rewritten; so the rewriter's
   clauses want all frames that may have been rewritten, at the greatest need of any rule.
5. Where a rule drops or adds deliveries, the session must count toward UNSUB max itself: from the SUB on, and
   messages of any subject, since JetStream delivers messages of other subjects to a subscription.
6. The effect of permission rules on a SUB is looked up, without asking each rule: those that may deny it are
   found by its subject as for any frame, and the filters that it arms by `armed_by`.
"""

from __future__ import annotations

from natsproxy.protocol.collisions import CollisionSet
from natsproxy.protocol.patternset import PatternSet
from natsproxy.rules.bounded_cache import store
from natsproxy.rules.model.roles import MSGS, PUBS
from natsproxy.rules.model.rule import LinkAction, Rule, Stage
from natsproxy.rules.rewriting.frames import FrameRewriter
from natsproxy.wire.frames import Need
from natsproxy.wire.interest import Clause
from natsproxy.wire.ops import C2S, S2C, Direction, Op, op_mask
from natsproxy.wire.scanner import Interest


class _OpTable:
    """The rules that want frames of one op: some on any subject, some by patterns."""

    __slots__ = ("any_subject", "excepting", "patterns", "simple")

    def __init__(self, wanted: list[tuple[int, Clause]]) -> None:
        self.any_subject = tuple(
            place for place, clause in wanted if clause.match is None and not clause.unless
        )
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
        """Return the places of the rules that want a subject; patterns that do not match cost nothing."""
        if self.simple:
            return self.any_subject
        found = [*self.any_subject, *self.patterns.find(subject)]
        for place, unless, match in self.excepting:
            if not unless.matches(subject) and (match is None or match.matches(subject)):
                found.append(place)
        return tuple(sorted(set(found))) if len(found) > 1 else tuple(found)


def _set(patterns: tuple[bytes, ...]) -> PatternSet[None]:
    return PatternSet((pattern, None) for pattern in patterns)


class RuleIndex:
    """The compiled rules of some connections.  Immutable but for its caches.

    everything, present: all of them, in order and as a set.  requesting: the rules about answers, which an
    earlier request selects.  timed: those with a time that counts from when they come into force on a
    connection.  keeping: those that count connections.  connect_first: True if some need the client's
    CONNECT before anything else.  header_names: the headers that selectors ask for; edited: those that
    actions change.  traced: the places (c2s) of the rules that judge the subjects of traces.
    """

    def __init__(self, rules: tuple[Rule, ...], rewriter: FrameRewriter | None) -> None:
        self.rewriter = rewriter
        self.everything = rules
        self.present = frozenset(rules)
        self.header_names = frozenset(name for rule in rules for name in rule.selector.header_names)
        self.edited: frozenset[bytes] = frozenset().union(*(rule.action.edits for rule in rules))
        self.keeping = tuple(rule for rule in rules if rule.action.keeps)
        self.connect_first = any(rule.action.connect_first for rule in rules)
        self.timed = tuple(rule for rule in rules if rule.gate.between is not None)
        self.links = tuple(rule for rule in rules if isinstance(rule.action, LinkAction))
        framed = [rule for rule in rules if rule.selector.ops]
        self.rules = (
            tuple(sorted(framed, key=lambda rule: rule.action.stage)),
            tuple(sorted(framed, key=lambda rule: -rule.action.stage)),
        )
        self.requesting = [rule for rule in framed if _waits_for_answers(rule)]
        self.request_need = max((rule.need for rule in self.requesting), default=Need.NONE)
        per_rule = tuple(
            [self._wants(rule, direction) for rule in self.rules[direction]] for direction in Direction
        )
        self._tables = tuple(
            [
                _OpTable(
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
        self._judges_subscriptions = any(
            rule.action.stage == Stage.PERMISSION and clause.ops >> Op.SUB & 1
            for rule, clauses in zip(self.rules[C2S], per_rule[C2S], strict=True)
            for clause in clauses
        )
        self.alters_delivery = any(self._may_alter(rule) for rule in rules)
        self._request_table = _OpTable(
            [(place, _request_clause(rule)) for place, rule in enumerate(self.requesting)]
        )
        self.traced = tuple(place for place, rule in enumerate(self.rules[C2S]) if rule.action.traced)
        filters = [rule.action for rule in rules if rule.action.filtered]
        self._filters: frozenset[object] = frozenset(filters)
        self._collisions = CollisionSet[object](
            (pattern, action) for action in filters for pattern in action.filtered
        )
        self._armed_cache: dict[bytes, frozenset[object]] = {}
        self._still_cache: dict[frozenset[object], frozenset[object]] = {}
        self._caches: tuple[dict[tuple[Op, bytes], tuple[int, ...]], ...] = ({}, {})
        self._request_cache: dict[bytes, frozenset[object]] = {}
        self.interest = (self._compile(C2S, per_rule[C2S]), self._compile(S2C, per_rule[S2C]))

    def candidates(self, direction: Direction, op: Op, subject: bytes) -> tuple[int, ...]:
        """Return the places of the rules that op and subject select, in order."""
        table = self._tables[direction][op]
        if table.simple:
            return table.any_subject
        cache = self._caches[direction]
        found = cache.get((op, subject))
        if found is None:
            found = store(cache, (op, subject), table.find(subject), len(subject))
        return found

    @property
    def filters(self) -> bool:
        """True if some rule filters deliveries once it is armed."""
        return bool(self._filters)

    @property
    def depends_on_subscriptions(self) -> bool:
        """True if these rules depend on which subscriptions are live."""
        return self.filters or self.rewriter is not None or self._judges_subscriptions

    def armed_by(self, subject: bytes) -> frozenset[object]:
        """Return the actions whose filters a SUB with a wildcard or a queue arms."""
        found = self._armed_cache.get(subject)
        if found is None:
            found = store(self._armed_cache, subject, self._collisions.find(subject), len(subject))
        return found

    def still(self, filters: frozenset[object]) -> frozenset[object]:
        """Return those of `filters` that belong to these rules."""
        if filters <= self._filters:
            return filters
        # Cached: connections share such sets, and a set computes its hash only once.
        return self._still_cache.get(filters) or store(self._still_cache, filters, filters & self._filters, 0)

    def refusing(self, subject: bytes, queue: bytes) -> list[Rule]:
        """Return the rules that refuse a subscription."""
        rules = self.rules[C2S]
        return [
            rules[place]
            for place in self.candidates(C2S, Op.SUB, subject)
            if rules[place].action.stage == Stage.PERMISSION
            and not rules[place].action.admits_sub(subject, queue)
        ]

    def tracing(self, subject: bytes) -> list[int]:
        """Return the places of the rules that may deny a trace to a subject."""
        rules = self.rules[C2S]
        return [place for place in self.candidates(C2S, Op.HPUB, subject) if rules[place].action.traced]

    def request_rules(self, subject: bytes) -> frozenset[object]:
        """Return the rules for which a PUB of this subject opens a request."""
        if not self.requesting:
            return frozenset()
        found = self._request_cache.get(subject)
        if found is None:
            waiting = frozenset[object](self.requesting[place] for place in self._request_table.find(subject))
            found = store(self._request_cache, subject, waiting, len(subject))
        return found

    def _may_alter(self, rule: Rule) -> bool:
        """Tell whether a rule may drop or add deliveries."""
        if not rule.action.alters_delivery:
            return False
        if rule.action.answers or _waits_for_answers(rule):
            return True
        return any(clause.ops & MSGS for clause in self._wants(rule, S2C))

    def _wants(self, rule: Rule, direction: Direction) -> list[Clause]:
        """Return the clauses of a rule for a direction, in the subjects that the rules see."""
        own = rule.action.clauses(rule.selector)
        if own is not None:
            return [clause for clause_direction, clause in own if clause_direction == direction]
        selector = rule.selector
        ops = selector.wants(direction)
        if not ops or _waits_for_answers(rule):
            return []
        if selector.subjects is None and not selector.unless:
            return [Clause(ops, rule.need)]
        if selector.side == "server" and self.rewriter is not None:
            return [Clause(ops, rule.need)]  # decided per frame, once the other subject is known
        return [Clause(ops, rule.need, selector.subjects, selector.unless)]

    def _compile(self, direction: Direction, found: list[list[Clause]]) -> Interest:
        clauses = [clause for group in found for clause in group]
        if direction == C2S:
            clauses += [_request_clause(rule) for rule in self.requesting]
        if direction == C2S and self.traced:
            clauses.append(Clause(op_mask(Op.HPUB), Need.HEADERS))
        if direction == C2S and (self.alters_delivery or self.filters):  # in shadow, filters are armed too
            clauses.append(Clause(op_mask(Op.SUB), Need.LINE))
        if self.rewriter is not None:
            need = max((clause.need for clause in clauses), default=Need.LINE)
            clauses += self.rewriter.clauses(direction, max(need, self.request_need))
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


def _waits_for_answers(rule: Rule) -> bool:
    return rule.selector.role is not None and rule.selector.role.requests is not None


def _request_clause(rule: Rule) -> Clause:
    """Return the clause of the PUBs whose answers a rule is about."""
    role, selector = rule.selector.role, rule.selector
    assert role is not None
    return Clause(PUBS, Need.LINE, selector.subjects or role.requests, (*selector.unless, *role.unless))
