"""A folder in which several files hold the same segment: each block counts once, and the command says so."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from natsproxy.capture.read.reader import open_capture
from natsproxy.capture.read.recover import recover
from natsproxy.cli import main
from natsproxy.wire.ops import C2S
from tests.kit.captures import Scribe, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one segment of four blocks, twelve frames."""
    (tmp_path / "traffic").mkdir()
    scribe = Scribe()
    for n in range(12):
        scribe.frame(n * 1_000, 1, C2S, b"PUB orders.%d 1\r\nx\r\n" % n)
    write(tmp_path / "traffic" / "a.ncap", scribe.items, per_block=3)
    return tmp_path / "traffic"


def run(*command: str | Path) -> Result:
    """Run a command, which must not fail."""
    done = CliRunner().invoke(main, ["capture", *map(str, command)])
    assert done.exit_code in (0, 1), done.output
    return done


def frames(folder: Path) -> list[str]:
    """Return the frames of a folder, as every command that reads them tells it."""
    listed = run("cat", folder, "--json").stdout.splitlines()
    assert json.loads(run("info", folder, "--json").stdout)["frames"] == len(listed)
    exported = run("export", folder, "--jsonl", "-").stdout.splitlines()
    assert exported == listed
    return listed


def crash(path: Path, block: int) -> None:
    """Take the index from a file, and a block."""
    refs = list(open_capture(path).blocks())
    raw = bytearray(path.read_bytes()[: refs[-1].block.end])
    raw[refs[block].block.offset] ^= 0xFF
    path.write_bytes(raw)


def test_a_copy_counts_once(folder: Path) -> None:
    """Whole or of the first blocks only, as of a file that was still growing; a comparison says it too."""
    alone = frames(folder)
    assert len(alone) == 12
    original, copy = folder / "a.ncap", folder / "0.ncap"
    shutil.copy(original, copy)
    assert frames(folder) == alone
    said = f"Warning: {original} holds the same segment as {copy}: each block counts once\n"
    outcome = run("diff", original, folder)
    assert (outcome.exit_code, outcome.stderr) == (0, said)
    for command in (["info"], ["cat"], ["export", "--text", "-"]):
        assert run(command[0], folder, *command[1:]).stderr == said
    os.truncate(copy, list(open_capture(original).blocks())[1].block.end)
    assert frames(folder) == alone
    assert f"{copy} holds the same segment as {original}" in run("info", folder).stderr
    assert run("verify", folder).stdout.count("whole") == 1  # every file is checked


def test_what_was_recovered_counts_once(folder: Path) -> None:
    """Beside its source, which is damaged: what the two hold together is read."""
    whole = frames(folder)
    crash(folder / "a.ncap", 1)
    recover(folder / "a.ncap", folder / "saved.ncap")
    assert frames(folder) == whole[:3] + whole[6:]


def test_parquet_has_no_copies(folder: Path, tmp_path: Path) -> None:
    """As the table `frames`, which it is."""
    pq = pytest.importorskip("pyarrow.parquet")
    for name in ("b", "c"):
        shutil.copy(folder / "a.ncap", folder / f"{name}.ncap")
    done = run("export", folder, "--parquet", tmp_path / "frames.parquet")
    assert "each block counts once (2 such files)" in done.stderr
    assert pq.read_table(tmp_path / "frames.parquet").num_rows == 12


def test_several_files_that_lost_something(folder: Path) -> None:
    """A block is read from the file that has it; segments that are alike are no copies."""
    whole = frames(folder)
    other = folder / "b.ncap"
    shutil.copy(folder / "a.ncap", other)
    os.truncate(other, list(open_capture(other).blocks())[2].block.end)
    assert frames(folder) == whole
    other.unlink()
    scribe = Scribe()
    for n in range(12):
        scribe.frame(n * 1_000, 1, C2S, b"PUB orders.%d 1\r\nx\r\n" % n)
    write(other, scribe.items, per_block=3)
    assert len(frames(folder)) == 24
