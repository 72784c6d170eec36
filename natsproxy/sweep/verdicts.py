"""The judge: what the clean runs have in common, and the verdict on each run beside them.

`Baseline.of(runs)`, then `judge(baseline, run, trial)`.  The first rule that fits decides.

1. The run itself failed (`Run.problem`), or no rule fired: not reached.  A program that does something else
   although no fault took place is flaky.
2. It did not end, in its time and what a busy machine took of that (`processes/starvation.py`): deaf, if a
   connection is open that has subscriptions, and the client does not answer our PING, or leaves bytes unread,
   or leaves messages without an ack though the baseline acked those of this stream.  Otherwise hung.
3. Another exit code than the baseline's: failed loudly.  The program knew.
4. The exit code as before, but the user's check says something else: wrong.
5. The exit code as before, but its publishes differ (`published.py` says what is compared): wrong.
   - Lost: a clean run published it and this one did not, or the fault took it, JetStream never acknowledged
     it, and the program did not send it again.  What core NATS carries comes at most once, so it is not
     lost where a connection was, nor is what a program makes of such a message, or of one of JetStream that
     it has not acknowledged yet (`troubles.py`), nor a question that the clean run asked again.
   - Twice, and no rule took one: unless the program had a reason to send it again (`troubles.py`), or
     JetStream drops the copy by its Nats-Msg-Id.  A message that came again explains one copy per subject.
     A program that sends something again and again until something happens does so by a timer, and may do it
     on a slow machine only: a copy is wrong where it follows at once.
   - Another one: a subject has messages which no clean run has, and nothing was in trouble, or others of it
     are lost; but for those that a clock sends.  One with an INFO of the server in its payload always is.
   - Out of order, on one subject and connection: unless the program had a reason to send something again,
     or its own messages came in another order.
   What comes twice or in another order before the fault is not due to it.
6. Otherwise passed.  Among the reasons is what is missing without being promised, and what streams hold twice
   or in another order by the acks of the server, since the program had a reason to send something again
   (`remarks.py`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Final

from natsproxy.events import Firing
from natsproxy.protocol import headers
from natsproxy.protocol.jetstream import parse_ack
from natsproxy.protocol.meaning import shown
from natsproxy.sweep import published, troubles
from natsproxy.sweep.published import Comparable, Pairs
from natsproxy.sweep.stored import stored_out_of_order, stored_twice, usual_copies
from natsproxy.sweep.traffic import Arrived, RunTraffic, group, traffic
from natsproxy.sweep.troubles import Troubles
from natsproxy.sweep.values import Judgement, OpenConnection, ProgramRun, Trial, Verdict
from natsproxy.units import MILLISECOND, in_seconds

TWICE: Final = "stored twice"
OUT_OF_ORDER: Final = "stored out of order"
SPARED: Final = "missing, which is not promised"
"""The reasons of a run that passed begin with one of these."""
_SLACK: Final = 50 * MILLISECOND
"""ns that an answer may take longer than in the baseline."""
_TIMER: Final = 10 * MILLISECOND
"""ns between two copies from which on the second one may be a retry by the program's own timer."""
_REGULAR: Final = 3
"""Messages from which on a subject can be one that a clock sends."""
_SIGNALS: Final = 128
_INFO: Final = b'INFO {"server_id":'
_SHOWN: Final = 60
_NAMES: Final = 3


@dataclass(slots=True)
class Baseline:
    """The clean runs of a program, and what they have in common.

    codes: exit codes.  first: the traffic of the first run, which others are compared with; published: its
    publishes.  comparable: see `published.py`.  check_code, check_output: of the user's check; None where
    there is none, or clean runs differ.  unordered: rows whose messages have no order.  by_clock: subjects
    of messages that a clock sends.  contents: the number of messages by subject and payload.  copies: how
    often one payload comes on one subject at most, by row.  stored: rows that JetStream acknowledges.
    acked: the number of messages with which the program was done, by stream.  slowest: ns that an answer
    took.  differs: a sentence for each thing in which the runs differ, and which is not compared.
    """

    runs: list[ProgramRun]
    codes: set[int | None]
    first: RunTraffic
    published: list[Arrived]
    comparable: Comparable
    check_code: int | None
    check_output: str | None
    unordered: set[str]
    by_clock: set[bytes]
    contents: Counter[tuple[bytes, bytes]]
    copies: dict[str, int]
    stored: set[str]
    acked: dict[bytes, int]
    slowest: int
    differs: list[str]

    @classmethod
    def of(cls, runs: Sequence[ProgramRun]) -> Baseline:
        """Return the baseline of one or more clean runs.  Raises CaptureError where one cannot be read."""
        histories = [traffic(run.capture) for run in runs]
        publishes = [one.published for one in histories]
        comparable = published.learn(publishes)
        check_codes, outputs = {run.check_code for run in runs}, {run.check_output for run in runs}
        return cls(
            runs=list(runs),
            codes={run.code for run in runs},
            first=histories[0],
            published=publishes[0],
            comparable=comparable,
            check_code=runs[0].check_code if len(check_codes) == 1 else None,
            check_output=runs[0].check_output if len(check_codes) == len(outputs) == 1 else None,
            unordered=set(_unordered(publishes, comparable)),
            by_clock=set(_sent_by_clock(publishes[0])),
            contents=Counter((one.frame.subject, one.frame.body) for one in publishes[0]),
            copies=usual_copies(publishes),
            stored=set().union(*map(troubles.stored, histories)),
            acked={stream: len(found) for stream, found in troubles.acked(histories[0]).items()},
            slowest=max(map(troubles.slowest_answer, histories)),
            differs=[*_differences(runs), *comparable.said],
        )


