"""The explanation of a frame: each rule's effect on it, in the order in which they run, without sending it.

`natsproxy rules explain` prints it.  It uses the index that traffic uses, so the two cannot disagree; gates
and probabilities are described in words only, since they depend on earlier frames.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from natsproxy.protocol.connect import Connect
from natsproxy.protocol.info import Info
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.engine.rule_index import RuleIndex
from natsproxy.rules.interface import Subscription
from natsproxy.rules.model.roles import PUBS
from natsproxy.rules.model.rule import Hit, Rule, Stage
from natsproxy.rules.model.seeded_random import Draws, SeededRandom
from natsproxy.rules.model.verdicts import Deny, Drop
from natsproxy.rules.rewriting.frames import FrameRewriter
from natsproxy.rules.rewriting.subjects import Refused
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame, Need
from natsproxy.wire.ops import C2S, S2C, Direction, Op
from natsproxy.wire.parse import frames

SERVER_ONLY: Final = (
    "A message that permissions keep from one queue member goes to another on nats-server; here it is lost.",
    "A request whose only receivers were filtered gets a 503 from nats-server; here it times out.",
    "nats-server's own 503 on a denied reply subject passes its filter; here it is filtered.",
    "nats-server opens a reply (allow_responses) as it delivers the request; here it opens as that passes.",
    "nats-server checks permissions after its account's mappings; natsproxy checks the client's subject.",
    "Rewriting is not isolation: inboxes and stream names are shared by all clients.",
)
"""Abilities of the server that the proxy lacks, and its behaviour instead."""


@dataclass
class SampleView:
    """A made-up connection to explain a frame for, as a `View`."""

    connect: Connect = field(default_factory=Connect)
    info: Info = field(default_factory=Info)
    address: str = "127.0.0.1:0"
    ordinal: int = 1
    conn: int = 0
    key: str = ""
    verbose: bool = False
    pedantic: bool = False
    subs: dict[bytes, Subscription] = field(default_factory=dict)
    subs_version: int = 0
    tls_subject: str = ""

    def count_sid(self, sid: bytes) -> None:
        """Count nothing."""

    def watch_subject(self, direction: Direction, subject: bytes, need: Need) -> None:
        """Watch nothing."""

    def unwatch_subject(self, direction: Direction, subject: bytes) -> None:
        """Watch nothing."""


class Explanation(NamedTuple):
    """One rule's effect: whether it acts, on which condition, and its result (or why it does not act)."""

    rule: Rule
    acts: bool
    condition: str
    result: str


def sample(op: Op, subject: bytes, *, queue: bytes = b"", reply: bytes = b"") -> tuple[Direction, Frame]:
    """Return a frame of an op and subject, and its direction."""
    made = {
        Op.PUB: lambda: encode.pub(subject, reply=reply),
        Op.HPUB: lambda: encode.pub(subject, reply=reply, headers=b"NATS/1.0\r\n\r\n"),
        Op.SUB: lambda: encode.sub(subject, b"1", queue),
        Op.MSG: lambda: encode.msg(subject, b"1", reply=reply),
        Op.HMSG: lambda: encode.msg(subject, b"1", reply=reply, headers=b"NATS/1.0\r\n\r\n"),
        Op.UNSUB: lambda: encode.unsub(b"1"),
        Op.INFO: lambda: encode.info(b"{}"),
        Op.CONNECT: lambda: encode.connect(b"{}"),
        Op.ERR: lambda: encode.err("Stale Connection"),
    }
    raw = made[op]() if op in made else op.label.encode() + b"\r\n"
    direction = S2C if op in (Op.MSG, Op.HMSG, Op.INFO, Op.ERR, Op.OK) else C2S
    return direction, next(frames(raw, direction))


