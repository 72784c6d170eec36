"""The folder of a sweep: its state, its findings, and what it leaves behind."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from natsproxy.capture.read.reader import open_capture
from natsproxy.config.files import rules_file
from natsproxy.errors import ConfigError
from natsproxy.sweep.causes import Judged, cause_of
from natsproxy.sweep.findings import group
from natsproxy.sweep.folder import LOCK, REPORT, STATE, SweepFolder, find_trial
from natsproxy.sweep.report.result import SweepResult
from natsproxy.sweep.values import Judgement, ProgramRun, Trial, Verdict
from tests.sweep.conversations import capture, firing, trial

PROGRAM = {"command": ["python", "worker.py"], "faults": ["drop"]}
TEXT = """
w opened
w > CONNECT {"name":"worker"}
w > PUB orders.new
  | one
w > PUB orders.new
  * not passed
  * cause: fault
  | two
w < PING
"""
RULE = {
    "name": "fault",
    "kind": "drop",
    "direction": "c2s",
    "op": "PUB",
    "subject": "orders.*",
    "only": {"c2s worker/1": [2]},
}


def a_run(folder: Path, **facts: Any) -> ProgramRun:
    """Return a run whose recording is in this folder."""
    folder.mkdir(parents=True)
    given = {"firings": [firing(4, ordinal=2)], "stack": "", "output": "", **facts}
    return ProgramRun(given.pop("code", None), 0.5, 30.0, capture(folder / "run.ncap", TEXT), **given)


def judged(folder: SweepFolder, number: int, made: Trial, verdict: Verdict = Verdict.HUNG) -> Judged:
    run, judgement = a_run(folder.run(number)), Judgement(verdict, ("it did not end",))
    return Judged(made, judgement, run, 5, 5, True, cause_of(made, judgement, run))


def result(folder: SweepFolder, found: Sequence[Judged], **facts: Any) -> SweepResult:
    clean = a_run(folder.baseline(1), code=0, firings=[])
    trials = [one.trial for one in found]
    places = [one.trial.place for one in found]
    given = {"differs": (), "places": places, "trials": trials, "seconds": 9.0, "patience": 30.0, **facts}
    return SweepResult("python worker.py", "a server of its own", [clean], judged=found, **given)


def test_the_folder_of_a_finding_has_what_shows_it_again(tmp_path: Path) -> None:
    folder = SweepFolder.begin(tmp_path / "out", PROGRAM)
    one = judged(folder, 1, trial(rules=[RULE], n=2))
    one.run.stack = 'Task a (most recent call last):\n  File "worker.py", line 3, in main\n'
    done = replace(result(folder, [one]), again="natsproxy sweep --only {number} -- x '{number}'")
    folder.finish(done, group([one]))
    where = tmp_path / "out" / "01-hung-drop-PUB-of-orders.any"
    assert sorted(path.name for path in where.iterdir()) == [
        "README.txt",
        "baseline.ncap",
        "conversation.txt",
        "fault.toml",
        "finding.json",
        "run.ncap",
        "stack.txt",
    ]
    (rule,) = rules_file(where / "fault.toml")
    assert rule.table == RULE
    assert len((where / "fault.toml").read_text().strip().splitlines()) <= 9
    assert find_trial(tmp_path / "out", "01") == find_trial(tmp_path / "out", "hung-drop-PUB-of-orders.any")
    assert find_trial(tmp_path / "out", "1") == one.trial
    assert list(open_capture(where / "run.ncap").items())
    said = (where / "README.txt").read_text()
    assert "It failed like this in 5 of 5 runs." in said
    assert "    natsproxy sweep --only 01 -- x '{number}'\n" in said
    assert re.search(
        r"→ PUB +orders.new two  \[fault: not passed\]  ◀ the fault\n",
        (where / "conversation.txt").read_text(),
    )


def test_a_finding_has_what_the_checks_find_in_its_run(tmp_path: Path) -> None:
    folder = SweepFolder.begin(tmp_path / "out", PROGRAM)
    one = judged(folder, 1, trial(rules=[RULE], n=2))
    asks = TEXT + "w > SUB _INBOX.a 1\nw > PUB prices.get _INBOX.a\n@ +20s\nw closed client-closed\n"
    capture(one.run.capture, asks)
    folder.finish(result(folder, [one]), group([one]))
    (said,) = (tmp_path / "out").glob("01-*/checks.txt")
    assert said.read_text().startswith(
        "request_without_answer: worker (connection 1): a request to prices.get "
    )


def test_runs_without_a_finding_go_as_they_end(tmp_path: Path) -> None:
    folder = SweepFolder.begin(tmp_path / "out", PROGRAM)
    passed, hung = judged(folder, 1, trial(n=1), Verdict.PASSED), judged(folder, 2, trial(n=2))
    folder.note(passed)
    folder.note(hung)
    assert [path.name for path in sorted((tmp_path / "out" / "runs").iterdir())] == ["0002"]


def test_a_sweep_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    folder = SweepFolder.begin(tmp_path / "out", PROGRAM)
    trials = [trial(n=n, rules=[RULE]) for n in (1, 2, 3)]
    folder.note(judged(folder, 1, trials[0], Verdict.PASSED))
    hung = judged(folder, 2, trials[1])
    folder.note(hung)
    with (tmp_path / "out" / STATE).open("a") as file:
        file.write('{"key": "torn')
    again = SweepFolder.begin(tmp_path / "out", PROGRAM, resume=True)
    found = again.restored(trials)
    assert [(one.trial, one.judgement.verdict, one.runs) for one in found] == [
        (trials[0], Verdict.PASSED, 5),
        (trials[1], Verdict.HUNG, 5),
    ]
    assert found[1].run == hung.run
    assert group(found)[0].sentence == group([hung])[0].sentence
    again.note(judged(again, 2, trials[2], Verdict.PASSED))
    assert hung.run.capture.exists()
    third = SweepFolder.begin(tmp_path / "out", PROGRAM, resume=True)
    assert len(third.restored(trials)) == 3


def test_another_program_does_not_go_on(tmp_path: Path) -> None:
    SweepFolder.begin(tmp_path / "out", PROGRAM)
    with pytest.raises(ConfigError, match=r"has the sweep of another program or of other options: .*worker"):
        SweepFolder.begin(tmp_path / "out", {**PROGRAM, "faults": ["cut"]}, resume=True)


@pytest.mark.parametrize("resume", [True, False])
def test_a_folder_that_is_no_sweeps_is_left_alone(tmp_path: Path, resume: bool) -> None:
    (tmp_path / "thesis.txt").write_text("four years")
    with pytest.raises(ConfigError, match=r"is not the folder of a sweep|has no sweep to resume"):
        SweepFolder.begin(tmp_path, PROGRAM, resume=resume)
    assert (tmp_path / "thesis.txt").read_text() == "four years"


def test_a_state_that_is_damaged_is_said(tmp_path: Path) -> None:
    SweepFolder.begin(tmp_path, PROGRAM)
    state = tmp_path / STATE
    state.write_text(state.read_text() + "nonsense\n{}\n")
    with pytest.raises(ConfigError, match="is damaged in line 2"):
        SweepFolder.begin(tmp_path, PROGRAM, resume=True)


def test_a_new_sweep_knows_what_failed_last_time_and_removes_the_rest(tmp_path: Path) -> None:
    folder = SweepFolder.begin(tmp_path / "out", PROGRAM)
    one = judged(folder, 1, trial(rules=[RULE]))
    folder.note(one)
    folder.finish(result(folder, [one]), group([one]))
    again = SweepFolder.begin(tmp_path / "out", PROGRAM)
    assert len(again.failed) == 1
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [STATE, LOCK]


@pytest.mark.parametrize(("until_freed", "left"), [(True, {"running": False}), (False, None)])
def test_a_disk_that_is_full_at_the_end_leaves_no_report_of_a_sweep_that_runs(
    until_freed: bool, left: dict[str, bool] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report of the end may fit where the earlier one was."""
    folder = SweepFolder.begin(tmp_path / "out", PROGRAM)
    one = judged(folder, 1, trial(n=1))
    done = result(folder, [one])
    folder.show(replace(done, running=True), [])
    report = tmp_path / "out" / REPORT
    assert json.loads(report.read_text())["running"] is True

    def full(path: Path, text: str) -> None:
        if path == report and (report.exists() or not until_freed):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        path.write_text(text)

    monkeypatch.setattr("natsproxy.sweep.folder.write_whole", full)
    with pytest.raises(ConfigError, match="No space left"):
        folder.finish(done, [])
    found = json.loads(report.read_text()) if report.exists() else None
    assert (found and {"running": found["running"]}) == left


