"""The folder of a finding: all that a person needs to see it again, and to understand it.

| name | content |
| --- | --- |
| `README.txt` | the sentence, and the commands that show it again |
| `fault.toml` | a rules file that puts the fault in its place, for `natsproxy run --rules` |
| `run.ncap`, `baseline.ncap` | the recordings of the failed run and of a clean one |
| `conversation.txt` | the frame of the fault, and the last frames before the end |
| `stack.txt`, `output.txt` | where the program was, and what it printed; if there is any |
| `checks.txt` | what `natsproxy check` finds wrong in `run.ncap`; if there is anything |
| `finding.json` | the finding and its trial, for programs |
"""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Final

from natsproxy.check.checker import check_captures
from natsproxy.printable import printable
from natsproxy.rules.file.serialize import to_toml
from natsproxy.sweep.conversation import conversation
from natsproxy.sweep.findings import Finding
from natsproxy.sweep.report.result import SweepResult

FACTS: Final = "finding.json"
RULES: Final = "fault.toml"
_RESTART: Final = {"keep": "restart the server", "lose": "restart the server without its memory"}


def write_finding(path: Path, finding: Finding, result: SweepResult) -> Path:
    """Write a finding's folder below that of the sweep; return it."""
    folder = path / finding.title
    folder.mkdir(parents=True)
    run = finding.least.run
    texts = {
        "README.txt": readme(finding, result, path),
        RULES: rules_text(finding, result.seed),
        "conversation.txt": conversation(run.capture, run.firings),
        "stack.txt": run.stack,
        "output.txt": run.output,
        "checks.txt": _checks(run.capture),
        FACTS: json.dumps(finding.facts(), indent=2) + "\n",
    }
    for name, text in texts.items():
        if text:
            (folder / name).write_text(text, encoding="utf-8", errors="backslashreplace")
    shutil.copyfile(run.capture, folder / "run.ncap")
    shutil.copyfile(result.baseline[0].capture, folder / "baseline.ncap")
    return folder


def _checks(capture: Path) -> str:
    """Return what went wrong in a recording, a line each."""
    found = (one for one in check_captures([capture]) if one.found)
    return "".join(printable(f"{one.check}: {one.sentence}") + "\n" for one in found)


def rules_text(finding: Finding, seed: int) -> str:
    """Return the rules file of a finding: a comment with what it shows, and its rules."""
    trial = finding.least.trial
    lines = [f"# {finding.name}, seed {seed}"]
    if trial.restart:
        lines.append(f"# and {_RESTART[trial.restart]} when the first rule fires")
    return "\n".join([*lines, to_toml(trial.rules)])


def readme(finding: Finding, result: SweepResult, path: Path) -> str:
    """Return the text that explains a finding."""
    same, runs = finding.rate
    others = len(finding.members) - 1
    parts = [
        finding.sentence,
        *(printable(f"- {reason}") for reason in finding.least.judgement.reasons),
        "",
        f"It failed like this in {same} of {runs} runs." + _others(others),
        *([f"The program is then in {printable(finding.cause.place)}."] if finding.cause.place else []),
        "",
        "Again, where the sweep was started:",
        f"    {printable(result.again_for(finding.number), keep=chr(10))}",
        "The fault before a server of yours, for a program that you start yourself:",
        f"    natsproxy run --rules {shlex.quote(str(path / finding.title / RULES))} --seed {result.seed}",
        "Look at it:",
        f"    natsproxy capture cat {path / finding.title / 'run.ncap'} --exchange",
        f"    natsproxy capture diff {path / finding.title / 'baseline.ncap'} "
        f"{path / finding.title / 'run.ncap'}",
        "Accept it, with this line in the file of --accept:",
        f"    {finding.name}",
    ]
    return "\n".join(parts) + "\n"


def _others(count: int) -> str:
    if not count:
        return ""
    return f"  {count} other trial{' fails' if count == 1 else 's fail'} for the same cause."
