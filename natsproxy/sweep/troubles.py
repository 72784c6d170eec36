"""The troubles that a program saw in a run: they explain a publish that is repeated, late or missing.

A program that works at least once repeats what it is not sure of.  It has a reason to where, since the first
copy, one of these came:
- a request of its own had no answer for longer than any in the baseline, or an error for an answer;
- a connection ended, or its client made a new one;
- a message of the application was withheld or held, in either direction: what it waits for does not come;
- a message came again: redelivered by JetStream, made by a rule, or sent again by its peer.

Core NATS delivers at most once.  A message of it that was withheld or held may be gone, and with it whatever
the program makes of it.  JetStream keeps its messages and delivers them again: they are no such excuse, and
neither are publishes that it acknowledges, or its API.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection
from functools import cached_property
from typing import Final

from natsproxy.events import Firing
from natsproxy.protocol import headers
from natsproxy.protocol.jetstream import ACK_PREFIX, AckKind, ack_kind, api_error, parse_ack, publish_ack
from natsproxy.replay.diff.compared_frame import group_of
from natsproxy.sweep.history import Got, History, Sent, Touched, group, is_delivery
from natsproxy.wire.awaited import PULL
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, Op

_PUBLISHES: Final = (Op.PUB, Op.HPUB)
_API_ANSWER: Final = b'{"type":"io.nats.jetstream.api.'
_NEVER: Final = 1 << 62
Key = tuple[object, ...]


def is_request(frame: Frame) -> bool:
    """Tell whether a client frame asks for one answer; pulls may stay open for as long as they like."""
    return frame.op in _PUBLISHES and bool(frame.reply) and PULL not in frame.subject and not _is_next(frame)


def _is_next(frame: Frame) -> bool:
    return frame.subject.startswith(ACK_PREFIX) and ack_kind(frame.body) is AckKind.NEXT


def answers(history: History) -> dict[bytes, Got]:
    """Return the first answer to each request, by its reply subject."""
    asked = {one.frame.reply for one in history.sent if is_request(one.frame)}
    found: dict[bytes, Got] = {}
    for got in history.got:
        if got.frame.subject in asked:
            found.setdefault(got.frame.subject, got)
    return found


def slowest_answer(history: History) -> int:
    """Return the longest time from a request to its answer, in ns; 0 without requests."""
    found = answers(history)
    asked = [one for one in history.sent if is_request(one.frame) and one.frame.reply in found]
    return max((found[one.frame.reply].t - one.t for one in asked), default=0)


def stored(history: History) -> set[str]:
    """Return the rows of the publishes that JetStream acknowledged."""
    found = answers(history)
    return {
        group(one)
        for one in history.published
        if one.frame.reply in found and _is_stored(found[one.frame.reply].frame)
    }


def _is_stored(frame: Frame) -> bool:
    ack = publish_ack(frame.body)
    return ack is not None and ack.error is None


def inputs(history: History) -> list[tuple[Key, Got]]:
    """Return the messages that clients got, other than statuses, each with what it has in every run."""
    return [(_key(one.frame), one) for one in history.got if not one.status]


def _key(frame: Frame) -> Key:
    ack = parse_ack(frame.reply)
    if ack is not None:
        return ack.stream, ack.stream_seq
    return group_of(frame.subject), frame.body


class Troubles:
    """The troubles of a run.

    baseline: a clean run.  at: when the fault took place, in ns.  stored: see `stored`.  patience: ns that an
    answer took at most in clean runs.
    """

    def __init__(
        self, run: History, baseline: History, firings: Collection[Firing], stored: set[str], patience: int
    ) -> None:
        self.at = min((one.t for one in firings), default=_NEVER)
        self._run = run
        self._baseline = baseline
        self._stored = stored
        self._patience = patience
        self._links = [one.t for one in firings if one.ordinal is None]

    # -- reasons to do something again

    def between(self, first: int, then: int) -> bool:
        """Tell whether anything was in trouble between two times."""
        return self.failed_between(first, then) or self.repeated_until(then) > 0

    def failed_between(self, first: int, then: int) -> bool:
        """Tell whether, between two times, a connection was lost or what a program waits for did not come."""
        return self._lost(first, then) or self._unanswered(first, then) or self._missed(then)

    def _missed(self, then: int) -> bool:
        return any(one.t <= then and _is_of_application(one) for one in self._run.touched)

    def _lost(self, first: int, then: int) -> bool:
        return any(first <= t <= then for t in self.losses)

    @cached_property
    def losses(self) -> list[int]:
        """When connections ended, were made again after the fault, or were stopped by a rule; in ns."""
        ended = [one.t for one in self._run.lost if one.t >= self.at]
        made = [one.t for one in self._run.sent if one.frame.op == Op.CONNECT and one.t > self.at]
        return sorted([*ended, *made, *self._links])

    def _unanswered(self, first: int, then: int) -> bool:
        return any(sent + self._patience < then and first <= known for sent, known in self._open) or any(
            first <= t <= then for t in self._errors
        )

    @cached_property
    def _open(self) -> list[tuple[int, int]]:
        """The requests whose answers came late or not at all: when they were sent and answered."""
        times = (
            (one.t, self._answers[one.frame.reply].t if one.frame.reply in self._answers else _NEVER)
            for one in self._run.sent
            if is_request(one.frame)
        )
        return [(sent, known) for sent, known in times if known - sent > self._patience]

    @cached_property
    def _errors(self) -> list[int]:
        return [one.t for one in self._answers.values() if _is_error(one)]

    @cached_property
    def _answers(self) -> dict[bytes, Got]:
        return answers(self._run)

    @cached_property
    def repeats(self) -> list[int]:
        """When a message came again, in ns."""
        usual = Counter(key for key, _ in inputs(self._baseline))
        seen: Counter[Key] = Counter()
        found = []
        for key, one in inputs(self._run):
            seen[key] += 1
            ack = parse_ack(one.frame.reply)
            again = seen[key] > max(1, usual[key])
            if again or one.made or (ack is not None and ack.delivered > 1):
                found.append(one.t)
        return found

    def repeated_until(self, then: int) -> int:
        """Return the number of messages that came again until a time."""
        return bisect_right(self.repeats, then)

    def inputs_in_order(self, then: int) -> bool:
        """Tell whether the messages until a time came in the order of the baseline."""
        places = {key: n for n, (key, _) in enumerate(inputs(self._baseline))}
        came = [places.get(key, -1) for key, one in inputs(self._run) if one.t <= then]
        return -1 not in came and came == sorted(came)

    # -- reasons to do less

    def took_core_message(self) -> bool:
        """Tell whether a message that core NATS does not promise may be gone."""
        return bool(self.losses) or any(map(self._is_core, self._run.touched))

    def _is_core(self, one: Touched) -> bool:
        frame = one.frame
        if one.direction == C2S:
            if frame.op in _PUBLISHES:
                return not frame.subject.startswith(b"$JS.") and group_of(frame.subject) not in self._stored
            return frame.op == Op.SUB
        return frame.op in (Op.MSG, Op.HMSG) and is_core_message(frame)

    def may_have_lost(self, one: Sent) -> bool:
        """Tell whether a publish of a clean run, which core NATS carries, may be gone with a connection."""
        return bool(self.losses) and group(one) not in self._stored


def is_core_message(frame: Frame) -> bool:
    """Tell whether core NATS carries a message, so that it comes at most once."""
    if is_delivery(frame):
        return False
    if frame.header_size and headers.parse(frame.headers).code:
        return False
    return publish_ack(frame.body) is None and not frame.body.startswith(_API_ANSWER)


def got_core_before(history: History, t: int) -> bool:
    """Tell whether clients got a message of core NATS before a time."""
    return any(one.t <= t and is_core_message(one.frame) for one in history.got)


def _is_of_application(one: Touched) -> bool:
    frame = one.frame
    if one.direction == C2S:
        return frame.op in _PUBLISHES and not frame.subject.startswith(b"$JS.")
    return frame.op in (Op.MSG, Op.HMSG) and not (frame.header_size and headers.parse(frame.headers).code)


def _is_error(one: Got) -> bool:
    code = one.status
    return bool(code and code >= b"400") or api_error(one.frame.body) is not None
