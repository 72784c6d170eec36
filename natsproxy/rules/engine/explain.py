"""The explanation of a frame: each rule's effect on it, in the order in which they run, without sending it.

`natsproxy rules explain` prints it.

Theory
1. It uses the index that traffic uses, so the two cannot disagree.
2. A rule does not act only if a known property of frame or connection contradicts it.  All others may act:
   what is open (an unknown header, an earlier publish, the state of a subscription) is a condition.
3. Gates are conditions in words only, since they depend on earlier frames.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.engine.explain_rewriting import explain_rewriting
from natsproxy.rules.engine.rule_index import RuleIndex
from natsproxy.rules.engine.sample import Explanation, Sample, SampleView, when
from natsproxy.rules.interface import Subscription
from natsproxy.rules.model.delivery_filter import DeliveryFilter
from natsproxy.rules.model.roles import MSGS
from natsproxy.rules.model.rule import Hit, LinkAction, Rule, Stage
from natsproxy.rules.model.seeded_random import Draws, SeededRandom
from natsproxy.rules.model.selector import ANYBODY, Selector
from natsproxy.rules.model.verdicts import Deny, Drop
from natsproxy.wire.frames import Need
from natsproxy.wire.ops import C2S, S2C, Op

SERVER_ONLY: Final = (
    "A message that permissions keep from one queue member goes to another on nats-server; here it is lost.",
    "A request whose only receivers were filtered gets a 503 from nats-server; here it times out.",
    "What permissions keep from a pull goes to the next pull on nats-server; here JetStream awaits its ack.",
    "nats-server's own 503 on a denied reply subject passes its filter; here it is filtered.",
    "nats-server opens a reply (allow_responses) as it delivers the request; here it opens as that passes.",
    "nats-server checks permissions after its account's mappings; natsproxy checks the client's subject.",
    "Rewriting is not isolation: inboxes and stream names are shared by all clients.",
)
"""Abilities of the server that the proxy lacks, and its behaviour instead."""
_HEADERS: Final = "it has headers"


def explain(chain: RuleChain, view: SampleView, sample: Sample) -> list[Explanation]:
    """Return one explanation per rule, in the order of the stages."""
    peers = {rule: view.conditions(rule.selector.peer) for rule in chain.rules}
    index = chain.index(
        tuple(
            place
            for place, rule in enumerate(chain.rules)
            if peers[rule] is not None and rule.selector.peer != ANYBODY
        )
    )
    found = [
        Explanation(rule, False, "", "it is about other connections")
        for rule, conditions in peers.items()
        if conditions is None
    ]
    subjects = _client_subjects(index, peers, sample)
    candidates = _candidates(index, subjects, sample)
    seen = replace(sample, frame=sample.frame._replace(subject=next(iter(subjects))))
    for rule in sorted(index.everything, key=lambda one: one.action.stage, reverse=sample.direction == S2C):
        if rule.action.stage != Stage.REWRITE:
            found.append(_explain_rule(rule, candidates.get(rule), peers[rule] or [], seen, view))
    rewriting = explain_rewriting(index, peers, sample)
    return [*rewriting, *found] if sample.direction == S2C else [*found, *rewriting]


def _candidates(index: RuleIndex, subjects: dict[bytes, str], sample: Sample) -> dict[Rule, list[str]]:
    """Return the rules that op and subject select, and the conditions on which they do."""
    direction, frame = sample.direction, sample.frame
    ops = {frame.op: ""} if sample.twin is None else {frame.op: "", sample.twin: _HEADERS}
    found: dict[Rule, list[str]] = {}
    by_place = index.rules[direction]
    for op, headers in ops.items():
        chosen = [
            {by_place[place] for place in index.candidates(direction, op, subject)} for subject in subjects
        ]
        for subject, rules in zip(subjects, chosen, strict=True):
            for rule in rules:
                open_subject = subjects[subject] if any(rule not in others for others in chosen) else ""
                found.setdefault(rule, [text for text in (headers, open_subject) if text])
    if direction == C2S:
        _add_judging(index, ops, found)
    if direction == S2C and (MSGS >> frame.op) & 1:
        for rule in index.requesting:
            answered = _answers(index, rule, sample)
            if answered is not None:
                found[rule] = answered
    return {rule: conditions for rule, conditions in found.items() if _on_its_side(index, rule, sample)}


def _add_judging(index: RuleIndex, ops: dict[Op, str], found: dict[Rule, list[str]]) -> None:
    """Add the permission rules that op and subject do not select: they admit the frame, or deny its trace."""
    for rule in index.rules[C2S]:
        if rule.action.stage == Stage.PERMISSION and rule not in found:
            if Op.SUB in ops:
                found[rule] = []
            elif Op.HPUB in ops and rule.action.traced:
                found[rule] = [text for text in (ops[Op.HPUB],) if text]


def _client_subjects(
    index: RuleIndex, peers: dict[Rule, list[str] | None], sample: Sample
) -> dict[bytes, str]:
    """Return the subjects that the rules may see, and the condition of each."""
    subject = sample.frame.subject
    undone = None
    if sample.direction == S2C and index.rewriter is not None and subject:
        undone = index.rewriter.undo(subject)
    if undone is None:
        return {subject: ""}
    if not peers[undone.rule]:
        return {undone.subject: ""}
    return {one: f"the client sees it as {one.decode(errors='replace')}" for one in (undone.subject, subject)}


def _answers(index: RuleIndex, rule: Rule, sample: Sample) -> list[str] | None:
    """Return the conditions on which a frame is an answer that a rule is about, None if it is none."""
    role, selector = rule.selector.role, rule.selector
    assert role is not None
    if not selector.ops & role.ops or (sample.role is not None and not sample.role.requests):
        return None
    if sample.request:
        return [] if rule in index.request_rules(sample.request) else None
    but = f", but not {_listed(selector.unless)}" if selector.unless else ""
    return [f"it answers a publish on {_listed(selector.subjects or role.requests or ())}{but}"]


def _on_its_side(index: RuleIndex, rule: Rule, sample: Sample) -> bool:
    """Tell whether a `side = "server"` rule selects the server's subject of the frame."""
    if rule.selector.side != "server" or index.rewriter is None:
        return True
    subject = sample.frame.subject
    return index.rewriter.selects(
        rule.selector, index.rewriter.reply(subject) if sample.direction == C2S else subject
    )