def explain(chain: RuleChain, view: SampleView, direction: Direction, frame: Frame) -> list[Explanation]:
    """Return one explanation per rule, in the order of the stages."""
    applying = tuple(place for place, rule in enumerate(chain.rules) if rule.selector.peer.admits(view))
    index = chain.index(applying)
    found = [
        Explanation(rule, False, "", "it is about other connections")
        for place, rule in enumerate(chain.rules)
        if place not in applying
    ]
    chosen = {index.rules[direction][place] for place in index.candidates(direction, frame.op, frame.subject)}
    ordered = sorted(index.everything, key=lambda rule: rule.action.stage, reverse=direction == S2C)
    for rule in ordered:
        if rule.action.stage == Stage.REWRITE:
            continue
        found.append(_explain_rule(rule, rule in chosen, direction, frame, view))
    if index.rewriter is not None:
        rewriting = _rewriting(index, index.rewriter, direction, frame)
        found = [*rewriting, *found] if direction == S2C else [*found, *rewriting]
    return found


def _explain_rule(
    rule: Rule, chosen: bool, direction: Direction, frame: Frame, view: SampleView
) -> Explanation:
    if not rule.selector.ops:
        return Explanation(rule, True, rule.gate.describe(), f"changes the link: {rule.action.describe()}")
    if not chosen:
        return Explanation(rule, False, "", "other frames: " + rule.selector.describe())
    result = rule.action.describe()
    if rule.action.stage == Stage.PERMISSION:
        # A permission rule is asked: it draws no number, and its answer is the exact -ERR.
        hit = Hit(direction, 0, 1, Draws(SeededRandom(0, rule.name, view.key, direction), 1), view)
        verdict = rule.action.bind(view).act(frame, hit)
        if verdict is None:
            return Explanation(rule, False, "", "admits it")
        if isinstance(verdict, Deny):
            result = f"-ERR '{verdict.text}'"
        elif isinstance(verdict, Drop):
            result = "filtered: it is not delivered"
    condition = rule.gate.describe()
    if rule.selector.dynamic:
        condition += ", if the frame's queue, size, headers, status and role match"
    return Explanation(rule, True, condition, result)


def _rewriting(
    index: RuleIndex, rewriter: FrameRewriter, direction: Direction, frame: Frame
) -> list[Explanation]:
    rules = [rule for rule in index.everything if rule.action.stage == Stage.REWRITE]
    if not frame.subject:
        return []
    if direction == S2C:
        restored = rewriter.client_subject(frame.subject)
        result = "" if restored == frame.subject else f"the client sees {_text(restored)}"
        return [_explain_rewrite(rules, rewriter, frame, result)]
    if frame.op == Op.SUB:
        found = rewriter.subscribe(frame.subject)
        if isinstance(found, Refused):
            return [Explanation(found.rule, True, "always", "refused: the mapping covers it in part only")]
        result = "" if found is None else f"becomes {_text(found.subject)}"
        return [_explain_rewrite(rules, rewriter, frame, result)]
    if not PUBS >> frame.op & 1:
        return []
    return [_explain_rewrite(rules, rewriter, frame, _destinations(rewriter, frame.subject))]


def _explain_rewrite(rules: list[Rule], rewriter: FrameRewriter, frame: Frame, result: str) -> Explanation:
    rule = rewriter.deciding_rule(frame.subject) or rules[0]
    return Explanation(
        rule, bool(result), "always" if result else "", result or "leaves the subject as it is"
    )


def _destinations(rewriter: FrameRewriter, subject: bytes) -> str:
    rule = rewriter.deciding_rule(subject)
    if rule is None:
        return ""
    found = {rewriter.publish(subject, partial(_percent, percent)) for percent in range(100)}
    return "becomes " + " or ".join(
        sorted(_text(to.subject) if to.subject else "nothing (lost)" for to in found if to is not None)
    )


def _percent(percent: int, rule: Rule) -> float:
    return percent / 100


def _text(subject: bytes) -> str:
    return subject.decode("utf-8", "replace")