def _differences(runs: Sequence[ProgramRun]) -> Iterator[str]:
    """Yield what differs between clean runs, other than their publishes."""
    codes = {run.code for run in runs}
    if len(codes) > 1:
        texts = sorted("it did not end" if code is None else str(code) for code in codes)
        yield f"the exit code differs between clean runs: {', '.join(texts)}"
    if len({run.check_code for run in runs}) > 1:
        yield "the exit code of the check differs between clean runs"
    elif len({run.check_output for run in runs}) > 1:
        yield "the output of the check differs between clean runs"


def _unordered(publishes: Sequence[list[Arrived]], comparable: Comparable) -> Iterator[str]:
    """Yield the rows whose messages come in another order in a later run."""
    first = publishes[0]
    for other in publishes[1:]:
        pairs = published.pair(first, other, comparable)
        for number in published.out_of_order(pairs, first, other):
            yield group(other[number])


def judge(baseline: Baseline, run: ProgramRun, trial: Trial) -> Judgement:
    """Return the verdict on a run with a fault.  Raises CaptureError where its recording cannot be read."""
    if run.problem:
        return Judgement(Verdict.NOT_REACHED, (run.problem,))
    firings = fired(run, trial)
    found = _judged(baseline, run, firings)
    if firings:
        return found
    if found.verdict is Verdict.PASSED:
        return Judgement(Verdict.NOT_REACHED, ("the fault's place did not come",))
    why = f"no fault took place, and all the same the program {_DID[found.verdict]}"
    return Judgement(Verdict.FLAKY, (why, *found.reasons))


_DID: Final = {
    Verdict.FAILED_LOUDLY: "failed",
    Verdict.WRONG: "did something else than in its clean runs",
    Verdict.HUNG: "did not end",
    Verdict.DEAF: "did not end",
}


def fired(run: ProgramRun, trial: Trial) -> list[Firing]:
    """Return the firings that put a trial's fault in place; none where its place did not come."""
    acted = [one for one in run.firings if one.acted]
    named = trial.rules[0].get("name") if trial.rules else None
    return acted if named is None or any(one.rule == named for one in acted) else []


def _judged(baseline: Baseline, run: ProgramRun, firings: list[Firing]) -> Judgement:
    if run.code not in baseline.codes:
        if run.code is not None:
            return Judgement(Verdict.FAILED_LOUDLY, (_ended(run.code) + run.printed,))
        return _stuck(baseline, run, firings)
    checked = _checked(baseline, run)
    if checked:
        return Judgement(Verdict.WRONG, (checked,))
    wrong, remarks = _compared(baseline, traffic(run.capture), firings)
    return Judgement(Verdict.WRONG, wrong) if wrong else Judgement(Verdict.PASSED, remarks)


def _ended(code: int) -> str:
    if code > _SIGNALS:
        return f"signal {code - _SIGNALS} ended it"
    return f"it ended with exit code {code}"


def _checked(baseline: Baseline, run: ProgramRun) -> str:
    if baseline.check_code is None or run.check_code is None:
        return ""
    if run.check_code != baseline.check_code:
        return f"the check ended with {run.check_code}, after clean runs with {baseline.check_code}"
    if baseline.check_output is None:
        return ""
    lines = zip_longest(run.check_output.splitlines(), baseline.check_output.splitlines(), fillvalue="")
    differ = (
        f"the check says {_line(says)}, and after clean runs {_line(said)}"
        for says, said in lines
        if says != said
    )
    return next(differ, "")


