"""Findings: the trials that fail for one cause, as one thing to mend.

`group(judged)` puts them together, `accept(findings, names)` tells the new ones from those that are known.
A file of accepted findings has a name on each line; `#` begins a comment.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any, Final

from natsproxy.errors import ConfigError
from natsproxy.sweep.causes import FailureCause, Judged, cause_of
from natsproxy.sweep.sentences import sentence
from natsproxy.sweep.traffic import traffic
from natsproxy.sweep.trial_facts import trial_facts
from natsproxy.sweep.values import Verdict

_SIMPLE: Final = ("drop", "cut", "late", "duplicate", "reset", "error", "pause", "overtake", "restart")
"""Kinds of faults, those first that are the easiest to think through."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Trials with one cause.

    number: from 1, in the order in which findings are shown.  least: the trial that reproduces it with the
    simplest fault at the earliest place.  members: all of them.  sentence: what happens, in plain words.
    """

    number: int
    cause: FailureCause
    least: Judged
    members: tuple[Judged, ...]
    sentence: str

    @property
    def name(self) -> str:
        """The stable name, as accepted findings have it."""
        return self.cause.name

    @property
    def title(self) -> str:
        """The number and the name: of its folder, and for `--only`."""
        return f"{self.number:02}-{self.name}"

    @property
    def rate(self) -> tuple[int, int]:
        """The number of runs of the least trial that failed like this, and of all of them."""
        return self.least.same, self.least.runs

    def facts(self) -> dict[str, Any]:
        """Return the finding as JSON values."""
        same, runs = self.rate
        return {
            "number": self.number,
            "name": self.name,
            "title": self.title,
            "sentence": self.sentence,
            "verdict": self.cause.verdict.value,
            "reasons": list(self.least.judgement.reasons),
            "stack": self.cause.place,
            "rate": {"failed": same, "runs": runs},
            "trials": len(self.members),
            "trial": trial_facts(self.least.trial),
        }


def group(judged: Iterable[Judged]) -> list[Finding]:
    """Return the findings among trials that were judged, the worst first.

    Raises CaptureError where the recording of a failed run cannot be read.
    """
    by_cause: defaultdict[FailureCause, list[Judged]] = defaultdict(list)
    for one in judged:
        if one.judgement.verdict.found:
            by_cause[one.cause or cause_of(one.trial, one.judgement, one.run)].append(one)
    least = {cause: min(members, key=simplicity) for cause, members in by_cause.items()}
    order = sorted(by_cause, key=lambda cause: (simplicity(least[cause]), cause.name))
    return [
        Finding(number, cause, least[cause], tuple(by_cause[cause]), _sentence(least[cause]))
        for number, cause in enumerate(order, 1)
    ]


def simplicity(one: Judged) -> tuple[Any, ...]:
    """Return what orders trials: those that failed every time, the simple faults, the early places."""
    trial = one.trial
    kind = trial.fault.partition("-")[0]
    simple = _SIMPLE.index(kind) if kind in _SIMPLE else len(_SIMPLE)
    return not one.confirmed, trial.depth, len(trial.rules), simple, trial.place.t, trial.fault


def _sentence(one: Judged) -> str:
    return sentence(one.trial, one.judgement, one.run, traffic(one.run.capture))


# -- accepted findings


def accept(findings: Sequence[Finding], names: Collection[str]) -> tuple[list[Finding], list[str]]:
    """Return the findings that are not accepted, and the accepted names that were not found."""
    found = {one.name for one in findings}
    new = [one for one in findings if not is_among(one.name, names)]
    return new, [name for name in names if not is_among(name, found)]


def is_among(name: str, names: Collection[str]) -> bool:
    """Tell whether a name is one of these; a program that never ends may be hung now and deaf later."""
    return name in names or any(
        name.startswith(f"{one}-") and f"{other}{name.removeprefix(one)}" in names
        for one, other in permutations((Verdict.HUNG.value, Verdict.DEAF.value))
    )


def read_accepted(path: Path) -> list[str]:
    """Return the names in a file of accepted findings.  Raises ConfigError where it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the accepted findings in {path} cannot be read: {error}") from None
    names = (line.partition("#")[0].strip() for line in text.splitlines())
    return list(dict.fromkeys(filter(None, names)))
