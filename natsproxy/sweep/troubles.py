"""The troubles that a program saw in a run: they explain a publish that is repeated, late or missing.

A program that makes sure of its work repeats what may have been lost.  It has a reason to do so if one of
these came since the fault:
- a request of its own had no answer for longer than any in the baseline, or an error for an answer;
- a connection ended, or its client made a new one;
- a message of the application was withheld or held, in either direction: what it waits for does not come;
- a message came again: redelivered by JetStream, made by a rule, or sent again by its peer.

Core NATS delivers at most once.  A message of it that was withheld or held may be gone, and with it whatever
the program makes of it.  JetStream keeps its messages: one that the program has not acknowledged comes again,
perhaps in a later run, and until then what is made of it is not lost.  One that it has acknowledged, or that
needs no ack, is no such excuse, and neither are publishes that JetStream acknowledges, or its API.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection
from functools import cached_property
from itertools import accumulate
from typing import Final

from natsproxy.events import Firing
from natsproxy.protocol import headers
from natsproxy.protocol.jetstream import ACK_PREFIX, AckKind, ack_kind, api_error, parse_ack, publish_ack
from natsproxy.replay.diff.compared_frame import group_of
from natsproxy.sweep.traffic import Arrived, Got, RunTraffic, Touched, group, is_delivery
from natsproxy.wire.awaited import PULL
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, Op

_PUBLISHES: Final = (Op.PUB, Op.HPUB)
_API_ANSWER: Final = b'{"type":"io.nats.jetstream.api.'
_NEVER: Final = 1 << 62
_DONE: Final = (AckKind.ACK, AckKind.NEXT, AckKind.TERM)
Key = tuple[object, ...]


def is_request(frame: Frame) -> bool:
    """Tell whether a client frame asks for one answer; pulls may stay open for as long as they like."""
    return frame.op in _PUBLISHES and bool(frame.reply) and PULL not in frame.subject and not _is_next(frame)


def _is_next(frame: Frame) -> bool:
    return frame.subject.startswith(ACK_PREFIX) and ack_kind(frame.body) is AckKind.NEXT


def answers(run: RunTraffic) -> dict[bytes, Got]:
    """Return the first answer to each request, by its reply subject."""
    asked = {one.frame.reply for one in run.sent if is_request(one.frame)}
    found: dict[bytes, Got] = {}
    for got in run.got:
        if got.frame.subject in asked:
            found.setdefault(got.frame.subject, got)
    return found


def slowest_answer(run: RunTraffic) -> int:
    """Return the longest time from a request to its answer, in ns; 0 without requests."""
    found = answers(run)
    asked = [one for one in run.sent if is_request(one.frame) and one.frame.reply in found]
    return max((found[one.frame.reply].t - one.t for one in asked), default=0)


def stored(run: RunTraffic) -> set[str]:
    """Return the rows of the publishes that JetStream acknowledged."""
    found = answers(run)
    return {
        group(one)
        for one in run.published
        if one.frame.reply in found and _is_stored(found[one.frame.reply].frame)
    }


def _is_stored(frame: Frame) -> bool:
    ack = publish_ack(frame.body)
    return ack is not None and ack.error is None


def acked(run: RunTraffic) -> dict[bytes, set[int]]:
    """Return the sequences of the messages with which a program was done, by stream."""
    found: dict[bytes, set[int]] = {}
    for one in run.sent:
        ack = parse_ack(one.frame.subject)
        if ack is not None and ack_kind(one.frame.body) in _DONE:
            found.setdefault(ack.stream, set()).add(ack.stream_seq)
    return found


def inputs(run: RunTraffic) -> list[tuple[Key, Got]]:
    """Return the messages that clients got, other than statuses, each with what it has in every run."""
    return [(_key(one.frame), one) for one in run.got if not one.status]


def _key(frame: Frame) -> Key:
    ack = parse_ack(frame.reply)
    if ack is not None:
        return ack.stream, ack.stream_seq
    return group_of(frame.subject), frame.body


class Troubles:
    """The troubles of a run.

    baseline: a clean run.  at: when the fault took place, in ns; 0 for none.  stored: see `stored`.
    patience: ns that an answer took at most in clean runs.
    """

    def __init__(
        self,
        run: RunTraffic,
        baseline: RunTraffic,
        firings: Collection[Firing],
        stored: set[str],
        patience: int,
    ) -> None:
        self.at = min((one.t for one in firings), default=0)
        self._run = run
        self._baseline = baseline
        self._stored = stored
        self._patience = patience
        self._links = [one.t for one in firings if one.ordinal is None]

    # -- reasons to do something again

    def until(self, then: int) -> bool:
        """Tell whether anything was in trouble between the fault and a time."""
        return self.failed_until(then) or self.repeated_until(then) > 0

    def failed_until(self, then: int) -> bool:
        """Tell whether a connection was lost, or what a program waits for did not come, before a time.

        A client that has no connection keeps what it is to send, so two copies may go out at one time.
        """
        came = bisect_left(self.losses, self.at) < bisect_right(self.losses, then)
        failed = bisect_left(self._errors, self.at) < bisect_right(self._errors, then)
        return came or failed or self._missed <= then or self._unanswered(then)

    @cached_property
    def _missed(self) -> int:
        """When the first message of the application was withheld or held, in ns."""
        return min((one.t for one in self._run.touched if _is_of_application(one)), default=_NEVER)

    def _unanswered(self, then: int) -> bool:
        """Tell whether an answer has been late since the fault."""
        sent, known = self._open
        count = bisect_left(sent, then - self._patience)
        return count > 0 and known[count - 1] >= self.at

    @cached_property
    def losses(self) -> list[int]:
        """When connections ended, were made again after the fault, or were stopped by a rule; in ns."""
        ended = [one.t for one in self._run.lost if one.t >= self.at]
        made = [one.t for one in self._run.sent if one.frame.op == Op.CONNECT and one.t > self.at]
        return sorted([*ended, *made, *self._links])

    @cached_property
    def _open(self) -> tuple[list[int], list[int]]:
        """The requests whose answers came late or not at all, by time.

        Returned are when each was sent, and when the last answer to it or an earlier one came, in ns.
        """
        times = sorted(
            (one.t, self._answers[one.frame.reply].t if one.frame.reply in self._answers else _NEVER)
            for one in self._run.sent
            if is_request(one.frame)
        )
        late = [(sent, known) for sent, known in times if known - sent > self._patience]
        return [sent for sent, _ in late], list(accumulate((known for _, known in late), max))

    @cached_property
    def _errors(self) -> list[int]:
        return sorted(one.t for one in self._answers.values() if _is_error(one))

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
        return then < self._disorder

    @cached_property
    def _disorder(self) -> int:
        """When the first message came that the baseline has earlier, or not at all; in ns."""
        places = {key: n for n, (key, _) in enumerate(inputs(self._baseline))}
        last = -1
        for key, one in inputs(self._run):
            place = places.get(key, -1)
            if place < last or place < 0:
                return one.t
            last = place
        return _NEVER

    # -- reasons to do less

    def may_lack(self, one: Arrived) -> bool:
        """Tell whether messages that led to a publish of a clean run may be lost, as core NATS allows."""
        if self._published_core and self._first_input <= one.t:
            return True
        return (bool(self.losses) or self._got_core) and self._first_core_input <= one.t

    @cached_property
    def _first_input(self) -> int:
        return min((got.t for got in self._baseline.got if not got.status), default=_NEVER)

    @cached_property
    def _first_core_input(self) -> int:
        return min((got.t for got in self._baseline.got if is_core_message(got.frame)), default=_NEVER)

    @cached_property
    def _published_core(self) -> bool:
        """True if a rule took or held what core NATS would have carried to a stream or a subscriber."""
        return any(
            one.direction == C2S
            and (
                one.frame.op == Op.SUB
                or (one.frame.op in _PUBLISHES and not one.frame.subject.startswith(b"$JS."))
            )
            and group_of(one.frame.subject) not in self._stored
            for one in self._run.touched
        )

    @cached_property
    def _got_core(self) -> bool:
        return any(
            one.direction != C2S and one.frame.op in (Op.MSG, Op.HMSG) and is_core_message(one.frame)
            for one in self._run.touched
        )

    def may_have_lost(self, one: Arrived) -> bool:
        """Tell whether a publish of a clean run, which core NATS carries, may be lost with a connection."""
        return bool(self.losses) and group(one) not in self._stored


def is_core_message(frame: Frame) -> bool:
    """Tell whether core NATS carries a message, so that it comes at most once."""
    if is_delivery(frame):
        return False
    if frame.header_size and headers.parse(frame.headers).code:
        return False
    return publish_ack(frame.body) is None and not frame.body.startswith(_API_ANSWER)


def _is_of_application(one: Touched) -> bool:
    frame = one.frame
    if one.direction == C2S:
        return frame.op in _PUBLISHES and not frame.subject.startswith(b"$JS.")
    return frame.op in (Op.MSG, Op.HMSG) and not (frame.header_size and headers.parse(frame.headers).code)


def _is_error(one: Got) -> bool:
    code = one.status
    return bool(code and code >= b"400") or api_error(one.frame.body) is not None