def _line(text: str) -> str:
    return f'"{text[:_SHOWN]}"' if text.strip() else "nothing"


# -- it did not end


def _stuck(baseline: Baseline, run: ProgramRun, firings: list[Firing]) -> Judgement:
    found = traffic(run.capture)
    deaf = [why for one in run.open if one.subscriptions for why in _deaf(one)]
    unacked = _unacked(baseline, found, min((one.t for one in firings), default=0))
    if unacked and any(one.subscriptions for one in run.open):
        deaf.append(f"{_messages(unacked)} delivered after the fault, and never acknowledged")
    clean = in_seconds(_longest(baseline))
    limit = f"it did not end in {in_seconds(run.limit)}, and its clean runs took {clean}"
    return Judgement(Verdict.DEAF, (*deaf, limit)) if deaf else Judgement(Verdict.HUNG, (limit,))


def _longest(baseline: Baseline) -> float:
    return max(run.seconds for run in baseline.runs)


def _deaf(one: OpenConnection) -> Iterator[str]:
    live = f"{one.key} is connected with {one.subscriptions} live subscriptions"
    if one.alive is False:
        yield f"{live}, and does not answer a PING"
    if one.unread:
        yield f"{live}, and has left {one.unread} bytes unread"


def _unacked(baseline: Baseline, found: RunTraffic, at: int) -> int:
    """Return the number of messages behind the last ack of a stream that the baseline acks."""
    last: dict[bytes, int] = defaultdict(int)
    for sent in found.sent:
        ack = parse_ack(sent.frame.subject)
        if ack is not None:
            last[ack.stream] = sent.t
    count = 0
    for got in found.got:
        ack = parse_ack(got.frame.reply)
        if ack is not None and ack.stream in baseline.acked and got.t > max(at, last[ack.stream]):
            count += 1
    return count


# -- what it published