def _explain_rule(
    rule: Rule, chosen: list[str] | None, peer: list[str], sample: Sample, view: SampleView
) -> Explanation:
    selector, action = rule.selector, rule.action
    conditional = isinstance(action, LinkAction) and action.lasting
    lasting = conditional and sample.direction in selector.directions
    if not selector.ops:
        if conditional and not lasting:
            return Explanation(rule, False, "", "other frames: " + selector.describe())
        return Explanation(rule, True, when(rule, peer), f"changes the link: {action.describe()}")
    open_parts = None if chosen is None else _open_parts(selector, sample, view)
    if chosen is None or open_parts is None:
        if lasting:
            since = f"it comes after {selector.describe()}, while the rule is in force"
            return Explanation(
                rule, True, when(rule, [*peer, since]), f"changes the link: {action.describe()}"
            )
        return Explanation(rule, False, "", "other frames: " + selector.describe())
    if selector.headers and open_parts:
        chosen = [condition for condition in chosen if condition != _HEADERS]
    conditions = [*peer, *chosen, *open_parts]
    if action.stage == Stage.PERMISSION:
        return _explain_permission(rule, conditions, sample, view)
    return Explanation(rule, True, when(rule, conditions), action.describe())


def _open_parts(selector: Selector, sample: Sample, view: SampleView) -> list[str] | None:
    """Return the conditions on parts of the frame that are open, None where a known part contradicts."""
    found = []
    for part in selector.parts():
        role, admitted = part.role, part.admits(sample.frame, view)
        if role is not None and not role.on_subject(sample.frame.subject):
            return None
        if _decides(part, sample, admitted):
            if not admitted:
                return None
        elif role is not None:
            found.append(f"its role is {role.name}")
        else:
            found.append(f"it has {part.properties()}")
    return found


def _decides(part: Selector, sample: Sample, admitted: bool) -> bool:
    """Tell whether the known properties of a frame decide on one part of a selector."""
    role = part.role
    if role is None:
        named = ((part.queues, "queue"), (part.headers, "headers"), (part.statuses, "status"))
        return next((name for there, name in named if there), "size") in sample.known
    if sample.role is not None and sample.role.need > Need.LINE < role.need:
        return True  # statuses and bodies of roles exclude one another
    if role.need == Need.LINE:
        return role.patterns is not None or role.requests is not None or "reply" in sample.known
    if admitted and (sample.role is not None or (role.need == Need.HEADERS and "status" in sample.known)):
        return True
    return ("description" if role.need == Need.HEADERS else "body") in sample.known


def _explain_permission(rule: Rule, conditions: list[str], sample: Sample, view: SampleView) -> Explanation:
    """Ask a permission rule itself: it draws no number, and its answer is the exact -ERR."""
    direction, frame = sample.direction, sample.frame
    if direction == S2C:
        # The widest subscription: the filter of deliveries is at its strictest.
        view = replace(view, subs={frame.sid: Subscription(frame.sid, b">", certain=False)})
    hit = Hit(direction, 0, 1, Draws(SeededRandom(0, rule.name, view.key, direction), 1), view)
    deliveries = DeliveryFilter()
    deliveries.arm(frozenset([rule.action]))
    verdict = rule.action.bind(view, deliveries).act(frame, hit)
    if isinstance(verdict, Deny):
        return Explanation(rule, True, when(rule, conditions), f"-ERR '{verdict.text}'")
    if isinstance(verdict, Drop):
        conditions = [*conditions, "its subscription reaches further than the permissions"]
        return Explanation(rule, True, when(rule, conditions), "filtered: it is not delivered")
    if frame.op == Op.HPUB and "headers" not in sample.known:
        conditions = [*conditions, "its headers ask for a trace to a subject that is denied"]
        return Explanation(rule, True, when(rule, conditions), rule.action.describe())
    return Explanation(rule, False, "", "admits it")


def _listed(patterns: Iterable[bytes]) -> str:
    return ", ".join(pattern.decode(errors="replace") for pattern in patterns)
