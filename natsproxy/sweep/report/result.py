"""The result of a sweep, and its facts as JSON values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from natsproxy import __version__
from natsproxy.sweep.causes import Judged
from natsproxy.sweep.findings import Finding, is_among
from natsproxy.sweep.positions import client_of
from natsproxy.sweep.remarks import Remark, remarks
from natsproxy.sweep.values import Place, ProgramRun, Trial, Verdict


class PlaceClass(NamedTuple):
    """Places at which a program should do the same."""

    client: str
    direction: str
    what: str
    about: str
    state: str

    @property
    def text(self) -> str:
        """The class in words."""
        about = f" of {self.about}" if self.about else ""
        return f"{self.client} · {self.direction} {self.what}{about}" + (
            f", {self.state}" if self.state else ""
        )


def class_of(place: Place) -> PlaceClass:
    """Return the class of a place."""
    connection, direction, what, subject, _ = place.position
    return PlaceClass(client_of(connection), direction, what, place.of or subject, place.state)


@dataclass(frozen=True, slots=True)
class SweepResult:
    """A sweep that goes on, has ended, or was stopped.

    program: its command line.  world: a sentence about its servers.  baseline: the clean runs.  differs: what
    differs between them, a sentence each.  places: of the baseline.  trials: all that were chosen.  judged:
    those that were tried.  seconds: of the whole sweep.  patience: seconds that a run had at least.
    accepted: names of findings that are known.  stopped: why it ended early, a clause; "" if it did not.
    again: what shows a finding again, a command or a call, with `{number}` for its number.  running: it goes
    on.  seconds_left: in which it begins further trials, None for no limit.
    """

    program: str
    world: str
    baseline: Sequence[ProgramRun]
    differs: Sequence[str]
    places: Sequence[Place]
    trials: Sequence[Trial]
    judged: Sequence[Judged]
    seconds: float
    patience: float
    seed: int = 1
    accepted: Collection[str] = field(default_factory=tuple)
    stopped: str = ""
    again: str = ""
    running: bool = False
    seconds_left: float | None = None

    def again_for(self, number: int) -> str:
        """Return what shows the finding of a number again."""
        return self.again.replace("{number}", f"{number:02}", 1)

    @property
    def not_tried(self) -> int:
        """The number of trials that were chosen, and not tried."""
        return max(0, len(self.trials) - len(self.judged))

    @property
    def problems(self) -> Counter[str]:
        """The reasons why trials could not be run, each with the number of trials."""
        return Counter(one.run.problem for one in self.judged if one.run.problem)

    def remarks(self) -> list[Remark]:
        """Return what is to be said of the trials that passed."""
        return remarks(self.judged)

    def by_verdict(self) -> dict[str, int]:
        """Return the number of trials by verdict, all verdicts in their order."""
        counts = Counter(one.judgement.verdict for one in self.judged)
        return {verdict.value: counts[verdict] for verdict in Verdict}

    def facts(self, findings: Sequence[Finding]) -> dict[str, Any]:
        """Return the whole result as JSON values."""
        return {
            "natsproxy": __version__,
            "program": self.program,
            "world": self.world,
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "patience_seconds": self.patience,
            "running": self.running,
            "seconds_left": None if self.seconds_left is None else round(self.seconds_left, 1),
            "stopped": self.stopped,
            "baseline": {
                "runs": [_run_facts(run) for run in self.baseline],
                "differs": list(self.differs),
                "places": len(self.places),
                "classes": len(set(map(class_of, self.places))),
            },
            "trials": {
                "chosen": max(len(self.trials), len(self.judged)),
                "tried": len(self.judged),
                "not_tried": self.not_tried,
                "runs": sum(one.runs for one in self.judged),
                "by_verdict": self.by_verdict(),
                "problems": dict(self.problems),
            },
            "findings": [{**one.facts(), "accepted": is_among(one.name, self.accepted)} for one in findings],
            "remarks": [one.facts() for one in self.remarks()],
            "flaky": [_flaky(one) for one in self.judged if one.judgement.verdict is Verdict.FLAKY],
        }


def _run_facts(run: ProgramRun) -> dict[str, Any]:
    return {"code": run.code, "seconds": round(run.seconds, 3), "check_code": run.check_code}


def _flaky(one: Judged) -> dict[str, Any]:
    return {
        "fault": one.trial.fault,
        "position": one.trial.place.position._asdict(),
        "reasons": list(one.judgement.reasons),
    }
