"""A sweep with its folder, from the begin to the reports: what the command line and tests share.

`KeptSweep(world, program, options, out, ...)`, then its `sweep.run()`, then `finish()`, also where it was
stopped.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from natsproxy.errors import ConfigError, NatsproxyError
from natsproxy.sweep.faults import chosen
from natsproxy.sweep.findings import Finding, accept, group
from natsproxy.sweep.folder import PAGE, Folder
from natsproxy.sweep.programs import Program
from natsproxy.sweep.report.result import SweepResult
from natsproxy.sweep.sweeping import Sweep, SweepOptions
from natsproxy.sweep.worlds import World

_DECIDING: Final = ("check", "seed", "patience")
"""The options that decide what a trial says: a sweep is resumed with the same ones."""


class SweepFailure(AssertionError, NatsproxyError):
    """A sweep has findings; the message has the sentence and the folder of each."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The findings of a sweep, and where they are.

    findings: all, the worst first.  new: those that are not accepted.  gone: accepted names that were not
    found.  folder: of the results; each finding has one in it, named by its `title`.
    """

    result: SweepResult
    findings: list[Finding]
    new: list[Finding]
    gone: list[str]
    folder: Path

    def counts(self) -> str:
        """Return the number of trials by verdict, and what was not tried, in a line."""
        result = self.result
        counts = ", ".join(f"{count} {verdict}" for verdict, count in result.by_verdict().items() if count)
        stopped = f"; {result.stopped}: {result.not_tried} not tried" if result.stopped else ""
        return f"{len(result.judged)} tried: {counts or 'nothing'}{stopped}"

    @property
    def page(self) -> Path:
        """The report."""
        return self.folder / PAGE

    def complaint(self) -> str:
        """Return the new findings in words, with their folders and how to see them again; "" for none."""
        return "\n".join(line for one in self.new for line in self._told(one))

    def _told(self, finding: Finding) -> list[str]:
        same, runs = finding.rate
        return [
            f"{finding.sentence} ({same} of {runs} runs)",
            f"  {self.folder / finding.title}",
            f"  again: {self.result.again_for(finding.number)}",
        ]

    def check(self) -> None:
        """Raise SweepFailure where there are new findings."""
        complaint = self.complaint()
        if complaint:
            raise SweepFailure(complaint)


class KeptSweep:
    """A sweep and the folder of its results.

    out: the folder, made or emptied; with `resume` as an earlier sweep left it.  accepted: names of known
    findings.  Raises ConfigError for an unknown fault and for a folder that cannot be used.
    """

    def __init__(
        self,
        world: World,
        program: Program,
        options: SweepOptions,
        out: Path,
        *,
        accepted: Collection[str] = (),
        resume: bool = False,
    ) -> None:
        try:
            chosen(options.faults)
        except ValueError as error:
            raise ConfigError(f"faults: {error}") from None
        deciding = {name: getattr(options, name) for name in _DECIDING}
        facts = {"program": program.line, "world": world.name, **deciding}
        self._world, self._program, self._options = world, program, options
        self._out, self._accepted = out, accepted
        self._folder = Folder.begin(out, facts, resume=resume)
        self.sweep = Sweep(world, program, self._folder, options)
        self._began = time.monotonic()

    def finish(self, *, signal: bool = False) -> Outcome | None:
        """Write the reports, and return what was found; None where not even the clean runs have ended.

        signal: one has stopped it.
        """
        sweep = self.sweep
        if sweep.baseline is None:
            return None
        result = SweepResult(
            self._program.line,
            self._world.name,
            sweep.baseline.runs,
            sweep.differs,
            sweep.places,
            sweep.trials,
            sweep.judged,
            time.monotonic() - self._began,
            sweep.patience(),
            self._options.seed,
            self._accepted,
            "a signal stopped it" if signal else "its time was over" if sweep.seconds_left() == 0 else "",
            self._program.again(self._out),
        )
        findings = group(sweep.judged)
        self._folder.finish(result, findings)
        new, gone = accept(findings, self._accepted)
        return Outcome(result, findings, new, gone, self._out)
