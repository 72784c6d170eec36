"""Two conversations side by side: what was recorded, what was observed.

Frames are compared as multisets per group (subject template, what an answer answers, or -ERR text): the
server's order across subscriptions and its choice of queue members are random, what is said is not.  Two
passes over the captures: the first counts what each says in canonical form (what both say cancels out), the
second fetches the first frames that the other side does not have.  Latency is shown, never judged.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from natsproxy.replay.canonical import PUBLISHED, Ignore, Said, difference, say
from natsproxy.replay.causes import Bounded
from natsproxy.replay.plan import Event, Step, events
from natsproxy.wire.ops import C2S, Op

_RESERVOIR: Final = 4096
_SHOWN: Final = 300


@dataclass(slots=True)
class Tally:
    """What one side said in a group.  latency: ns from requests to their first reply, a sample of them."""

    sent: int = 0
    received: int = 0
    subscribed: int = 0
    replies: int = 0
    errors: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    latency: list[int] = field(default_factory=list)

    def percentile(self, share: float) -> int | None:
        """Return a latency percentile in ns, None without replies."""
        if not self.latency:
            return None
        ordered = sorted(self.latency)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    def facts(self) -> dict[str, Any]:
        """Return it as JSON values; latencies in microseconds."""
        known: dict[str, Any] = {
            "sent": self.sent, "received": self.received, "subscribed": self.subscribed,
            "replies": self.replies, "errors": self.errors, "statuses": dict(sorted(self.statuses.items())),
        }  # fmt: skip
        for name, share in (("p50_us", 0.5), ("p99_us", 0.99)):
            value = self.percentile(share)
            known[name] = None if value is None else round(value / 1000)
        return known


@dataclass(slots=True)
class Sample:
    """The first frames that only one side has; field: what differs between the two of them."""

    field: str = ""
    recorded: str = ""
    observed: str = ""
    _ours: Said | None = None
    _theirs: Said | None = None


@dataclass(slots=True)
class Row:
    """One group.  missing: frames that only the recording has.  added: that only the other one has."""

    group: str
    recorded: Tally = field(default_factory=Tally)
    observed: Tally = field(default_factory=Tally)
    missing: int = 0
    added: int = 0
    sample: Sample | None = None

    @property
    def same(self) -> bool:
        """Whether both said the same."""
        return not self.missing and not self.added


@dataclass(slots=True)
class Report:
    """The rows, the groups that differ first."""

    rows: list[Row]

    @property
    def same(self) -> bool:
        """Whether both conversations said the same."""
        return all(row.same for row in self.rows)

    def facts(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "same": self.same,
            "groups": [
                {
                    "subject": row.group, "missing": row.missing, "added": row.added,
                    "recorded": row.recorded.facts(), "observed": row.observed.facts(),
                    "first_difference": None if row.sample is None else {
                        "field": row.sample.field, "recorded": row.sample.recorded,
                        "observed": row.sample.observed,
                    },
                }
                for row in self.rows
            ],
        }  # fmt: skip


def compare(recorded: Path | str, observed: Path | str, ignore: Ignore = Ignore()) -> Report:  # noqa: B008
    """Compare two captures.

    Raises CaptureError where one cannot be read.
    """
    rows: dict[str, Row] = {}
    balance: Counter[bytes] = Counter()
    groups: dict[bytes, str] = {}
    for side, path in enumerate((recorded, observed)):
        for said in _tallied(events(path), rows, side, ignore):
            digest = said.digest
            balance[digest] += -1 if side else 1
            if not balance[digest]:
                del balance[digest]
                groups.pop(digest, None)
            else:
                groups[digest] = said.group
    for digest, count in balance.items():
        row = rows[groups[digest]]
        if count > 0:
            row.missing += count
        else:
            row.added -= count
    if balance:
        _samples(rows, balance, (recorded, observed), ignore)
    return Report(sorted(rows.values(), key=lambda row: (row.same, row.group)))


class _Heard(NamedTuple):
    """A frame that counts.

    asked: the group of the request that it answers.  after: how long after it, in ns, for its first answer.
    """

    step: Step
    said: Said
    asked: str = ""
    after: int | None = None


def _heard(source: Iterator[Event], ignore: Ignore) -> Iterator[_Heard]:
    """Yield the frames that count; answers are grouped by what they answer, not by their inbox."""
    requests: Bounded[bytes, tuple[str, int | None]] = Bounded()
    for event in source:
        said = say(event.frame, event.direction, ignore) if isinstance(event, Step) else None
        if said is None or not isinstance(event, Step):
            continue
        frame = event.frame
        if event.direction == C2S:
            if frame.reply and frame.op in PUBLISHED:
                requests[frame.reply] = (said.group, event.t)
            asked = requests.get(frame.subject) if frame.op in PUBLISHED else None
        else:
            asked = requests.get(frame.subject) if frame.op != Op.ERR else None
        if asked is None:
            yield _Heard(event, said)
            continue
        group, since = asked
        said = replace(said, group=f"{group} (answer)")
        if event.direction == C2S or since is None:
            yield _Heard(event, said, group)
        else:
            requests[frame.subject] = (group, None)
            yield _Heard(event, said, group, event.t - since)


def _tallied(source: Iterator[Event], rows: dict[str, Row], side: int, ignore: Ignore) -> Iterator[Said]:
    dice = random.Random(0)  # noqa: S311 (a sample that is the same every time)
    for step, said, asked, after in _heard(source, ignore):
        tally = _row(rows, said.group, side)
        op = step.frame.op
        if op == Op.SUB:
            tally.subscribed += 1
        elif op in PUBLISHED:
            tally.sent += 1
        elif op == Op.ERR:
            tally.errors += 1
        else:
            tally.received += 1
            if said.status:
                tally.statuses[said.status] += 1
            if asked:
                _replied(_row(rows, asked, side), after, dice)
        yield said


def _row(rows: dict[str, Row], group: str, side: int) -> Tally:
    row = rows.get(group)
    if row is None:
        row = rows[group] = Row(group)
    return row.observed if side else row.recorded


def _replied(tally: Tally, latency: int | None, dice: random.Random) -> None:
    tally.replies += 1
    if latency is None:
        return
    if len(tally.latency) < _RESERVOIR:
        tally.latency.append(latency)
    else:
        at = dice.randrange(tally.replies)
        if at < _RESERVOIR:
            tally.latency[at] = latency


def _samples(
    rows: dict[str, Row], balance: Counter[bytes], paths: tuple[Path | str, Path | str], ignore: Ignore
) -> None:
    """Fetch the first frame of each side that the other one lacks, per group."""
    wanted: tuple[Callable[[int], bool], ...] = (lambda n: n > 0, lambda n: n < 0)
    for side, path in enumerate(paths):
        for event, said, _, _ in _heard(events(path), ignore):
            if not wanted[side](balance[said.digest]):
                continue
            row = rows[said.group]
            row.sample = row.sample or Sample()
            if side == 0 and row.sample._ours is None:
                row.sample._ours, row.sample.recorded = said, _shown(event)
            elif side == 1 and (row.sample._theirs is None or _nearer(row.sample, said)):
                row.sample._theirs, row.sample.observed = said, _shown(event)
    for row in rows.values():
        sample = row.sample
        if sample is not None:
            both = sample._ours is not None and sample._theirs is not None
            sample.field = difference(sample._ours, sample._theirs) if both else "presence"  # type: ignore[arg-type]


def _nearer(sample: Sample, said: Said) -> bool:
    """Tell whether `said` is a better partner for the recorded sample: of its kind, as the other is not."""
    ours, theirs = sample._ours, sample._theirs
    return ours is not None and theirs is not None and theirs.kind != ours.kind == said.kind


def _shown(step: Step) -> str:
    raw = step.frame.raw
    more = "" if len(raw) <= _SHOWN else f" ... {len(raw)} bytes"
    return raw[:_SHOWN].decode(errors="replace").rstrip("\r\n") + more