def _compared(
    baseline: Baseline, found: RunTraffic, firings: list[Firing]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return in which way the publishes are wrong, and the remarks on them."""
    ours, theirs = baseline.published, found.published
    pairs = published.pair(ours, theirs, baseline.comparable)
    seen = Troubles(found, baseline.first, firings, baseline.stored, baseline.slowest + _SLACK)
    lost, spared = _lost(baseline, found, pairs, seen)
    wrong = (
        _told("lost", (ours[n] for n in lost)),
        _told("with the server's INFO in it", _torn(baseline, theirs)),
        *_extra(baseline, theirs, pairs, seen, {group(ours[n]) for n in lost}),
        _out_of_order(baseline, theirs, pairs, seen),
    )
    remarks = (
        _told(TWICE, _stored_twice(baseline, found, seen)),
        _told(OUT_OF_ORDER, _stored_out_of_order(baseline, found, pairs, seen)),
        _told(SPARED, (ours[n] for n in spared)),
    )
    return tuple(filter(None, wrong)), tuple(filter(None, remarks))


def _lost(baseline: Baseline, found: RunTraffic, pairs: Pairs, seen: Troubles) -> tuple[list[int], list[int]]:
    """Return the baseline's publishes that are lost, and those that are missing without a promise."""
    ours, theirs = baseline.published, found.published
    missing = [
        mine
        for its, mine in pairs.partner.items()
        if not theirs[its].passed and group(theirs[its]) in baseline.stored
    ]
    spared, undone = [], _undone(baseline, found)
    asked = {published.content(one.frame) for one in theirs if one.frame.reply}
    for number in pairs.missing:
        one = ours[number]
        if one.frame.reply and group(one) not in baseline.stored and published.content(one.frame) in asked:
            continue  # the clean run asked again, as its answer came late
        if seen.may_lack(one) or seen.may_have_lost(one):
            spared.append(number)
        elif undone[group(one)] > 0:
            undone[group(one)] -= 1
            spared.append(number)
        else:
            missing.append(number)
    return sorted(missing), spared


def _torn(baseline: Baseline, theirs: list[Arrived]) -> Iterator[Arrived]:
    """Yield the messages with bytes that a client must not give to its application."""
    if not any(_INFO in one.frame.body for one in baseline.published):
        yield from (one for one in theirs if _INFO in one.frame.body)


def _undone(baseline: Baseline, found: RunTraffic) -> Counter[str]:
    """Return the number of messages by row that may still be made of what is not acknowledged."""
    done = troubles.acked(found)
    open_ = sum(max(0, count - len(done.get(stream, ()))) for stream, count in baseline.acked.items())
    acked = sum(baseline.acked.values()) or 1
    counts = published.counts(baseline.published)
    return Counter({row: open_ * -(-count // acked) for row, count in counts.items()})


def _extra(
    baseline: Baseline, theirs: list[Arrived], pairs: Pairs, seen: Troubles, short: set[str]
) -> Iterator[str]:
    """Yield what came twice, and what is in no clean run.  short: rows of which some are lost."""
    usual = published.counts(baseline.published)
    explained: Counter[str] = Counter()
    twice, other = [], []
    for number, first in sorted(pairs.extra.items()):
        one = theirs[number]
        if one.t < seen.at or not one.passed or _by_clock(baseline, one):
            continue
        if first is not None:
            if not _is_dropped_copy(theirs[first], one) and not _explained(
                theirs[first], one, seen, explained
            ):
                twice.append(one)
        # On another subject than ever before, or beside all the usual ones, a program may say what failed.
        elif usual[group(one)] and (group(one) in short or not seen.until(one.t)):
            other.append(one)
    yield _told("twice", twice)
    yield _told("in no clean run", other)


def _explained(first: Arrived, one: Arrived, seen: Troubles, explained: Counter[str]) -> bool:
    """Tell whether the program had a reason to send a message again, or a timer of its own may have."""
    if abs(one.t - first.t) >= _TIMER or seen.failed_until(one.t):
        return True
    name = group(one)
    if explained[name] < seen.repeated_until(one.t):
        explained[name] += 1
        return True
    return False


def _is_dropped_copy(first: Arrived, again: Arrived) -> bool:
    ids = [headers.get(one.frame.headers, b"Nats-Msg-Id") for one in (first, again)]
    return ids[0] is not None and ids[0] == ids[1]


def _stored_twice(baseline: Baseline, found: RunTraffic, seen: Troubles) -> Iterator[Arrived]:
    copies = stored_twice(found, baseline.copies, baseline.by_clock)
    return (one for one in copies if one.t >= seen.at)


def _stored_out_of_order(
    baseline: Baseline, found: RunTraffic, pairs: Pairs, seen: Troubles
) -> Iterator[Arrived]:
    for one in stored_out_of_order(found, baseline.published, pairs):
        if _has_order(baseline, one) and one.t >= seen.at and seen.inputs_in_order(one.t):
            yield one


def _has_order(baseline: Baseline, one: Arrived) -> bool:
    return group(one) not in baseline.unordered and group(one) not in baseline.comparable.by_number


def _out_of_order(baseline: Baseline, theirs: list[Arrived], pairs: Pairs, seen: Troubles) -> str:
    wrong = [
        theirs[at]
        for at in published.out_of_order(pairs, baseline.published, theirs)
        if _has_order(baseline, theirs[at])
        and seen.at <= theirs[at].t
        and not seen.until(theirs[at].t)
        and seen.inputs_in_order(theirs[at].t)
    ]
    return _told("out of order", wrong)


# -- by the clock


def _sent_by_clock(publishes: list[Arrived]) -> Iterator[bytes]:
    """Yield the subjects whose messages come at regular times."""
    times: dict[bytes, list[int]] = defaultdict(list)
    for one in publishes:
        times[one.frame.subject].append(one.t)
    for subject, all_ in times.items():
        gaps = sorted(b - a for a, b in pairwise(all_))
        if len(all_) >= _REGULAR and gaps[0] > 5 * MILLISECOND and gaps[-1] < 2 * gaps[0]:
            yield subject


def _by_clock(baseline: Baseline, one: Arrived) -> bool:
    """Tell whether a message is one more of those that a clock sends: not a copy of one that comes once."""
    frame = one.frame
    return frame.subject in baseline.by_clock and baseline.contents[frame.subject, frame.body] != 1


# -- words


def _messages(count: int) -> str:
    return "1 message was" if count == 1 else f"{count} messages were"


def _told(what: str, publishes: Iterable[Arrived]) -> str:
    """Return a sentence about publishes: their number, subjects and first payload; "" for none."""
    found = list(publishes)
    if not found:
        return ""
    names = sorted({group(one) for one in found})
    subjects = ", ".join(names[:_NAMES]) + (" …" if len(names) > _NAMES else "")
    count = "1 message" if len(found) == 1 else f"{len(found)} messages"
    body = shown(found[0].frame.body[:_SHOWN])
    return f"{what}: {count} of {subjects}{', the first' if len(found) > 1 else ''}: {body}"
