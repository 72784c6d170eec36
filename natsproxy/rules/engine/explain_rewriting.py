"""The explanation of rewriting: the subject that a frame would get, and the rule that gives it.

Each rewrite rule is asked alone.  The first that covers the subject decides, unless it is about clients that
the question leaves open: then the rules behind it count too.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from natsproxy.protocol.jetstream import is_api
from natsproxy.rules.engine.rule_index import RuleIndex
from natsproxy.rules.engine.sample import Explanation, Sample, when
from natsproxy.rules.model.roles import MSGS, PUBS
from natsproxy.rules.model.rule import Rule
from natsproxy.rules.rewriting.frames import FrameRewriter
from natsproxy.rules.rewriting.subjects import Refused, Rewriting
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import S2C, Op

_NOT = "leaves it as it is"


def explain_rewriting(
    index: RuleIndex, peers: Mapping[Rule, list[str] | None], sample: Sample
) -> list[Explanation]:
    """Return one explanation per rewrite rule.  peers: the open conditions on the client, by rule."""
    found: list[Explanation] = []
    decided = False
    for rule in index.everything:
        if not isinstance(rule.action, Rewriting):
            continue
        peer = peers[rule] or []
        result = "" if decided else _result(rule, sample)
        elsewhere = [] if result else _elsewhere(rule.action, sample)
        if result:
            decided = not peer
            found.append(Explanation(rule, True, when(rule, peer), result))
        elif elsewhere:
            conditions = [*peer, f"the rule covers {' or '.join(elsewhere)}"]
            found.append(Explanation(rule, True, when(rule, conditions), "rewrites the subjects in it"))
        else:
            found.append(Explanation(rule, False, "", _NOT))
    return found


def _result(rule: Rule, sample: Sample) -> str:
    """Return what the subject of a frame becomes under one rule, empty where it stays."""
    rewriter, frame = FrameRewriter([rule]), sample.frame
    if not frame.subject:
        return ""
    if sample.direction == S2C:
        restored = rewriter.client_subject(frame.subject)
        return "" if restored == frame.subject else f"the client sees {_text(restored)}"
    if frame.op == Op.SUB:
        found = rewriter.subscribe(frame.subject)
        if isinstance(found, Refused):
            return "refused: the mapping covers it in part only"
        return "" if found is None else f"becomes {_text(found.subject)}"
    return _destinations(rewriter, frame) if PUBS >> frame.op & 1 else ""


def _destinations(rewriter: FrameRewriter, frame: Frame) -> str:
    if rewriter.deciding_rule(frame.subject) is None:
        return ""
    found = {rewriter.publish(frame.subject, partial(_percent, percent)) for percent in range(100)}
    return "becomes " + " or ".join(
        sorted(_text(to.subject) if to.subject else "nothing (lost)" for to in found if to is not None)
    )


def _percent(percent: int, rule: Rule) -> float:
    return percent / 100


def _elsewhere(action: Rewriting, sample: Sample) -> list[str]:
    """Return the other places of a frame whose subjects the rule may rewrite."""
    frame, ops = sample.frame, {sample.frame.op, sample.twin}
    message = (PUBS | MSGS) >> frame.op & 1
    places = (
        (message and action.replies and "reply" not in sample.known, "its reply subject"),
        (message and action.replies and frame.reply and "reply" in sample.known, _text(frame.reply)),
        (ops & {Op.HPUB, Op.HMSG} and "headers" not in sample.known, "a subject in its headers"),
        (message and action.jetstream and _is_api(sample), "a subject in its body"),
        (frame.op == Op.ERR, "the subject that it names"),
    )
    return [place for there, place in places if there] if action.two_way else []


def _is_api(sample: Sample) -> bool:
    """Tell whether a frame is, or may be, a JetStream API call or its answer."""
    return is_api(sample.frame.subject) or sample.direction == S2C


def _text(subject: bytes) -> str:
    return subject.decode("utf-8", "replace")
