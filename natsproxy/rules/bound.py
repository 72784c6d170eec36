"""The rules of one connection at work: counts, dice, verdicts.  The theory stands in `chain.py`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from natsproxy.events import Firing
from natsproxy.protocol.errors import INVALID_PUBLISH_SUBJECT, err_frame, subscription_revoked
from natsproxy.protocol.subjects import is_valid_publish
from natsproxy.rules.base import Action, Hit, LinkAction, Rule, Stage
from natsproxy.rules.dice import Dice, Roll, Strands
from natsproxy.rules.draft import Draft
from natsproxy.rules.gate import Count
from natsproxy.rules.links import Links
from natsproxy.rules.plan import Plan
from natsproxy.rules.rewriting import Refused
from natsproxy.rules.roles import MSGS, PUBS, History
from natsproxy.rules.seam import Bound, Decision, Shape, Swift, View
from natsproxy.rules.shuttle import Shuttle
from natsproxy.rules.turn import Turn, text
from natsproxy.rules.verdicts import Bend, Close, Deny, Verdict
from natsproxy.wire.frames import Frame, Need
from natsproxy.wire.ops import C2S, S2C, Direction, Op


@dataclass(slots=True, eq=False)
class Instance:
    """One rule on one connection: its action, its counts and its dice by direction."""

    rule: Rule
    action: Action
    counts: tuple[Count, Count]
    key: str
    dice: list[Dice | None] = field(default_factory=lambda: [None, None])
    need: Need = Need.LINE
    dynamic: bool = False
    gated: bool = True
    strands: Strands | None = None

    def __post_init__(self) -> None:
        # What does not change is asked once: this is asked per frame.
        selector = self.rule.selector
        self.need, self.dynamic, self.gated = selector.need, selector.dynamic, not self.rule.gate.open
        if self.rule.gate.probability is not None or self.action.draws:
            self.strands = Strands()


class Case(NamedTuple):
    """One frame before the rules: as they see it, and as the server sent it (s2c, where that differs)."""

    direction: Direction
    frame: Frame
    raw: Frame | None
    now: int

    def draft(self) -> Draft:
        """Return a draft in which nothing has happened yet."""
        rewritten = self.raw is not None and self.raw is not self.frame
        return Draft(self.frame, self.direction, self.now, rewritten)


class RuleBound:
    """The rules of one connection; see `seam.Bound`."""

    def __init__(self, seed: int, plan: Plan, view: View, previous: Bound | None, now: int) -> None:
        before = previous if isinstance(previous, RuleBound) else None
        self.view = view
        self.conn = view.conn
        self.plan: Plan = plan
        self._seed = seed
        self._opened: int = before._opened if before is not None else now
        self._instances: dict[Rule, Instance] = {}
        self.revoked = [
            taken
            for rule in plan.everything
            if rule.gate.open and (before is None or rule not in before._instances)
            for taken in rule.action.revokes(view)
        ]
        self.remade = self._remade({sid for sid, _ in self.revoked})
        for rule in plan.everything:
            self._adopt(rule, before, now)
        self.by_place: tuple[Sequence[Instance], Sequence[Instance]] = (
            [self._instances[rule] for rule in plan.rules[C2S]],
            [self._instances[rule] for rule in plan.rules[S2C]],
        )
        self.history: History = before.history if before is not None else History()
        self._fired: list[Firing] = before.fired if before is not None else []
        self._shuttle = Shuttle(self)
        self.swift: tuple[Swift | None, Swift | None] = (self._shuttle.swift(C2S), self._shuttle.swift(S2C))
        self._links: Links = Links(self, before._links if before is not None else None, now)
        self.interest = plan.interest
        self.alters_delivery = plan.alters_delivery
        self.opening = self._links.opening

    def _remade(self, gone: set[bytes]) -> list[tuple[bytes, bytes]]:
        """Return the subscriptions that these rules send elsewhere; what cannot go whole is revoked."""
        found: list[tuple[bytes, bytes]] = []
        rewriter = self.plan.rewriter
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

    def _adopt(self, rule: Rule, before: RuleBound | None, now: int) -> None:
        found = before._instances.get(rule) if before is not None else None
        if found is None:
            if rule.shared.since < 0:
                rule.shared.since = now
            since = self._opened if isinstance(rule.action, LinkAction) and before is None else now
            counts = (Count(since=since), Count(since=since))
            found = Instance(rule, rule.action.bind(self.view), counts, self.view.key)
        elif found.key != self.view.key:
            found.key, found.dice = self.view.key, [None, None]
            found.strands = None if found.strands is None else Strands()
        self._instances[rule] = found

    # -- what the session asks

    def decide(self, direction: Direction, frame: Frame, now: int) -> Decision | None:
        """Return what becomes of a frame, None to pass it untouched."""
        rewriter = self.plan.rewriter
        if direction == C2S:
            if frame.op == Op.SUB and self.alters_delivery:
                self.view.count_sid(frame.sid)
            if rewriter is not None or self.plan.asked_need:
                self._ask(frame)
            draft = self._judge(C2S, frame, now)
            if rewriter is None or (draft is not None and draft.over):
                return draft.decision() if draft is not None else None
            turn = Turn(self, C2S, frame.subject, now)
            decision = rewriter.forward(frame, draft, turn)
            if decision is not None:
                decision.firings += turn.firings()
            return decision
        if rewriter is None:
            draft = self._judge(S2C, frame, now, frame)
            return draft.decision() if draft is not None else None
        turn = Turn(self, S2C, frame.subject, now)
        seen = rewriter.back(frame, self.view, self.history, turn)
        draft = self._judge(S2C, seen, now, frame)
        if draft is None and seen is frame:
            return None
        decision = draft.decision() if draft is not None else Decision(out=(seen.raw,), cause="rewrite")
        turn.subject = seen.subject
        decision.firings = turn.firings() + decision.firings
        return decision

    @property
    def fired(self) -> list[Firing]:
        """Firings that belong to no frame, or to several; the session takes them out."""
        self._fired += self._shuttle.collect()
        return self._fired

    def shape(self, direction: Direction, now: int) -> tuple[Shape | None, int | None]:
        """Return how the link is bent now, and when to ask again."""
        return self._links.shape(direction, now)

    def due(self, now: int) -> tuple[list[tuple[Direction, bytes]], Close | None, int | None]:
        """Return frames to inject now, a reason to close, and when to ask again."""
        return self._links.due(now)

    def close(self, now: int) -> None:
        """Forget the connection."""
        self.history.close(self.view)
        self._instances.clear()

    # -- how a frame is judged

    def _ask(self, frame: Frame) -> None:
        """Note a request whose answers a rule (or the rewriting of API answers) waits for."""
        if not frame.reply or not PUBS >> frame.op & 1:
            return
        plan, rewriter = self.plan, self.plan.rewriter
        waiters = plan.asking(frame.subject)
        need = plan.asked_need if waiters else Need.NONE
        if rewriter is not None and rewriter.answers(frame.subject):
            waiters, need = waiters | {rewriter}, Need.PAYLOAD
        if waiters:
            upstream = frame.reply if rewriter is None else rewriter.reply(frame.reply)
            self.history.ask(frame.reply, upstream, waiters, need, self.view)

    def _judge(self, direction: Direction, frame: Frame, now: int, raw: Frame | None = None) -> Draft | None:
        """Run the rules over a frame; None when none of them did anything."""
        plan = self.plan
        instances = self.by_place[direction]
        places: Iterable[int] = plan.candidates(direction, frame.op, frame.subject)
        if direction == S2C and len(self.history):
            waiting = self.history.waiting(frame.subject)
            if waiting:
                asked = {place for place, item in enumerate(instances) if item.rule in waiting}
                places = sorted({*places, *asked})
        case = Case(direction, frame, raw, now)
        draft: Draft | None = None
        for place in places:
            draft = self._apply(instances[place], case, draft)
        return draft

    def _apply(self, item: Instance, case: Case, draft: Draft | None) -> Draft | None:
        """Let one rule have its say on a frame that op and subject selected."""
        rule, action = item.rule, item.action
        direction, frame, _, now = case
        if item.need > Need.LINE and item.need > _there(frame):
            return self._too_large(item, case, draft)
        if not self._selects(item, case):
            return draft
        judges = action.stage == Stage.PERMISSION  # its gate counts what it would deny
        verdict: Verdict | None = None
        if judges:
            uncounted = Roll(self.dice(item, direction), 0)
            verdict = action.act(frame, Hit(direction, now, 0, uncounted, self.view))
            if verdict is None:
                return draft
        count = item.counts[direction]
        m = self._count(item, count)
        roll = self.roll(item, direction, frame, m)
        gate = rule.gate
        counted = rule.shared if gate.per_proxy else count
        if item.gated and not gate.admits(counted, m, item.key, now, roll.u, direction.label):
            return draft
        if draft is not None and draft.over:
            return draft
        hit = Hit(direction, now, m, roll, self.view)
        if not judges:
            current = frame if draft is None else draft.frame
            if current.missing and action.need > _there(current):
                return self._too_large(item, case, draft)
            verdict = action.act(current, hit)
        return draft if verdict is None else self._carry(item, case, hit, verdict, draft)

    def _selects(self, item: Instance, case: Case) -> bool:
        """Ask a selector what op and subject did not decide."""
        selector = item.rule.selector
        if selector.side == "server" and not self._on_server_side(item.rule, case):
            return False
        return not item.dynamic or selector.admits(case.frame, self.view)

    def _carry(self, item: Instance, case: Case, hit: Hit, verdict: Verdict, draft: Draft | None) -> Draft:
        """Add a verdict to the draft, and its firing."""
        draft = draft or case.draft()
        if isinstance(verdict, Bend):
            self._links.start(item, hit)
        elif isinstance(verdict, Deny):
            draft.answer = self._pedantic(case.frame) + err_frame(verdict.text)
        draft.apply(verdict)
        draft.fired(self.firing(item, case.direction, case.now, hit.m, case.frame, draft.last_delay))
        return draft

    def instance(self, rule: Rule) -> Instance:
        """Return a rule's instance on this connection."""
        return self._instances[rule]

    def match(self, item: Instance, direction: Direction, now: int) -> Hit:
        """Count a match and return it with its dice."""
        m = self._count(item, item.counts[direction])
        return Hit(direction, now, m, Roll(self.dice(item, direction), m), self.view)

    def count(self, item: Instance, direction: Direction) -> int:
        """Count a match and return its number."""
        return self._count(item, item.counts[direction])

    def _count(self, item: Instance, count: Count) -> int:
        count.matched += 1
        item.rule.shared.matched += 1
        return count.matched

    def dice(self, item: Instance, direction: Direction) -> Dice:
        """Return the dice of a rule on this connection and direction."""
        dice = item.dice[direction]
        if dice is None:
            dice = item.dice[direction] = Dice(self._seed, item.rule.name, item.key, direction)
        return dice

    def roll(self, item: Instance, direction: Direction, frame: Frame, m: int, count: int = 1) -> Roll:
        """Return the dice of one match: by its number, or by its strand where a server's order is chance.

        count: how many frames of one strand are counted, if this is the first of neighbours.
        """
        dice = self.dice(item, direction)
        if item.strands is None or not MSGS >> frame.op & 1:
            return Roll(dice, m)
        sub = self.view.subs.get(frame.sid)
        return item.strands.roll(dice, frame.subject, sub.subject if sub is not None else b"", count)

    def _on_server_side(self, rule: Rule, case: Case) -> bool:
        """Tell whether the server's subject of a frame is one that a `side = "server"` rule selects."""
        rewriter = self.plan.rewriter
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

    def _too_large(self, item: Instance, case: Case, draft: Draft | None) -> Draft:
        """A frame that is larger than the rule buffer: a denying rule closes, any other lets it pass."""
        draft = draft or case.draft()
        if draft.over:
            return draft
        label, size = "passed", case.frame.wire_size
        if item.action.guards:
            label = "close"
            draft.apply(Close(f"rule {item.rule.name!r} cannot judge a frame of {size} bytes"))
        detail = f"a frame of {size} bytes is larger than the rule buffer"
        matched = item.counts[case.direction].matched
        draft.fired(self.firing(item, case.direction, case.now, matched, case.frame, 0, label, detail))
        return draft

    def firing(
        self,
        item: Instance,
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
            now, self.view.conn, item.rule.name, item.rule.kind, direction.label, None, m,
            label or item.action.label or item.rule.kind, delay, item.key, subject, detail,
        )  # fmt: skip


def _there(frame: Frame) -> Need:
    """Return how much of a frame is here."""
    if not frame.missing:
        return Need.PAYLOAD
    return Need.HEADERS if frame.end - frame.line_end >= frame.header_size else Need.LINE