def test_a_finding_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no finding '07': it has none"):
        find_trial(tmp_path, "07")


def test_the_report_has_all_numbers(tmp_path: Path) -> None:
    folder = SweepFolder.begin(tmp_path / "out", PROGRAM)
    found = [judged(folder, 1, trial(n=1, rules=[RULE])), judged(folder, 2, trial(n=2), Verdict.PASSED)]
    more = [*(one.trial for one in found), trial(n=3), trial(n=4)]
    folder.finish(result(folder, found, trials=more, stopped="its time was over"), group(found))
    facts = json.loads((tmp_path / "out" / REPORT).read_text())
    assert facts["trials"] == {
        "chosen": 4,
        "tried": 2,
        "not_tried": 2,
        "runs": 10,
        "by_verdict": {
            "passed": 1,
            "failed loudly": 0,
            "wrong": 0,
            "hung": 1,
            "deaf": 0,
            "flaky": 0,
            "not reached": 0,
        },
        "problems": {},
    }
    assert (facts["stopped"], facts["baseline"]["places"]) == ("its time was over", 2)
    assert [(one["title"], one["accepted"]) for one in facts["findings"]] == [
        ("01-hung-drop-PUB-of-orders.any", False)
    ]


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_belongs_to_one_process_at_a_time(resume: bool, tmp_path: Path) -> None:
    """A second sweep would delete the runs of the first."""
    SweepFolder.begin(tmp_path / "out", PROGRAM)
    code = """if True:
        import sys
        from pathlib import Path
        from natsproxy.sweep.folder import SweepFolder
        held = SweepFolder.begin(Path(sys.argv[1]), {})
        print("held", flush=True)
        sys.stdin.read()
    """
    (tmp_path / "out" / STATE).write_text(json.dumps({"program": {}}) + "\n")
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "out")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(
            ConfigError, match=r"another sweep writes into .*out: give this one another --out"
        ):
            SweepFolder.begin(tmp_path / "out", {}, resume=resume)
        other.communicate()
    SweepFolder.begin(tmp_path / "out", {}, resume=resume)


def test_a_full_disk_is_said_with_the_folder(tmp_path: Path) -> None:
    folder = SweepFolder.begin(tmp_path / "out", PROGRAM)
    (tmp_path / "out" / STATE).unlink()
    (tmp_path / "out" / STATE).symlink_to("/dev/full")
    with pytest.raises(ConfigError, match="out cannot be used for the results: No space left"):
        folder.note(judged(folder, 1, trial(rules=[RULE])))
