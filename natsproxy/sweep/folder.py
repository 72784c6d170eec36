"""The folder of a sweep, `sweep-out`: its state while it goes on, and what it found.

| name | content |
| --- | --- |
| `sweep.jsonl` | the program and its options, then a line for each trial as it ends: for `--resume` |
| `sweep.lock` | locked while a sweep goes on |
| `runs/` | the recordings of the baselines, of runs that go on, and of those that failed |
| `01-hung-drop-publish-ack/` | a finding, see `finding_folder.py` |
| `report.json`, `report.html`, `junit.xml` | see `report` |

`Folder.begin(path, program, resume=...)`, then `baseline(n)` and `run(n)` for the folders of runs, `note` for
each trial that is judged, `show` for those who watch, and `finish` at the end, also of a sweep that was
stopped.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from natsproxy.errors import ConfigError
from natsproxy.events import Firing, Who
from natsproxy.files import write_whole
from natsproxy.sweep.causes import FailureCause, Judged
from natsproxy.sweep.finding_folder import FACTS, write_finding
from natsproxy.sweep.findings import Finding
from natsproxy.sweep.report import html_page, junit
from natsproxy.sweep.report.result import SweepResult
from natsproxy.sweep.trial_facts import trial_facts, trial_key, trial_of
from natsproxy.sweep.values import Judgement, OpenConnection, ProgramRun, Trial, Verdict

STATE: Final = "sweep.jsonl"
LOCK: Final = "sweep.lock"
RUNS: Final = "runs"
REPORT: Final = "report.json"
PAGE: Final = "report.html"
JUNIT: Final = "junit.xml"
_FINDINGS: Final = "[0-9][0-9]*-*"
_MOST_FIRINGS: Final = 100


class FolderError(ConfigError):
    """The folder of a sweep cannot be written: the disk is full, or somebody has taken the folder away."""


class _Lock:
    """A folder that no other process can lock while this object is there."""

    def __init__(self, path: Path) -> None:
        """Lock a folder.  Raises ConfigError where another process has it."""
        self._fd = os.open(path / LOCK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise ConfigError(f"another sweep writes into {path}: give this one another --out") from None

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)


@dataclass(slots=True)
class SweepFolder:
    """The folder of one sweep.

    path: its place.  done: the trials that an earlier part of this sweep has tried, by `trial_key`.
    failed: the keys of the trials that failed in the sweep before this one: they come first.
    """

    path: Path
    done: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    _earlier: int = 0
    """The greatest number of a run in an earlier part of this sweep."""
    _lock: _Lock | None = None

    @classmethod
    def begin(cls, path: Path, program: Mapping[str, Any], *, resume: bool = False) -> SweepFolder:
        """Return the folder for a program, made or emptied; with `resume` as an earlier sweep left it.

        program: the command and the options that decide what a trial says, JSON values.  Raises ConfigError
        for a folder that is no sweep's or that another process sweeps into, for one of another program where
        it is to be resumed, and where the folder cannot be written.
        """
        with _writing(path):
            return cls._resumed(path, program) if resume else cls._anew(path, program)

    @classmethod
    def _anew(cls, path: Path, program: Mapping[str, Any]) -> SweepFolder:
        lines: list[dict[str, Any]] = []
        if path.exists() and not _may_be_emptied(path):
            raise ConfigError(f"{path} is not the folder of a sweep: give another one with --out")
        path.mkdir(parents=True, exist_ok=True)
        lock = _Lock(path)
        if (path / STATE).exists():
            lines = _lines(path / STATE)
        _remove_findings(path)
        for name in (REPORT, PAGE, JUNIT):
            (path / name).unlink(missing_ok=True)
        shutil.rmtree(path / RUNS, ignore_errors=True)
        (path / STATE).write_text(_line({"program": dict(program)}), encoding="utf-8")
        failed = {one["key"] for one in lines if "key" in one and Verdict(one["verdict"]).found}
        return cls(path, {}, failed, _lock=lock)

    @classmethod
    def _resumed(cls, path: Path, program: Mapping[str, Any]) -> SweepFolder:
        state = path / STATE
        if not state.is_file():
            raise ConfigError(f"{path} has no sweep to resume")
        lock = _Lock(path)
        lines = _lines(state)
        began = lines[0].get("program") if lines else None
        if began != json.loads(json.dumps(dict(program))):
            raise ConfigError(f"{path} has the sweep of another program or of other options: {_shown(began)}")
        with state.open("w", encoding="utf-8") as file:  # without a last line that was torn
            file.writelines(map(_line, lines))
        numbers = [int(one.name) for one in (path / RUNS).glob("[0-9]*") if one.name.isdigit()]
        done = {one["key"]: one for one in lines if "key" in one}
        return cls(path, done, _earlier=max(numbers, default=0), _lock=lock)

    # -- runs

    def baseline(self, number: int) -> Path:
        """Return the folder of a clean run."""
        return self.path / RUNS / f"baseline-{number}"

    def run(self, number: int) -> Path:
        """Return the folder of a run with a fault.  number: from 1 in each part of the sweep."""
        return self.path / RUNS / f"{self._earlier + number:04}"

    def drop(self, run: ProgramRun) -> None:
        """Delete the folder of a run that nobody will look at."""
        if self._owns(run.capture):
            shutil.rmtree(run.capture.parent, ignore_errors=True)

    def _owns(self, capture: Path) -> bool:
        return capture.parent.parent == self.path / RUNS

    # -- the state

    def note(self, one: Judged) -> None:
        """Write down a trial that was judged; the folder of its run goes, unless it is a finding.

        One that could not be run is not written down: a sweep that goes on tries it again.  Raises
        FolderError where the disk is full.
        """
        if one.run.problem:
            self.drop(one.run)
            return
        found = one.judgement.verdict.found
        facts: dict[str, Any] = {
            "key": trial_key(one.trial),
            "trial": trial_facts(one.trial),
            "verdict": one.judgement.verdict.value,
            "reasons": list(one.judgement.reasons),
            "runs": one.runs,
            "same": one.same,
            "confirmed": one.confirmed,
            "seconds": round(one.run.seconds, 3),
        }
        if found:
            facts["run"] = self._run_facts(one.run)
            facts["cause"] = [one.cause.verdict.value, *one.cause[1:]] if one.cause else None
        else:
            self.drop(one.run)
        with _writing(self.path), (self.path / STATE).open("a", encoding="utf-8") as file:
            file.write(_line(facts))
            file.flush()
            os.fsync(file.fileno())

    def restored(self, trials: Iterable[Trial]) -> list[Judged]:
        """Return those of these trials that an earlier part of this sweep has tried, with their verdicts."""
        found = []
        for trial in trials:
            facts = self.done.get(trial_key(trial))
            if facts is not None:
                found.append(self._judged(trial, facts))
        return found

    def _judged(self, trial: Trial, facts: Mapping[str, Any]) -> Judged:
        judgement = Judgement(Verdict(facts["verdict"]), tuple(facts["reasons"]))
        run = self._run(facts)
        verdict, *cause = facts.get("cause") or [None]
        known = FailureCause(Verdict(verdict), *cause) if verdict else None
        return Judged(trial, judgement, run, facts["runs"], facts["same"], facts["confirmed"], known)

    def _run_facts(self, run: ProgramRun) -> dict[str, Any]:
        facts = asdict(run)
        facts["capture"] = os.path.relpath(run.capture, self.path)
        facts["firings"] = [asdict(one) for one in run.firings[:_MOST_FIRINGS]]
        facts["open"] = [one._asdict() for one in run.open]
        return facts

    def _run(self, facts: Mapping[str, Any]) -> ProgramRun:
        kept = facts.get("run")
        if kept is None:
            return ProgramRun(0, facts["seconds"], facts["seconds"], self.path / RUNS / "none")
        return ProgramRun(
            **{
                **kept,
                "capture": self.path / kept["capture"],
                "firings": [_firing(one) for one in kept["firings"]],
                "open": [OpenConnection(**one) for one in kept["open"]],
            }
        )

    # -- the results

    def show(self, result: SweepResult, findings: Sequence[Finding]) -> None:
        """Write report and page, also of a sweep that runs.  Raises FolderError where the disk is full."""
        with _writing(self.path):
            self._write(REPORT, json.dumps(result.facts(findings), indent=2, ensure_ascii=False) + "\n")
            self._write(PAGE, html_page.page(result, findings))

    def finish(self, result: SweepResult, findings: Sequence[Finding]) -> None:
        """Write the findings and the reports.  Raises FolderError where the disk is full."""
        try:
            self._finish(result, findings)
        except FolderError:
            # The earlier reports say that the sweep goes on; without them, there may be space for its end.
            for name in (REPORT, PAGE):
                (self.path / name).unlink(missing_ok=True)
            with suppress(FolderError):
                self.show(result, findings)
            raise

    def _finish(self, result: SweepResult, findings: Sequence[Finding]) -> None:
        with _writing(self.path):
            _remove_findings(self.path)
            for finding in findings:
                write_finding(self.path, finding, result)
            kept = {finding.least.run.capture.parent.name for finding in findings}
            for run in (self.path / RUNS).glob("[0-9]*"):  # also those that a signal stopped
                if run.name not in kept:
                    shutil.rmtree(run, ignore_errors=True)
            self.show(result, findings)
            self._write(JUNIT, junit.document(result, findings))

    def _write(self, name: str, text: str) -> None:
        plain = text.encode("utf-8", "backslashreplace").decode()
        write_whole(self.path / name, plain)  # a browser may read the page at any time


def find_trial(path: Path, name: str) -> Trial:
    """Return the trial of a finding in a folder, by its number or its name.

    Raises ConfigError where there is none, or it cannot be read.
    """
    titles = sorted(one.parent.name for one in path.glob(f"{_FINDINGS}/{FACTS}"))
    for title in titles:
        number, _, rest = title.partition("-")
        if name in (title, rest) or (name.isdigit() and int(name) == int(number)):
            try:
                return trial_of(json.loads((path / title / FACTS).read_text(encoding="utf-8"))["trial"])
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise ConfigError(f"the finding {title} in {path} cannot be read: {error}") from None
    raise ConfigError(f"{path} has no finding {name!r}: {', '.join(titles) or 'it has none'}")


# -- files


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn the error of a folder that cannot be written into FolderError: a full disk names no file."""
    try:
        yield
    except OSError as error:
        raise FolderError(f"{path} cannot be used for the results: {error.strerror}") from None


def _may_be_emptied(path: Path) -> bool:
    """Tell whether a path is the folder of a sweep, or an empty one."""
    return path.is_dir() and ((path / STATE).exists() or {one.name for one in path.iterdir()} <= {LOCK})


def _firing(facts: Mapping[str, Any]) -> Firing:
    return Firing(**{**facts, "also": (), "who": Who(*facts.get("who", ()))})


def _line(facts: Mapping[str, Any]) -> str:
    return json.dumps(facts) + "\n"


def _lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a state without a torn last one.  Raises ConfigError for a damaged one."""
    texts = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    found = []
    for number, text in enumerate(texts, 1):
        try:
            found.append(json.loads(text))
            if not isinstance(found[-1], dict):
                raise ValueError("it is not an object")
        except ValueError as error:
            if number == len(texts):
                return [one for one in found if isinstance(one, dict)]
            raise ConfigError(f"{path} is damaged in line {number}: {error}") from None
    return found


def _shown(program: Any) -> str:
    return json.dumps(program)[:300]


def _remove_findings(path: Path) -> None:
    for facts in path.glob(f"{_FINDINGS}/{FACTS}"):
        shutil.rmtree(facts.parent)
