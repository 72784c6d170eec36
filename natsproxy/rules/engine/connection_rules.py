"""The rules of one connection at work: counts, dice, verdicts.  The theory stands in `chain.py`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from natsproxy.events import Firing
from natsproxy.protocol.errors import INVALID_PUBLISH_SUBJECT, err_frame, subscription_revoked
from natsproxy.protocol.subjects import is_valid_publish
from natsproxy.rules.engine.decision_builder import DecisionBuilder
from natsproxy.rules.engine.fastpath import FastPath
from natsproxy.rules.engine.link_conditions import LinkRules
from natsproxy.rules.engine.rule_index import RuleIndex
from natsproxy.rules.interface import ConnectionRules, Decision, FastPathFunction, LinkConditions, View
from natsproxy.rules.model.gate import Count
from natsproxy.rules.model.roles import MSGS, PUBS, History
from natsproxy.rules.model.rule import Action, Hit, LinkAction, Rule, Stage
from natsproxy.rules.model.seeded_random import Draws, SeededRandom, Substreams
from natsproxy.rules.model.verdicts import Close, Deny, StartCondition, Verdict
from natsproxy.rules.rewriting.subjects import Refused
from natsproxy.rules.rewriting.trace import RewriteTrace, text
from natsproxy.wire.frames import Frame, Need
from natsproxy.wire.ops import C2S, S2C, Direction, Op


@dataclass(slots=True, eq=False)
class RuleState:
    """One rule on one connection: its action, its counts and its dice by direction."""

    rule: Rule
    action: Action
    counts: tuple[Count, Count]
    key: str
    seeded: list[SeededRandom | None] = field(default_factory=lambda: [None, None])
    need: Need = Need.LINE
    dynamic: bool = False
    gated: bool = True
    substreams: Substreams | None = None

    def __post_init__(self) -> None:
        # What does not change is asked once: this is asked per frame.
        selector = self.rule.selector
        self.need, self.dynamic, self.gated = selector.need, selector.dynamic, not self.rule.gate.open
        if self.rule.gate.probability is not None or self.action.draws:
            self.substreams = Substreams()


class Case(NamedTuple):
    """One frame before the rules: as they see it, and as the server sent it (s2c, where that differs)."""

    direction: Direction
    frame: Frame
    raw: Frame | None
    now: int

    def builder(self) -> DecisionBuilder:
        """Return a draft in which nothing has happened yet."""
        rewritten = self.raw is not None and self.raw is not self.frame
        return DecisionBuilder(self.frame, self.direction, self.now, rewritten)


class ActiveRules:
    """The rules of one connection; see `seam.ConnectionRules`."""

    def __init__(
        self, seed: int, index: RuleIndex, view: View, previous: ConnectionRules | None, now: int
    ) -> None:
        before = previous if isinstance(previous, ActiveRules) else None
        self.view = view
        self.conn = view.conn
        self.index: RuleIndex = index
        self._seed = seed
        self._opened: int = before._opened if before is not None else now
        self._states: dict[Rule, RuleState] = {}
        self.revoked = [
            taken
            for rule in index.everything
            if rule.gate.open and (before is None or rule not in before._states)
            for taken in rule.action.revokes(view)
        ]
        self.resubscribed = self._resubscribed({sid for sid, _ in self.revoked})
        for rule in index.everything:
            self._adopt(rule, before, now)
        self.by_place: tuple[Sequence[RuleState], Sequence[RuleState]] = (
            [self._states[rule] for rule in index.rules[C2S]],
            [self._states[rule] for rule in index.rules[S2C]],
        )
        self.history: History = before.history if before is not None else History()
        self._fired: list[Firing] = before.fired if before is not None else []
        self._fastpath = FastPath(self)
        self.fastpath: tuple[FastPathFunction | None, FastPathFunction | None] = (
            self._fastpath.fastpath(C2S),
            self._fastpath.fastpath(S2C),
        )
        self._links: LinkRules = LinkRules(self, before._links if before is not None else None, now)
        self.interest = index.interest
        self.alters_delivery = index.alters_delivery
        self.opening = self._links.opening

    def _resubscribed(self, gone: set[bytes]) -> list[tuple[bytes, bytes]]:
        """Return the subscriptions that these rules send elsewhere; what cannot go whole is revoked."""
        found: list[tuple[bytes, bytes]] = []
        rewriter = self.index.rewriter
        for sub in self.view.subs.values():
            to = rewriter.subscribe(sub.subject) if rewriter is not None else None
            subject = sub.subject if to is None or isinstance(to, Refused) else to.subject
            if sub.sid in gone or (subject == sub.upstream and not isinstance(to, Refused)):
                continue
            if isinstance(to, Refused) or not sub.certain:
                self.revoked.append((sub.sid, subscription_revoked(sub.subject, sub.sid, sub.queue)))
            else:
                found.append((sub.sid, subject))
        return found

    def _adopt(self, rule: Rule, before: ActiveRules | None, now: int) -> None:
        found = before._states.get(rule) if before is not None else None
        if found is None:
            if rule.shared.since < 0:
                rule.shared.since = now
            since = self._opened if isinstance(rule.action, LinkAction) and before is None else now
            counts = (Count(since=since), Count(since=since))
            found = RuleState(rule, rule.action.bind(self.view), counts, self.view.key)
        elif found.key != self.view.key:
            found.key, found.seeded = self.view.key, [None, None]
            found.substreams = None if found.substreams is None else Substreams()
        self._states[rule] = found

    # -- what the session asks

    def decide(self, direction: Direction, frame: Frame, now: int) -> Decision | None:
        """Return what becomes of a frame, None to pass it untouched."""
        rewriter = self.index.rewriter
        if direction == C2S:
            if frame.op == Op.SUB and self.alters_delivery:
                self.view.count_sid(frame.sid)
            if rewriter is not None or self.index.asked_need:
                self._ask(frame)
            builder = self._judge(C2S, frame, now)
            if rewriter is None or (builder is not None and builder.over):
                return builder.decision() if builder is not None else None
            trace = RewriteTrace(self, C2S, frame.subject, now)
            decision = rewriter.forward(frame, builder, trace)
            if decision is not None:
                decision.firings += trace.firings()
            return decision
        if rewriter is None:
            builder = self._judge(S2C, frame, now, frame)
            return builder.decision() if builder is not None else None
        trace = RewriteTrace(self, S2C, frame.subject, now)
        seen = rewriter.back(frame, self.view, self.history, trace)
        builder = self._judge(S2C, seen, now, frame)
        if builder is None and seen is frame:
            return None
        decision = builder.decision() if builder is not None else Decision(out=(seen.raw,), cause="rewrite")
        trace.subject = seen.subject
        decision.firings = trace.firings() + decision.firings
        return decision

    @property
    def fired(self) -> list[Firing]:
        """Firings that belong to no frame, or to several; the session takes them out."""
        self._fired += self._fastpath.collect()
        return self._fired

    def conditions(self, direction: Direction, now: int) -> tuple[LinkConditions | None, int | None]:
        """Return how the link is bent now, and when to ask again."""
        return self._links.conditions(direction, now)

    def due(self, now: int) -> tuple[list[tuple[Direction, bytes]], Close | None, int | None]:
        """Return frames to inject now, a reason to close, and when to ask again."""
        return self._links.due(now)

    def close(self, now: int) -> None:
        """Forget the connection."""
        self.history.close(self.view)
        self._states.clear()

    # -- how a frame is judged

    def _ask(self, frame: Frame) -> None:
        """Note a request whose answers a rule (or the rewriting of API answers) waits for."""
        if not frame.reply or not PUBS >> frame.op & 1:
            return
        index, rewriter = self.index, self.index.rewriter
        waiters = index.asking(frame.subject)
        need = index.asked_need if waiters else Need.NONE
        if rewriter is not None and rewriter.answers(frame.subject):
            waiters, need = waiters | {rewriter}, Need.PAYLOAD
        if waiters:
            upstream = frame.reply if rewriter is None else rewriter.reply(frame.reply)
            self.history.ask(frame.reply, upstream, waiters, need, self.view)

    def _judge(
        self, direction: Direction, frame: Frame, now: int, raw: Frame | None = None
    ) -> DecisionBuilder | None:
        """Run the rules over a frame; None when none of them did anything."""
        index = self.index
        states = self.by_place[direction]
        places: Iterable[int] = index.candidates(direction, frame.op, frame.subject)
        if direction == S2C and len(self.history):
            waiting = self.history.waiting(frame.subject)
            if waiting:
                asked = {place for place, state in enumerate(states) if state.rule in waiting}
                places = sorted({*places, *asked})
        case = Case(direction, frame, raw, now)
        builder: DecisionBuilder | None = None
        for place in places:
            builder = self._apply(states[place], case, builder)
        return builder

    def _apply(self, state: RuleState, case: Case, builder: DecisionBuilder | None) -> DecisionBuilder | None:
        """Let one rule have its say on a frame that op and subject selected."""
        rule, action = state.rule, state.action
        direction, frame, _, now = case
        if state.need > Need.LINE and state.need > _there(frame):
            return self._too_large(state, case, builder)
        if not self._selects(state, case):
            return builder
        judges = action.stage == Stage.PERMISSION  # its gate counts what it would deny
        verdict: Verdict | None = None
        if judges:
            uncounted = Draws(self.seeded(state, direction), 0)
            verdict = action.act(frame, Hit(direction, now, 0, uncounted, self.view))
            if verdict is None:
                return builder
        count = state.counts[direction]
        m = self._count(state, count)
        draws = self.draws(state, direction, frame, m)
        gate = rule.gate
        counted = rule.shared if gate.per_proxy else count
        if state.gated and not gate.admits(counted, m, state.key, now, draws.u, direction.label):
            return builder
        if builder is not None and builder.over:
            return builder
        hit = Hit(direction, now, m, draws, self.view)
        if not judges:
            current = frame if builder is None else builder.frame
            if current.missing and action.need > _there(current):
                return self._too_large(state, case, builder)
            verdict = action.act(current, hit)
        return builder if verdict is None else self._carry(state, case, hit, verdict, builder)

    def _selects(self, state: RuleState, case: Case) -> bool:
        """Ask a selector what op and subject did not decide."""
        selector = state.rule.selector
        if selector.side == "server" and not self._on_server_side(state.rule, case):
            return False
        return not state.dynamic or selector.admits(case.frame, self.view)

    def _carry(
        self, state: RuleState, case: Case, hit: Hit, verdict: Verdict, builder: DecisionBuilder | None
    ) -> DecisionBuilder:
        """Add a verdict to the draft, and its firing."""
        builder = builder or case.builder()
        if isinstance(verdict, StartCondition):
            self._links.start(state, hit)
        elif isinstance(verdict, Deny):
            builder.answer = self._pedantic(case.frame) + err_frame(verdict.text)
        builder.apply(verdict)
        builder.fired(self.firing(state, case.direction, case.now, hit.m, case.frame, builder.last_delay))
        return builder

    def state(self, rule: Rule) -> RuleState:
        """Return a rule's instance on this connection."""
        return self._states[rule]

    def match(self, state: RuleState, direction: Direction, now: int) -> Hit:
        """Count a match and return it with its dice."""
        m = self._count(state, state.counts[direction])
        return Hit(direction, now, m, Draws(self.seeded(state, direction), m), self.view)

    def count(self, state: RuleState, direction: Direction) -> int:
        """Count a match and return its number."""
        return self._count(state, state.counts[direction])

    def _count(self, state: RuleState, count: Count) -> int:
        count.matched += 1
        state.rule.shared.matched += 1
        return count.matched

    def seeded(self, state: RuleState, direction: Direction) -> SeededRandom:
        """Return the dice of a rule on this connection and direction."""
        seeded = state.seeded[direction]
        if seeded is None:
            seeded = state.seeded[direction] = SeededRandom(self._seed, state.rule.name, state.key, direction)
        return seeded

    def draws(self, state: RuleState, direction: Direction, frame: Frame, m: int, count: int = 1) -> Draws:
        """Return the dice of one match: by its number, or by its strand where a server's order is chance.

        count: how many frames of one strand are counted, if this is the first of neighbours.
        """
        seeded = self.seeded(state, direction)
        if state.substreams is None or not MSGS >> frame.op & 1:
            return Draws(seeded, m)
        sub = self.view.subs.get(frame.sid)
        return state.substreams.draws(seeded, frame.subject, sub.subject if sub is not None else b"", count)

    def _on_server_side(self, rule: Rule, case: Case) -> bool:
        """Tell whether the server's subject of a frame is one that a `side = "server"` rule selects."""
        rewriter = self.index.rewriter
        if rewriter is None:
            return True
        if case.direction == C2S:
            return rewriter.selects(rule.selector, rewriter.reply(case.frame.subject))
        return rewriter.selects(rule.selector, (case.raw or case.frame).subject)

    def _pedantic(self, frame: Frame) -> bytes:
        """Return the -ERR that a pedantic client gets before a denial, as the server checks in that order."""
        if self.view.pedantic and PUBS >> frame.op & 1 and not is_valid_publish(frame.subject):
            return err_frame(INVALID_PUBLISH_SUBJECT.text)
        return b""

    def _too_large(self, state: RuleState, case: Case, builder: DecisionBuilder | None) -> DecisionBuilder:
        """A frame that is larger than the rule buffer: a denying rule closes, any other lets it pass."""
        builder = builder or case.builder()
        if builder.over:
            return builder
        label, size = "passed", case.frame.wire_size
        if state.action.guards:
            label = "close"
            builder.apply(Close(f"rule {state.rule.name!r} cannot judge a frame of {size} bytes"))
        detail = f"a frame of {size} bytes is larger than the rule buffer"
        matched = state.counts[case.direction].matched
        builder.fired(self.firing(state, case.direction, case.now, matched, case.frame, 0, label, detail))
        return builder

    def firing(
        self,
        state: RuleState,
        direction: Direction,
        now: int,
        m: int,
        frame: Frame | None,
        delay: int = 0,
        label: str = "",
        detail: str = "",
    ) -> Firing:
        """Return the event of one firing."""
        subject = "" if frame is None else text(frame.subject)
        return Firing(
            now,
            self.view.conn,
            state.rule.name,
            state.rule.kind,
            direction.label,
            None,
            m,
            label or state.action.label or state.rule.kind,
            delay,
            state.key,
            subject,
            detail,
        )


def _there(frame: Frame) -> Need:
    """Return how much of a frame is here."""
    if not frame.missing:
        return Need.PAYLOAD
    return Need.HEADERS if frame.end - frame.line_end >= frame.header_size else Need.LINE
