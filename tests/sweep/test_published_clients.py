"""Sweeps of programs with published clients, by the command alone: known weaknesses are found, and no others.

Nobody tells the sweep where to look.  Each takes minutes, which are mostly the programs' own time-outs.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.sweep.programs import SOUND, TWINS, VICTIMS, ZOO, Program

pytestmark = [pytest.mark.server, pytest.mark.long]
_MOST = 1_500  # seconds


def swept(program: Program, folder: Path, *options: str) -> dict[str, Any]:
    """Sweep a program; return the facts of the report."""
    if program.missing:
        pytest.skip(program.missing)
    environment = program.environment("")
    del environment["NATS_URL"]
    setup = ["--setup", shlex.join(program.setup_command())] if program.setup else []
    command = [sys.executable, "-m", "natsproxy", "sweep", "--server", *setup, *options, "--quiet"]
    done = subprocess.run(
        [*command, "--", *program.command()],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=_MOST,
    )
    assert done.returncode in (0, 1), done.stderr
    facts: dict[str, Any] = json.loads((folder / "sweep-out/report.json").read_text())
    assert done.returncode == any(not one["accepted"] for one in facts["findings"])
    return facts


@pytest.mark.parametrize("program", VICTIMS, ids=lambda program: program.name)
def test_a_weakness_is_found_every_time(program: Program, tmp_path: Path) -> None:
    # A pause lasts for minutes, and is not tried unless it is named.
    pause = ["--faults", "pause"] if any(one.fault == "pause" for one in program.finds) else []
    facts = swept(program, tmp_path, *pause)
    found = {
        (one["verdict"], one["trial"]["fault"].partition("-")[0], one["trial"]["place"]["position"]["what"])
        for one in facts["findings"]
        if one["rate"] == {"failed": 5, "runs": 5}
    }
    assert found >= {(one.verdict.value, one.fault, one.what) for one in program.finds}


@pytest.mark.parametrize("program", [*TWINS, *SOUND, *ZOO], ids=lambda program: program.name)
def test_a_sound_program_has_no_finding(program: Program, tmp_path: Path) -> None:
    facts = swept(program, tmp_path)
    assert facts["findings"] == []
    assert facts["trials"]["not_tried"] == 0


@pytest.mark.parametrize("baseline", ["3", "1"])
def test_a_finding_has_one_name_in_each_sweep(baseline: str, tmp_path: Path) -> None:
    """Though its consumer has another one in each run, and that mostly looks like a word."""
    (program,) = (one for one in VICTIMS if one.name == "go-ordered")
    quick = ("--faults", "drop", "--subject", "log.line", "--baseline", baseline)
    names = [one["name"] for one in swept(program, tmp_path, *quick)["findings"]]
    assert "hung-drop-delivery-of-LOG-any-in-main.main" in names
    (tmp_path / "known").write_text("\n".join(names))
    again = swept(program, tmp_path, *quick, "--accept", "known")["findings"]
    assert [one["name"] for one in again] == names
    assert all(one["accepted"] for one in again)


def test_the_work_queue_is_swept_within_five_minutes(tmp_path: Path) -> None:
    (program,) = (one for one in SOUND if one.name == "work-queue")
    assert swept(program, tmp_path)["seconds"] < 300
