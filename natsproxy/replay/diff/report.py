"""The report of a comparison: rows of counts and latencies, and the first frames that differ; values only.

Everything here is bounded, for captures of any size: rows (`ROWS`; later subjects count as one row), status
texts, and latencies (a sample of them, the same one every time).
"""

from __future__ import annotations

import random
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

ROWS: Final = 4096
OTHER: Final = "(other subjects)"
_SAMPLE: Final = 2048
_STATUSES: Final = 50


@dataclass(slots=True)
class Tally:
    """The counts of one side in a group.  latency: ns from requests to their first reply, a sample."""

    sent: int = 0
    received: int = 0
    subscribed: int = 0
    replies: int = 0
    errors: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    latency: array[int] = field(default_factory=lambda: array("q"))
    answered: int = 0

    def status(self, text: str) -> None:
        """Count a status."""
        known = text in self.statuses or len(self.statuses) < _STATUSES
        self.statuses[text if known else "other"] += 1

    def replied(self, latency: int | None, generator: random.Random) -> None:
        """Count a reply; latency: ns since its request, None where it was not the first reply."""
        self.replies += 1
        if latency is None:
            return
        self.answered += 1
        if len(self.latency) < _SAMPLE:
            self.latency.append(latency)
        # Reservoir sampling: each latency has the same chance to stay.
        elif (at := generator.randrange(self.answered)) < _SAMPLE:
            self.latency[at] = latency

    def percentile(self, share: float) -> int | None:
        """Return a latency percentile in ns, None without replies."""
        if not self.latency:
            return None
        ordered = sorted(self.latency)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    def facts(self) -> dict[str, Any]:
        """Return the tally as JSON values; latencies in microseconds."""
        known: dict[str, Any] = {
            "sent": self.sent,
            "received": self.received,
            "subscribed": self.subscribed,
            "replies": self.replies,
            "errors": self.errors,
            "statuses": dict(sorted(self.statuses.items())),
        }
        for name, share in (("p50_us", 0.5), ("p99_us", 0.99)):
            value = self.percentile(share)
            known[name] = None if value is None else round(value / 1000)
        return known


@dataclass(frozen=True, slots=True)
class DiffSample:
    """The first frames that only one side has.  field: what differs, "presence" if only one side has one.

    changed: the lines in which they differ, as diff shows them.
    """

    field: str
    recorded: str = ""
    observed: str = ""
    changed: tuple[str, ...] = ()


@dataclass(slots=True)
class DiffRow:
    """One group.  missing: frames that only the recording has.  added: frames that only the other one has."""

    group: str
    recorded: Tally = field(default_factory=Tally)
    observed: Tally = field(default_factory=Tally)
    missing: int = 0
    added: int = 0
    sample: DiffSample | None = None

    @property
    def same(self) -> bool:
        """True when both sides hold the same frames."""
        return not self.missing and not self.added

    def side(self, number: int) -> Tally:
        """Return the tally of the recording (0) or of the observed capture (1)."""
        return self.observed if number else self.recorded


@dataclass(slots=True)
class DiffReport:
    """The rows, the groups that differ first.

    gaps: the number of gaps in the recording and in the observed capture; they are not compared.  learned:
    the values that may differ, and do.  by_form: so many frames were out of order that some were compared by
    their form, without regard to which identifiers are equal.
    """

    rows: list[DiffRow]
    gaps: tuple[int, int] = (0, 0)
    learned: list[str] = field(default_factory=list)
    by_form: bool = False

    @property
    def same(self) -> bool:
        """True when both captures hold the same frames."""
        return all(row.same for row in self.rows)

    def facts(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "same": self.same,
            "recorded_gaps": self.gaps[0],
            "observed_gaps": self.gaps[1],
            "learned": self.learned,
            "by_form": self.by_form,
            "groups": [
                {
                    "subject": row.group,
                    "missing": row.missing,
                    "added": row.added,
                    "recorded": row.recorded.facts(),
                    "observed": row.observed.facts(),
                    "first_difference": None
                    if row.sample is None
                    else {
                        "field": row.sample.field,
                        "recorded": row.sample.recorded,
                        "observed": row.sample.observed,
                        "changed": list(row.sample.changed),
                    },
                }
                for row in self.rows
            ],
        }
