"""A sweep with its folder: what can be seen of it while it runs, and at its end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from natsproxy.sweep import kept_sweep
from natsproxy.sweep.findings import Finding
from natsproxy.sweep.folder import PAGE, REPORT, SweepFolder
from natsproxy.sweep.kept_sweep import KeptSweep
from natsproxy.sweep.report.result import SweepResult
from natsproxy.sweep.worlds import OwnServer
from tests.sweep.kit import python
from tests.sweep.test_sweeping import QUICK, WAITS

REFRESH = '<meta http-equiv="refresh"'


@pytest.mark.server
async def test_a_sweep_that_runs_can_be_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its page loads itself again and again, with the findings that are confirmed, until the end."""
    monkeypatch.setattr(kept_sweep, "_SHOW_EVERY", 0.01)
    monkeypatch.setattr(kept_sweep, "_SHARE", 0)
    seen: list[tuple[str, bool]] = []
    write = SweepFolder.show

    def show(folder: SweepFolder, result: SweepResult, findings: Sequence[Finding]) -> None:
        write(folder, result, findings)
        running = json.loads((folder.path / REPORT).read_text())["running"]
        seen.append(((folder.path / PAGE).read_text(), running))

    monkeypatch.setattr(SweepFolder, "show", show)
    kept = KeptSweep(OwnServer(), python(WAITS), QUICK, tmp_path / "out", "")
    await kept.run()
    first, running = seen[0]
    assert running
    assert REFRESH in first
    assert "running: 0 of " in first
    assert "No findings so far" in first
    kept.finish()
    last, running = seen[-1]
    assert not running
    assert REFRESH not in last
    assert "running: " not in last
    assert "<h1>2 findings</h1>" in last
    assert not list((tmp_path / "out").glob(".*"))  # what was written in parts


async def test_reports_wait_for_the_clean_runs(tmp_path: Path) -> None:
    kept = KeptSweep(OwnServer(), python(WAITS), QUICK, tmp_path / "out", "")
    assert kept.finish() is None
    assert not (tmp_path / "out" / PAGE).exists()
