"""The rule engine: it runs the rules of one connection over its frames.

`chain.py` has the theory of stages and verdicts.  Plain frames on which the decision is static are dealt with
in batches (`static_decisions.py`); all others take the general path, which is `RuleEngine.decide`: candidates
by op and subject, selector, gate, action, and the verdict goes into a `DecisionBuilder`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from natsproxy.events import PASSED, WOULD_DENY, Firing
from natsproxy.protocol.errors import INVALID_PUBLISH_SUBJECT, err_frame
from natsproxy.protocol.headers import HeaderBlock, trace_steps, traced_subject
from natsproxy.protocol.permissions import may_arm
from natsproxy.protocol.subjects import is_valid_publish
from natsproxy.rules.engine.decision_builder import DecisionBuilder
from natsproxy.rules.engine.link_rules import LinkRules
from natsproxy.rules.engine.rule_index import RuleIndex
from natsproxy.rules.engine.static_decisions import StaticDecisions
from natsproxy.rules.engine.subscription_check import LiveSubscriptions
from natsproxy.rules.interface import BatchFunction, Decision, LinkConditions, View
from natsproxy.rules.model.counts import Count
from natsproxy.rules.model.delivery_filter import DeliveryFilter
from natsproxy.rules.model.roles import PUBS, TRANSLATION, OpenRequests
from natsproxy.rules.model.rule import Hit, LinkAction, Rule, Stage
from natsproxy.rules.model.rule_state import RuleState, subject_text
from natsproxy.rules.model.seeded_random import Draws
from natsproxy.rules.model.selector import Selector
from natsproxy.rules.model.verdicts import ChangeHeaders, Close, Deny, StartCondition, Verdict
from natsproxy.rules.rewriting.frames import FrameRewriter, RewriteTrace
from natsproxy.wire.frames import Frame, Need
from natsproxy.wire.ops import C2S, S2C, Direction, Op

TOO_LARGE: Final = "is larger than the rule buffer"
"""The end of the detail of a firing whose rule could not see the whole of a frame."""
T = TypeVar("T")
Steps = Generator[None, None, T]


@dataclass(slots=True)
class _Context:
    """One frame with its direction and time (ns).

    raw: as the server sent it (s2c), where that differs.  headers: read once, for all rules.  traced: the
    subject of the trace that it asks for, None before anybody looked.  change: a change of headers that a
    rule asks for.
    """

    direction: Direction
    frame: Frame
    raw: Frame | None
    now: int
    headers: HeaderBlock | None = None
    traced: bytes | None = None
    change: tuple[RuleState, Hit, ChangeHeaders] | None = None
    made: DecisionBuilder | None = None

    def builder(self) -> DecisionBuilder:
        """Return the builder of this frame, for the first rule that acts."""
        if self.made is None:
            rewritten = self.raw is not None and self.raw is not self.frame
            self.made = DecisionBuilder(self.frame, self.direction, self.now, rewritten)
        return self.made


class _States(dict[Rule, RuleState]):
    """The states of the rules of one connection; each is made when it is first asked for.

    now: when the rules that have none yet came into force (ns).
    """

    def __init__(self, view: View, seed: int, deliveries: DeliveryFilter, now: int) -> None:
        super().__init__()
        self._view, self._seed, self._deliveries, self._now = view, seed, deliveries, now

    def __missing__(self, rule: Rule) -> RuleState:
        action, window, now = rule.action, rule.gate.between, self._now
        # A rule that may turn connections away counts from its own start: those have no age yet.
        opening = isinstance(action, LinkAction) and action.opening
        since = rule.shared.since if opening or (window is not None and window.since_rule) else now
        counts = (Count(since=since), Count(since=since))
        bound = action.bind(self._view, self._deliveries)
        made = self[rule] = RuleState(rule, bound, counts, self._view, self._seed)
        return made

    def rebind(self) -> None:
        """Rebind the states after more became known of the connection."""
        for state in self.values():
            state.rebind(self._view, self._seed)


class RuleEngine:
    """The rules of one connection at work; see `interface.ConnectionRules`.

    index: the rules.  check: that of the live subscriptions under them.
    """

    def __init__(
        self,
        seed: int,
        index: RuleIndex,
        view: View,
        before: RuleEngine | None,
        now: int,
        check: LiveSubscriptions,
    ) -> None:
        self.index = index
        self._view = view
        self.revoked = check.step()
        gone = {sid for sid, _ in self.revoked}
        self.resubscribed = [(sid, subject) for sid, subject in check.resubscribed if sid not in gone]
        self._deliveries: DeliveryFilter = before._deliveries if before is not None else DeliveryFilter()
        self._deliveries.keep(index.still)
        for filters in check.filters:
            self._deliveries.arm(filters)
        for sid, queue in check.queues.items():
            self._deliveries.subscribed(sid, queue)
        self._states = _States(view, seed, self._deliveries, now)
        if before is not None:
            self._states.update(
                (rule, state) for rule, state in before._states.items() if rule in index.present
            )
        self._states.rebind()
        for rule in index.timed:
            self._states[rule]  # its time counts from here
        if before is not None:
            for rule in before.index.keeping:
                if rule not in index.present:
                    rule.action.ended(view)
            for rule in index.keeping:
                if rule not in before.index.present:
                    rule.action.adopted(view)
        self._requests: OpenRequests = before._requests if before is not None else OpenRequests()
        self._requests.keep({*index.requesting, TRANSLATION})
        self._fired: list[Firing] = before.fired if before is not None else []
        self._forget_decisions()
        self._report_live(check, now)
        windows = before._links if before is not None else None
        self._links: LinkRules = LinkRules(index.links, self._states, self._fired, windows, now)
        self.interest = index.interest
        self.alters_delivery = index.alters_delivery
        self.connect_first = index.connect_first
        self.opening = self._links.opening

    def _report_live(self, check: LiveSubscriptions, now: int) -> None:
        """Report the live subscriptions that rules in shadow would end."""
        for rule, subject in check.shadowed:
            state = self._states[rule]
            text, op = subject_text(subject), Op.SUB.label
            self._fired.append(state.firing(C2S, now, state.count(C2S), text, label=WOULD_DENY, op=op))

    def rebind(self) -> None:
        """Keep the same rules after more became known of the connection."""
        self.revoked, self.resubscribed = [], []
        self._states.rebind()
        self._fired += self._static.take_firings()
        self._forget_decisions()  # they depend on the client's options

    def _forget_decisions(self) -> None:
        self._static = StaticDecisions(self.index, self._view, self._states, self._requests)
        self.batch_functions: tuple[BatchFunction | None, BatchFunction | None] = (
            self._static.function(C2S),
            self._static.function(S2C),
        )

    def matches(self, rule: Rule) -> int:
        """Return how many frames a rule has selected on this connection."""
        state = self._states.get(rule)
        return 0 if state is None else sum(count.matched for count in state.counts)

    # -- for the session

    def renamed(self, subject: bytes) -> bytes | None:
        """See `ConnectionRules`."""
        rewriter = self.index.rewriter
        found = rewriter.destination(subject) if rewriter is not None else None
        if isinstance(found, Rule):
            return None
        return subject if found is None else found.subject

    def decide(self, direction: Direction, frame: Frame, now: int) -> Decision | None:
        """Return the decision on a frame, None to pass it untouched."""
        steps = self.steps(direction, frame, now)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                decided: Decision | None = done.value
                return decided

    def steps(self, direction: Direction, frame: Frame, now: int) -> Steps[Decision | None]:
        """Make the decision on a frame in steps, between which other work may be done."""
        builder = yield from self._c2s(frame, now) if direction == C2S else self._s2c(frame, now)
        return None if builder is None else builder.decision()

    def _c2s(self, frame: Frame, now: int) -> Steps[DecisionBuilder | None]:
        index, rewriter = self.index, self.index.rewriter
        if frame.op == Op.SUB and self.alters_delivery:
            self._view.count_sid(frame.sid)
        if rewriter is not None or index.request_need:
            self._open_request(frame)
        builder = yield from self._evaluate(_Context(C2S, frame, None, now))
        if frame.op == Op.SUB and index.filters:
            self._subscribed(frame, passes=builder is None or not builder.over)
        if rewriter is None or (builder is not None and builder.over):
            return builder
        trace = RewriteTrace(self._states, C2S, frame, now)
        current, extra = (frame, ()) if builder is None else (builder.frame, builder.extra)
        result = rewriter.forward(current, extra, trace)
        if result is not None:
            builder = builder or DecisionBuilder(frame, C2S, now)
            builder.rewrite(result, trace.firings())
        return builder

    def _subscribed(self, frame: Frame, *, passes: bool) -> None:
        """Arm the filters of a SUB, whether the server gets it or not, and note its queue."""
        subject, queue = frame.subject, frame.queue
        if may_arm(subject, queue):
            filters = self.index.armed_by(subject)
            # A rule that refuses it is not armed, even where its gate lets it pass.
            if filters and (refusing := self.index.refusing(subject, queue)):
                filters -= {rule.action for rule in refusing}
            self._deliveries.arm(filters)
        sub = self._view.subs.get(frame.sid)
        if passes and sub is not None and sub.queue == queue:  # else the server ignores it: the sid is in use
            self._deliveries.subscribed(frame.sid, queue)

    def _s2c(self, frame: Frame, now: int) -> Steps[DecisionBuilder | None]:
        rewriter = self.index.rewriter
        if rewriter is None:
            return (yield from self._evaluate(_Context(S2C, frame, frame, now)))
        trace = RewriteTrace(self._states, S2C, frame, now)
        restored = rewriter.restore(frame, self._view, self._requests, trace)
        context = _Context(S2C, restored, frame, now)
        builder = yield from self._evaluate(context)
        if builder is None and restored is frame:
            return None
        builder = builder or context.builder()
        trace.subject = restored.subject
        builder.firings[:0] = trace.firings()  # s2c, rewriting comes first
        return builder

    @property
    def fired(self) -> list[Firing]:
        """Firings that belong to no frame, or to several; the session empties the list."""
        self._fired += self._static.take_firings()
        return self._fired

    def decisions(self, direction: Direction) -> object | None:
        """Return the static decisions, for the native plane; None where there are none."""
        return None if self.batch_functions[direction] is None else self._static.table(direction)

    def conditions(self, direction: Direction, now: int) -> tuple[LinkConditions | None, int | None]:
        """Return the conditions of the link now, and when to ask again (ns)."""
        return self._links.conditions(direction, now)

    def due(self, now: int) -> tuple[list[tuple[Direction, bytes]], Close | None, int | None]:
        """Return frames to inject now, a reason to close, and when to ask again (ns)."""
        return self._links.due(now)

    def close(self, now: int) -> None:
        """Forget the connection."""
        self._requests.close(self._view)
        for rule in self.index.keeping:
            rule.action.ended(self._view)
        self._states.clear()

    # -- the general path

    def _open_request(self, frame: Frame) -> None:
        """Open a request whose answers a rule, or the rewriting of API answers, waits for."""
        if not frame.reply or not PUBS >> frame.op & 1:
            return
        index, rewriter = self.index, self.index.rewriter
        waiters = index.request_rules(frame.subject)
        need = index.request_need if waiters else Need.NONE
        if rewriter is not None and rewriter.translates_answer(frame.subject):
            waiters, need = waiters | {TRANSLATION}, Need.PAYLOAD
        if waiters:
            upstream = frame.reply if rewriter is None else rewriter.reply(frame.reply)
            self._requests.open(frame.reply, upstream, waiters, need, self._view)

    def _evaluate(self, context: _Context) -> Steps[DecisionBuilder | None]:
        """Run the rules over a frame; None when none of them acted."""
        direction, frame = context.direction, context.frame
        rules, states = self.index.rules[direction], self._states
        places: Iterable[int] = self.index.candidates(direction, frame.op, frame.subject)
        if direction == C2S and frame.op == Op.HPUB and self.index.traced:
            places = yield from self._judging(context, places)
        # Rules about answers are found by the open request: the index knows no reply subjects.
        if direction == S2C and len(self._requests):
            waiters = self._requests.waiters(frame.subject)
            if waiters:
                waiting = {place for place, rule in enumerate(rules) if rule in waiters}
                places = sorted({*places, *waiting})
        builder: DecisionBuilder | None = None
        for place in places:
            state = states[rules[place]]
            if frame.header_size and state.dynamic:
                yield from self._read_headers(state.rule.selector, context)
            builder = self._run_rule(state, context, builder)
            if context.change is not None:
                builder = yield from self._change_headers(context, builder)
            if frame.header_size:  # with many headers, one rule's work is a step
                yield
        while builder is not None and not builder.write_headers():
            yield
        return builder

    def _judging(self, context: _Context, places: Iterable[int]) -> Steps[Iterable[int]]:
        """Add the rules that judge the subject of the trace that a publish asks for."""
        headers, found = context.frame.headers, None
        if len(headers) < context.frame.header_size:
            return sorted({*places, *self.index.traced})
        for found in trace_steps(headers):  # noqa: B007 (the last one is the answer)
            yield
        context.traced = traced_subject(headers, found)
        return sorted({*places, *self.index.tracing(context.traced)}) if context.traced else places

    def _read_headers(self, selector: Selector, context: _Context) -> Steps[None]:
        """Read the headers that a selector asks for, so that it finds the answers ready."""
        frame = context.frame
        if not selector.reads_headers or _available(frame) < Need.HEADERS:
            return
        block = context.headers
        if block is None:
            block = context.headers = HeaderBlock(frame.headers, self.index.header_names)
        while not block.read_on():
            yield
        for listed, every in ((selector.headers, False), (selector.without, True)):
            for name, glob in listed:
                while not block.look_on(name, glob, every=every):
                    yield

    def _run_rule(
        self, state: RuleState, context: _Context, builder: DecisionBuilder | None
    ) -> DecisionBuilder | None:
        """Run one rule over a frame that op and subject selected."""
        rule, action = state.rule, state.action
        direction, frame, now = context.direction, context.frame, context.now
        if state.need > Need.LINE and state.need > _available(frame):
            return self._too_large(state, context, builder)
        if not self._selects(state, context):
            return builder
        # A limit counts what would pass.
        if action.stage == Stage.LIMIT and builder is not None and builder.over:
            return builder
        # The gate of a permission rule counts the frames that it would deny, so its action runs first.
        action_first = action.stage in (Stage.PERMISSION, Stage.LIMIT)
        verdict: Verdict | None = None
        if action_first:
            uncounted = Draws(state.random(direction), 0)
            verdict = action.act(frame, Hit(direction, now, 0, uncounted, self._view, context.traced))
            if verdict is None:
                return builder
        m = state.count(direction)
        draws = state.draws(direction, frame, m)
        gate = rule.gate
        counted = rule.shared if gate.per_proxy else state.counts[direction]
        if state.gated and not gate.admits(counted, m, state.keys, now, draws.draw, direction.label):
            return builder
        # The match is counted above although an earlier rule has ended the frame: see `chain.py`.
        if builder is not None and builder.over:
            return builder
        hit = Hit(direction, now, m, draws, self._view)
        if not action_first:
            # Header changes are made only when a later rule looks at the frame: it may be large.
            current = frame if builder is None or action.edits else builder.frame
            if current.missing and action.need > _available(current):
                return self._too_large(state, context, builder)
            verdict = action.act(current, hit)
        if isinstance(verdict, ChangeHeaders):
            context.change = state, hit, verdict
            return builder
        return builder if verdict is None else self._add_verdict(state, context, hit, verdict, builder)

    def _change_headers(
        self, context: _Context, builder: DecisionBuilder | None
    ) -> Steps[DecisionBuilder | None]:
        """Add the change of headers that the last rule asked for, if it has an effect."""
        assert context.change is not None
        (state, hit, verdict), context.change = context.change, None
        made = builder or context.builder()
        while not made.read_headers(self.index.edited):
            yield
        if not made.change_headers(verdict):
            return builder
        self._add_firing(state, context, hit, made)
        return made

    def _selects(self, state: RuleState, context: _Context) -> bool:
        """Ask a selector for the conditions that op and subject do not decide."""
        selector = state.rule.selector
        if selector.side == "server" and not self._selects_on_server_side(state.rule, context):
            return False
        return not state.dynamic or selector.admits(context.frame, self._view, context.headers)

    def _selects_on_server_side(self, rule: Rule, context: _Context) -> bool:
        """Tell whether a `side = "server"` rule selects the server's subject of a frame."""
        rewriter: FrameRewriter | None = self.index.rewriter
        if rewriter is None:
            return True
        if context.direction == C2S:
            return rewriter.selects(rule.selector, rewriter.reply(context.frame.subject))
        return rewriter.selects(rule.selector, (context.raw or context.frame).subject)

    def _add_verdict(
        self,
        state: RuleState,
        context: _Context,
        hit: Hit,
        verdict: Verdict,
        builder: DecisionBuilder | None,
    ) -> DecisionBuilder:
        builder = builder or context.builder()
        if state.action.shadow:
            detail = verdict.cause if isinstance(verdict, Close) else state.action.detail()
            builder.firings.append(self._shadow(state, context, hit, detail))
            return builder
        if isinstance(verdict, Deny):
            builder.deny(self._denial(context.frame, verdict.text))
        else:
            if isinstance(verdict, StartCondition):
                self._links.start(state, hit)
            builder.apply(verdict)
        self._add_firing(state, context, hit, builder)
        return builder

    def _add_firing(self, state: RuleState, context: _Context, hit: Hit, builder: DecisionBuilder) -> None:
        """Add the firing of the last verdict."""
        delay = builder.last_delay
        subject = subject_text(context.frame.subject)
        op = context.frame.op.label
        detail = state.action.detail()
        firing = state.firing(context.direction, context.now, hit.m, subject, delay, detail=detail, op=op)
        builder.add_firing(firing)

    def _shadow(self, state: RuleState, context: _Context, hit: Hit, detail: str) -> Firing:
        """Return the firing of a rule in shadow, which does no more than report."""
        frame = context.frame
        subject, op = subject_text(frame.subject), frame.op.label
        return state.firing(
            context.direction, context.now, hit.m, subject, label=state.action.shadow, detail=detail, op=op
        )

    def _denial(self, frame: Frame, text: str) -> bytes:
        """Return the -ERR of a denial; the server checks a pedantic client's subject before permissions."""
        if self._view.connect.pedantic and PUBS >> frame.op & 1 and not is_valid_publish(frame.subject):
            return err_frame(INVALID_PUBLISH_SUBJECT.text) + err_frame(text)
        return err_frame(text)

    def _too_large(
        self, state: RuleState, context: _Context, builder: DecisionBuilder | None
    ) -> DecisionBuilder:
        """Decide on a frame larger than the rule buffer: a rule that guards closes, others let it pass."""
        builder = builder or context.builder()
        if builder.over:
            return builder
        label, size = PASSED, context.frame.wire_size
        if state.action.guards:
            label = "close"
            builder.apply(Close(f"rule {state.rule.name!r} cannot judge a frame of {size} bytes"))
        detail = f"a frame of {size} bytes {TOO_LARGE}"
        m = state.counts[context.direction].matched
        subject = subject_text(context.frame.subject)
        op = context.frame.op.label
        builder.add_firing(state.firing(context.direction, context.now, m, subject, 0, label, detail, op=op))
        return builder


def _available(frame: Frame) -> Need:
    """Return how much of a frame has arrived."""
    if not frame.missing:
        return Need.PAYLOAD
    return Need.HEADERS if frame.end - frame.line_end >= frame.header_size else Need.LINE
