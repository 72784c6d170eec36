"""A sweep with its folder, from its beginning to the reports: what the command line and tests share.

`KeptSweep(world, program, options, out, again)`, then `run()`, then `finish()`, also where it was stopped.
While it runs, the reports in its folder show how far it is.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from natsproxy.errors import ConfigError, NatsproxyError, first_error
from natsproxy.sweep.causes import Judged
from natsproxy.sweep.faults import chosen
from natsproxy.sweep.findings import Finding, accept, group
from natsproxy.sweep.folder import PAGE, FolderError, SweepFolder
from natsproxy.sweep.programs import Program
from natsproxy.sweep.report.result import SweepResult
from natsproxy.sweep.sweeping import Sweep, SweepOptions
from natsproxy.sweep.verdicts import Baseline
from natsproxy.sweep.worlds import World

_DECIDING: Final = ("check", "seed", "patience")
"""The options that decide what a trial says: a sweep is resumed with the same ones."""

_SHOW_EVERY: Final = 2.0  # seconds between two reports of a sweep that runs
_SHARE: Final = 20  # they take at most this part of the time: recordings may be long


class SweepFailure(AssertionError, NatsproxyError):
    """A sweep has findings; the message has the sentence and the folder of each."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The findings of a sweep, and where they are.

    findings: all, the worst first.  new: those that are not accepted.  gone: accepted names that were not
    found.  folder: of the results; each finding has one in it, named by its `title`.  unwritten: why the
    reports are not there, or not whole; "" where they are.
    """

    result: SweepResult
    findings: list[Finding]
    new: list[Finding]
    gone: list[str]
    folder: Path
    unwritten: str = ""

    def counts(self) -> str:
        """Return the number of trials by verdict, and what was not tried, in a line."""
        result = self.result
        counts = ", ".join(f"{count} {verdict}" for verdict, count in result.by_verdict().items() if count)
        stopped = f"; {result.stopped}: {result.not_tried} not tried" if result.stopped else ""
        return f"{len(result.judged)} tried: {counts or 'nothing'}{stopped}"

    @property
    def could_not_run(self) -> bool:
        """True if trials were tried, and none of them could be run."""
        return 0 < len(self.result.judged) == self.result.problems.total()

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
        """Raise SweepFailure where there are new findings.

        Raises ConfigError where no trial could be run, or the reports could not be written.
        """
        if self.could_not_run:
            raise ConfigError(f"no trial could be run: {next(iter(self.result.problems))}")
        complaint = self.complaint()
        if complaint:
            raise SweepFailure(complaint)
        if self.unwritten:
            raise ConfigError(f"no finding, but {self.unwritten}")


class KeptSweep:
    """A sweep and the folder of its results.

    out: the folder, made or emptied; with `resume` as an earlier sweep left it.  accepted: names of known
    findings.  again: what shows a finding again, a command or a call, with `{number}` for its number.
    Raises ConfigError for an unknown fault and for a folder that cannot be used.
    """

    def __init__(
        self,
        world: World,
        program: Program,
        options: SweepOptions,
        out: Path,
        again: str,
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
        self._out, self._again, self._accepted = out, again, accepted
        self._full = ""
        self._folder = SweepFolder.begin(out, facts, resume=resume)
        self.sweep = Sweep(world, program, self._folder, options)
        self._began = time.monotonic()

    @property
    def folder(self) -> Path:
        """The folder of the results."""
        return self._out

    async def run(self) -> None:
        """Run the sweep, and show in its folder how far it is.

        It stops where the folder cannot be written any more; `finish` has what was found till then.
        """
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._show)
                await self.sweep.run()
                nursery.cancel_scope.cancel()
        except* FolderError as errors:
            self._full = str(first_error(errors))

    async def _show(self) -> None:
        """Write the reports again whenever a trial has ended or a finding is confirmed."""
        shown = None
        while True:
            began, judged = time.monotonic(), list(self.sweep.judged)
            confirmed = [one for one in judged if one.confirmed]
            if self.sweep.baseline is not None and shown != (len(judged), len(confirmed)):
                shown = len(judged), len(confirmed)
                result = self._result(self.sweep.baseline, judged, running=True)
                with suppress(FolderError):  # if it is still full at the end, that is said then
                    await trio.to_thread.run_sync(self._show_running, result, confirmed)
            await trio.sleep(max(_SHOW_EVERY, _SHARE * (time.monotonic() - began)))

    def _show_running(self, result: SweepResult, confirmed: Sequence[Judged]) -> None:
        self._folder.show(result, group(confirmed))

    def _result(
        self, baseline: Baseline, judged: Sequence[Judged], *, stopped: str = "", running: bool = False
    ) -> SweepResult:
        sweep = self.sweep
        return SweepResult(
            self._program.line,
            self._world.name,
            baseline.runs,
            sweep.differs,
            sweep.places,
            sweep.trials,
            judged,
            time.monotonic() - self._began,
            sweep.patience(),
            self._options.seed,
            self._accepted,
            stopped,
            self._again,
            running,
            sweep.seconds_left() if running else None,
        )

    def finish(self, *, signal: bool = False) -> Outcome | None:
        """Write the reports, and return what was found; None where not even the clean runs have ended.

        A disk that is full keeps no finding from being returned.  signal: one has stopped it.
        """
        sweep = self.sweep
        if sweep.baseline is None:
            return None
        over = sweep.seconds_left() == 0 and len(sweep.judged) < len(sweep.trials)
        stopped = "a signal stopped it" if signal else "its time was over" if over else self._full
        result = self._result(sweep.baseline, sweep.judged, stopped=stopped)
        findings = group(sweep.judged)
        unwritten = self._full
        try:
            self._folder.finish(result, findings)
        except FolderError as error:
            unwritten = str(error)
        new, gone = accept(findings, self._accepted)
        return Outcome(result, findings, new, gone, self._out, unwritten)
