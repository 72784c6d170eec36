"""Sail against Spark: the same tables, row for row, from the same captures."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from natsproxy.errors import ConfigError, NatsproxyError
from tests.spark.conftest import Known
from tests.spark.odd_captures import damaged, skewed

pytest.importorskip("pyspark", reason="the tables need pyspark: pip install 'natsproxy[spark]'")
import pyarrow as pa
import pyarrow.parquet as pq

from natsproxy.spark import sail, session
from natsproxy.spark.report.collect import collect
from natsproxy.spark.tables import USUAL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
ESTIMATES = ("subjects", "connections")
"""The report's values that are marked with \u2248."""
ROUGH = "distinct_subjects"
"""The one column that holds an estimate; each engine has its own."""


def can_run() -> bool:
    """Tell whether the packages of Sail are installed, in versions that work together."""
    try:
        sail.check_packages()
    except NatsproxyError:
        return False
    return True


needs_sail = pytest.mark.skipif(
    not can_run(), reason="needs pysail and PySpark 4.2: pip install 'natsproxy[sail]'"
)


def analyze(captures: list[Path], out: Path, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command on Sail, in a process of its own: one that has a Spark cannot also have a client."""
    command = [sys.executable, "-m", "natsproxy", "analyze", *map(str, captures), "--out", str(out)]
    return subprocess.run(
        [*command, "--engine", "sail", *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **env},
    )


def rows(table: pa.Table) -> Counter[str]:
    """Return the rows of a table, each with its number."""
    kept = [name for name in table.column_names if name != ROUGH]
    return Counter(map(repr, table.select(kept).to_pylist()))


def differences(ours: Any, theirs: Any, path: tuple[object, ...] = ()) -> Iterator[object]:
    """Give what differs in the data of two pages; estimates may, by a tenth or by one."""
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
        for name in ours:
            yield from differences(ours[name], theirs[name], (*path, name))
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(one, other, (*path, place))
    elif path[0] in ("templates", "totals") and path[-1] in ESTIMATES:
        if ours != pytest.approx(theirs, rel=0.1, abs=1):
            yield path, ours, theirs
    elif ours != theirs:
        yield path, ours, theirs


def equal(ours: pa.Table, theirs: pa.Table) -> None:
    """Check that two tables have the same columns, types and rows."""
    assert [(field.name, field.type) for field in ours.schema] == [
        (field.name, field.type) for field in theirs.schema
    ]
    assert rows(ours) == rows(theirs)
    if ROUGH in ours.column_names:
        sums = [sum(table.column(ROUGH).to_pylist()) for table in (ours, theirs)]
        assert sums[0] == pytest.approx(sums[1], rel=0.1)


@pytest.mark.long
@needs_sail
def test_tables_equal_those_of_spark(known: Known, tmp_path: Path) -> None:
    """All tables of golden captures, firings, generated traffic, proxies in a row, bytes, skew and damage."""
    done = analyze(known.captures, tmp_path)
    assert done.returncode == 0, done.stderr
    stored = pq.read_table(tmp_path / "frames").drop_columns("date")
    assert "_corrupt" in stored.column("op").to_pylist()
    equal(stored, known.frames.toArrow())
    for name in USUAL[1:]:
        equal(pq.read_table(tmp_path / name), known.arrow(name))


@pytest.mark.long
@needs_sail
def test_the_report_of_both_engines_has_the_same_numbers(
    spark: SparkSession, known: Known, tmp_path: Path
) -> None:
    """From tables that are the same."""
    out, page = tmp_path / "out", tmp_path / "report.html"
    done = analyze(known.captures, out, "--report", str(page))
    assert done.returncode == 0, done.stderr
    data = json.loads(page.read_text().split('type="application/json">')[1].split("</script>")[0])
    assert list(differences(data, collect(spark, out, known.captures))) == []


@needs_sail
def test_an_unreadable_capture_is_one_sentence(tmp_path: Path) -> None:
    """As it is on Spark."""
    other = tmp_path / "other.ncap"
    other.write_bytes(b"something else entirely")
    done = analyze([other], tmp_path / "out", "--quiet")
    assert (done.returncode, done.stderr) == (2, f"Error: {other}: this is not a natsproxy capture\n")


@pytest.mark.long
@needs_sail
def test_what_is_not_whole_is_said_as_capture_info_says_it(tmp_path: Path) -> None:
    """A damaged segment and one that its recorder did not close, in the terminal and in the report."""
    captures = [damaged(tmp_path / "damaged.ncap"), skewed(tmp_path / "open.ncap")]
    captures[1].write_bytes(captures[1].read_bytes()[:-50])
    told = []
    for path in captures:
        command = [sys.executable, "-m", "natsproxy", "capture", "info", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        told.append(done.stderr.strip().removeprefix("Error: ") or done.stdout.split("\n")[0].split(", ")[-1])
    assert "damaged (at byte" in told[0]
    page = tmp_path / "report.html"
    done = analyze(captures, tmp_path / "out", "--tables", "gaps", "--report", str(page))
    assert done.returncode == 0, done.stderr
    assert f"Warning: {told[0]}\n" in done.stderr
    assert f"Note: {captures[1]}: {told[1]}\n" in done.stderr
    data = json.loads(page.read_text().split('type="application/json">')[1].split("</script>")[0])
    said = "\n".join(finding["text"] for finding in data["findings"])
    assert told[0] in said
    assert f"{captures[1]}: {told[1]}" in said


@pytest.mark.long
@needs_sail
def test_an_environment_for_spark_is_not_sails(tmp_path: Path) -> None:
    """A master, and a server that is not there: both are for the other engine."""
    elsewhere = {"MASTER": "local[1]", "SPARK_REMOTE": "sc://127.0.0.1:9"}
    done = analyze([damaged(tmp_path / "a.ncap")], tmp_path / "out", "--tables", "errors", **elsewhere)
    assert done.returncode == 0, done.stderr
    assert "frames: 28 rows" in done.stderr


HELD = """
from natsproxy.__main__ import start
from natsproxy.spark.source import survey
from natsproxy.spark.storage import executor_writer

look, read = survey._look, executor_writer.write_partition

def held(work):
    def after_a_line(*given, **named):
        input()
        return work(*given, **named)
    return after_a_line

survey._look = held(look)
executor_writer.write_partition = held(read)
start()
"""
"""The command, which looks at each capture, and reads each part, after a line from its terminal."""


@pytest.mark.long
@needs_sail
def test_a_terminal_is_told_how_far_it_is(tmp_path: Path) -> None:
    """From the first second on: captures that were looked at, parts that were read."""
    captures = [skewed(tmp_path / "a.ncap"), damaged(tmp_path / "b.ncap")]
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", HELD, "analyze", *map(str, captures), "--out", str(tmp_path / "out")]
    command += ["--engine", "sail", "--tables", "errors"]
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    process = subprocess.Popen(command, stdin=theirs, stderr=theirs, stdout=subprocess.DEVNULL, env=env)
    os.close(theirs)
    said = b""
    try:
        for text in (b"looking for captures", b"looking for captures: 1 of 2", b"reading: 0 of 1 parts"):
            while text not in said:
                assert select.select([ours], [], [], 120)[0], said.decode()
                said += os.read(ours, 4096)
            os.write(ours, b"\n")
        with suppress(OSError):  # the terminal's other end was closed
            while more := os.read(ours, 4096):
                said += more
        assert process.wait(120) == 0, said.decode()
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert b"frames: 4029 rows" in said


MANY = """
import sys
from natsproxy.__main__ import start
from natsproxy.spark.storage import store
store.FEW = 0
start()
"""


@pytest.mark.long
@needs_sail
def test_many_rows_are_written_by_sail_itself(tmp_path: Path) -> None:
    """Once each, over the tables of an earlier run."""
    captures = [skewed(tmp_path / "skewed.ncap"), damaged(tmp_path / "damaged.ncap")]
    assert analyze(captures, tmp_path / "few").returncode == 0
    command = [sys.executable, "-c", MANY, "analyze", *map(str, captures), "--out", str(tmp_path / "many")]
    for _ in range(2):
        done = subprocess.run(
            [*command, "--engine", "sail"], capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr
    for name in USUAL[1:]:
        few, many = (pq.read_table(tmp_path / place / name) for place in ("few", "many"))
        assert many.schema.types == few.schema.types
        assert rows(many) == rows(few), name


READ = """
import sys
from natsproxy.spark.session import open_session
from natsproxy.spark.storage.store import Store
store = Store(open_session(engine="sail"), sys.argv[1])
print(store.read("errors").count())
try:
    store.read("gaps")
except Exception as error:
    print(error)
"""


NUMBERS = """
from types import SimpleNamespace
from pyspark.sql import functions as F
from natsproxy.spark.report.groups import Groups
from natsproxy.spark.session import open_session
table = open_session(engine="sail").range(5).selectExpr("id % 2 AS rest")
print(Groups(table, ("rest",), SimpleNamespace(recorder_choices=[])).top([F.count("*").alias("n")], "rest"))
"""


@needs_sail
def test_the_report_groups_by_numbers_alone() -> None:
    """Without a text, there is no column to cut."""
    done = subprocess.run(
        [sys.executable, "-c", NUMBERS], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout == "[{'rest': 0, 'n': 3}, {'rest': 1, 'n': 2}]\n", done.stderr


@pytest.mark.long
@needs_sail
def test_a_table_that_was_removed_is_not_an_empty_one(tmp_path: Path) -> None:
    """One without rows is."""
    out = tmp_path / "out"
    assert analyze([damaged(tmp_path / "a.ncap")], out, "--tables", "errors,gaps").returncode == 0
    shutil.rmtree(out / "gaps")
    done = subprocess.run(
        [sys.executable, "-c", READ, str(out)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout.splitlines() == ["0", f"{out}/gaps is missing: run the analysis again"], done.stderr


def test_what_would_lose_rows_is_refused(tmp_path: Path) -> None:
    """A watch, and a place that is not this machine."""
    done = analyze([tmp_path], tmp_path / "out", "--watch")
    assert done.returncode == 2
    assert "--watch needs --engine spark" in done.stderr
    with pytest.raises(ConfigError, match="without a master or a Connect server"):
        session.open_session(engine="sail", master="local[2]")


def test_hours_are_refused(monkeypatch: pytest.MonkeyPatch, spark: SparkSession, tmp_path: Path) -> None:
    """Sail would delete the other ones."""
    from natsproxy.spark.storage.parquet import replace_hours

    monkeypatch.setattr(sail, "is_sail", lambda session: True)
    with pytest.raises(ConfigError, match="would delete other hours"):
        replace_hours(spark.range(1), str(tmp_path / "hours"))
    assert not (tmp_path / "hours").exists()


@pytest.mark.parametrize(
    ("missing", "found", "text"),
    [
        ("pysail", "4.2.1", r"pip install 'natsproxy\[sail\]'"),
        ("", "4.3.0", r"Sail works with PySpark 4.2, and here is 4.3.0: pip install 'natsproxy\[sail\]'"),
    ],
)
def test_what_is_not_installed_is_named(
    missing: str, found: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one sentence, with the command that installs it."""
    monkeypatch.setattr(sail, "find_spec", lambda name: None if name == missing else object())
    monkeypatch.setattr(sail, "version", lambda name: found)
    with pytest.raises(NatsproxyError, match=text):
        session.open_session(engine="sail")
