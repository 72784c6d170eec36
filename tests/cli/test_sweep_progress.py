"""The progress of a sweep in lines, where no terminal shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from natsproxy.cli.sweep_progress import Lines
from natsproxy.sweep.causes import Judged
from natsproxy.sweep.folder import SweepFolder
from natsproxy.sweep.sweeping import Sweep, SweepOptions
from natsproxy.sweep.values import Judgement, Verdict
from natsproxy.sweep.verdicts import Baseline
from natsproxy.sweep.worlds import OwnServer
from tests.sweep.conversations import run, trial
from tests.sweep.kit import python

TEXT = """
w opened
w > PUB orders.new
  | one
"""


def test_a_line_comes_where_something_has_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = Sweep(OwnServer(), python(""), SweepFolder.begin(tmp_path / "out", {}), SweepOptions())
    lines = Lines(sweep)

    def shown() -> list[str]:
        lines.show()
        return capsys.readouterr().err.splitlines()

    assert shown() == ["running without a fault"]
    assert shown() == []
    made, clean = trial("drop"), run(tmp_path / "clean.nats.txt", TEXT)
    sweep.baseline, sweep.trials = Baseline.of([clean]), [made, made]
    assert shown() == ["0 of 2 tried: none has ended yet"]
    one = Judged(made, Judgement(Verdict.HUNG), clean)
    sweep.judged.append(one)
    sweep.repeated.append(one)
    (line,) = shown()
    assert line.startswith("1 of 2 tried: 1 hung; confirming: hung by drop at ")
    assert shown() == []
    sweep.repeated.remove(one)
    assert shown() == ["1 of 2 tried: 1 hung"]
