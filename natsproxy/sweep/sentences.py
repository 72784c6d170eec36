"""The sentence of a finding in plain words, from its verdict, its fault, its place and the end of its run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from natsproxy.printable import printable
from natsproxy.rules.model.gate import ordinal
from natsproxy.sweep.traffic import RunTraffic
from natsproxy.sweep.troubles import answers, is_request
from natsproxy.sweep.values import Judgement, Place, ProgramRun, Trial, Verdict
from natsproxy.units import in_seconds
from natsproxy.wire.ops import KEEP_ALIVES

_FAULTS: Final = {
    "cut-head": "the connection is cut in the middle of the control line of {place}",
    "cut-payload": "the connection is cut in the middle of the payload of {place}",
    "cut": "the connection is cut at {place}",
    "reset-head": "the connection is reset in the middle of the control line of {place}",
    "reset-payload": "the connection is reset in the middle of the payload of {place}",
    "reset": "the connection is reset at {place}",
    "pause": "the link stops at {place}, and both ends stay connected",
    "drop": "{place} is lost",
    "late": "{place} comes {variant} late",
    "duplicate": "{place} comes twice",
    "overtake": "{place} is overtaken by the next one",
    "error": "the server answers {place} with an error ({variant})",
    "restart-lose": "the server starts again without its memory at {place}",
    "restart": "the server is restarted at {place}",
}
"""The words for a fault, by the beginning of its name; the first that fits counts."""
_OTHER: Final = "the fault {fault} acts at {place}"
_WHAT: Final = {
    "delivery": "delivery of {}",
    "redelivery": "redelivery of {}",
    "pull": "pull from {}",
    "api": "call {}",
    "api-reply": "answer to {}",
}


def sentence(trial: Trial, judgement: Judgement, run: ProgramRun, found: RunTraffic) -> str:
    """Return what happens, in a sentence.  found: the traffic of the run."""
    happens = _ENDS[judgement.verdict](judgement, run, found)
    return printable(f"After {fault_words(trial)}, {happens}.")


def fault_words(trial: Trial) -> str:
    """Return what a trial does, as a clause."""
    words = next((text for name, text in _FAULTS.items() if _is(trial.fault, name)), _OTHER)
    variant = trial.fault.partition("-")[2] or "some time"
    clause = words.format(place=place_words(trial.place), variant=variant, fault=trial.fault)
    return f"{clause}, in the recovery from {trial.after}" if trial.depth > 1 else clause


def _is(fault: str, name: str) -> bool:
    return fault == name or fault.startswith(f"{name}-")


def place_words(place: Place) -> str:
    """Return a place with its client: `the 3rd delivery of ORDERS/worker to client worker`."""
    position = place.position
    of = place.of or position.subject
    words = position.what.replace("-", " ") if position.what.islower() else position.what
    noun = (
        _WHAT[position.what].format(of)
        if position.what in _WHAT and of
        else words + (f" of {of}" if of else "")
    )
    key = position.connection
    client = (
        f"client {key.rpartition('/')[0]}" if "/" in key and not key.startswith("#") else f"connection {key}"
    )
    return f"the {ordinal(position.n)} {noun} {'from' if position.direction == 'c2s' else 'to'} {client}"


# -- the end of a run


def _wrong(judgement: Judgement, run: ProgramRun, found: RunTraffic) -> str:
    reasons = "; ".join(judgement.reasons)
    return f"the program ends as if all were well (exit code {run.code}), but not as in clean runs: {reasons}"


def _stuck(judgement: Judgement, run: ProgramRun, found: RunTraffic) -> str:
    connected = "stays connected" if run.open else "has no connection"
    does = ", ".join([connected, _afterwards(run, found), *_deaf(run)])
    return f"the program {does}, and does not end in {in_seconds(run.limit)}"


def _deaf(run: ProgramRun) -> Iterator[str]:
    """Yield what a client that is connected and takes nothing fails to do."""
    if any(one.alive is False for one in run.open):
        yield "answers no PING"
    if unread := sum(one.unread or 0 for one in run.open):
        yield f"leaves {_count(unread, 'byte')} unread"


def _afterwards(run: ProgramRun, found: RunTraffic) -> str:
    """Return what clients get and send after the fault."""
    at = min((one.t for one in run.firings if one.acted), default=0)
    got = Counter("heartbeat" if one.status == b"100" else "message" for one in found.got if one.t > at)
    sent = sum(one.t > at and one.frame.op not in KEEP_ALIVES for one in found.sent)
    answered = answers(found)
    waiting = sum(is_request(one.frame) and one.frame.reply not in answered for one in found.sent)
    if got["heartbeat"] and not got["message"]:
        gets = "gets heartbeats and never a message"
    else:
        gets = f"gets {_count(got['message'], 'message')}"
    sends = f"sends {_count(sent, 'frame')}" if sent else "sends nothing"
    waits = f", with {_count(waiting, 'request')} that got no answer" if waiting else ""
    return f"{gets} and {sends}{waits}"


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


_ENDS: Final = {Verdict.WRONG: _wrong, Verdict.HUNG: _stuck, Verdict.DEAF: _stuck}
