"""The jobs: run again, broken off, killed, out of space; no half-written table is read afterwards."""

from __future__ import annotations

import faulthandler
import fcntl
import os
import re
import resource
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest

from natsproxy.capture.format.records import GapRecord, OpenRecord
from natsproxy.errors import CaptureError, ConfigError, NatsproxyError
from natsproxy.wire.ops import C2S, S2C
from tests.kit.captures import MONO, Scribe, write
from tests.kit.process import ProxyProcess
from tests.kit.servers import NatsServer
from tests.spark.conftest import Known, load
from tests.spark.growing_captures import Growing, make

pytest.importorskip("pyspark", reason="the tables need pyspark: pip install 'natsproxy[spark]'")

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from natsproxy.spark.jobs.analyze import analyze, read
from natsproxy.spark.storage.parquet import dated
from natsproxy.spark.storage.store import Store
from natsproxy.spark.tables import RARE, derive, exchanges
from natsproxy.spark.watch.job import watch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
MS, DAY = 1_000_000, 86_400_000_000_000


def conversation(path: Path, requests: int, *, since: int = 0) -> Path:
    """Write a capture of answered requests, from some time (ns) on."""
    scribe = Scribe()
    scribe.items.append(OpenRecord(1, MONO + since, {"client": "10.0.0.1:1"}))
    for n in range(requests):
        t = since + n * 10 * MS
        scribe.frame(t, 1, C2S, b"PUB svc.%d _INBOX.x.%d 1\r\nq\r\n" % (n, n))
        scribe.frame(t + 2 * MS, 1, S2C, b"MSG _INBOX.x.%d 9 1\r\na\r\n" % n)
    scribe.items.append(GapRecord(None, MONO + since, {"reason": "the disk", "frames": 3, "bytes": 99}))
    return write(path, scribe.items, per_block=7)


def same(one: DataFrame, other: DataFrame) -> bool:
    """Return True if two tables hold the same rows, each as often."""
    return Counter(map(tuple, one.collect())) == Counter(map(tuple, other.select(one.columns).collect()))


@pytest.mark.long
def test_running_it_again_replaces_everything(spark: SparkSession, tmp_path: Path) -> None:
    """Other captures, of another day: nothing is left of the first run, nor of one that was broken off."""
    out, written = tmp_path / "out", dict[str, int]()
    first = conversation(tmp_path / "a.ncap", 5)
    analyze(spark, [first], out, ["frames", "gaps"], written.__setitem__)
    assert written == {"frames": 10, "items": 2, "gaps": 1}

    def break_off(table: str, rows: int) -> None:
        if table == "gaps":
            raise KeyboardInterrupt

    second = conversation(tmp_path / "b.ncap", 3, since=DAY)
    with pytest.raises(KeyboardInterrupt):
        analyze(spark, [second], out, ["gaps"], break_off)
    store = Store(spark, out)
    for name in ("frames", "items", "gaps"):
        with pytest.raises(NatsproxyError, match=f"no complete table {name} in {out}"):
            store.read(name)

    analyze(spark, [second], out, ["frames"])
    assert same(store.read("frames"), dated(read(spark, [second], payload="256")))
    assert not (out / "gaps").exists()


@pytest.mark.long
def test_positions_with_too_many_names_are_folded(spark: SparkSession, tmp_path: Path) -> None:
    """In `subjects` and in the report, whatever signs stand before them; a few names stay.

    Also those of subscriptions and of denied permissions, which no message has.
    """
    from natsproxy.spark.report.collect import collect

    scribe = Scribe()
    names = [f"{first}{second}" for first in "abcdefgh" for second in "ijklmnop"]
    for n, name in enumerate(names):
        for subject in (f"chat+(x.{name}.said.{name}", f"few.{name[0]}"):
            scribe.frame(n * MS, 1, C2S, b"PUB %s 1\r\nx\r\n" % subject.encode())
        scribe.frame(n * MS, 1, C2S, b"SUB inbox.%s.in %d\r\n" % (name.encode(), n))
        for sid, subject in ((100 + n, f"room.{name}"), (200 + n, f"dev.device-{n}.cmd")):
            scribe.frame(n * MS, 1, C2S, b"SUB %s %d\r\n" % (subject.encode(), sid))
            denial = f"-ERR 'Permissions Violation for Subscription to \"{subject}\"'\r\n"
            scribe.frame(n * MS, 1, S2C, denial.encode())
    capture = write(tmp_path / "a.ncap", scribe.items)
    analyze(spark, [capture], tmp_path / "out", ["subjects", "subscriptions", "errors"])

    rows = Store(spark, tmp_path / "out").read("subjects").collect()
    found = {row.template: row.messages for row in rows}
    assert found == {"chat+(x.**.said.**": 64} | {f"few.{name}": 8 for name in "abcdefgh"}
    data = collect(spark, tmp_path / "out")
    assert {row["template"]: row["published"] for row in data["templates"]} == found
    denied = {"room.**": 64, "dev.*.cmd": 64}
    assert {row["template"]: row["count"] for row in data["errors"]["denied"]} == denied
    subscribed = {row["template"]: (row["count"], row["refused"]) for row in data["subscriptions"]}
    assert subscribed == {"inbox.**.in": (64, 0), "room.**": (64, 64), "dev.*.cmd": (64, 64)}


def test_several_captures_are_one(spark: SparkSession, tmp_path: Path) -> None:
    """Files and folders, in one DataFrame."""
    conversation(tmp_path / "a.ncap", 2)
    (tmp_path / "more").mkdir()
    conversation(tmp_path / "more" / "b.ncap", 3)
    assert read(spark, [tmp_path / "a.ncap", tmp_path / "more"]).count() == 10


def test_a_capture_of_nothing_makes_empty_tables(spark: SparkSession, tmp_path: Path) -> None:
    """A segment that was closed as soon as it was opened."""
    analyze(spark, [write(tmp_path / "a.ncap", [])], tmp_path / "out", ["gaps"])
    counts = [Store(spark, tmp_path / "out").read(name).count() for name in ("frames", "items", "gaps")]
    assert counts == [0, 0, 0]


@pytest.mark.long
def test_tables_of_rare_rows_need_no_spark_where_there_are_none(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The same columns as those that Spark would write, and no rows; one that has rows is written."""
    out, written = tmp_path / "out", dict[str, int]()
    frames, items = load(spark, [conversation(tmp_path / "a.ncap", 2)])
    expected = {name: derive(name, frames, items).toArrow() for name in RARE}
    derived = MagicMock(wraps=derive)
    monkeypatch.setattr("natsproxy.spark.jobs.analyze.derive", derived)
    analyze(spark, [tmp_path / "a.ncap"], out, RARE, written.__setitem__)
    assert [call.args[0] for call in derived.call_args_list] == ["gaps"]
    for name, table in expected.items():
        found = pq.read_table(out / name)
        assert [(column.name, column.type) for column in found.schema] == [
            (column.name, column.type) for column in table.schema
        ]
        assert found.to_pylist() == table.to_pylist()
        assert written[name] == table.num_rows == (name == "gaps")


@pytest.mark.long
@pytest.mark.parametrize("most", [100, 1])
def test_frames_of_no_exchange_are_left_out_before_pairing(
    known: Known, most: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The exchanges are those of all frames, and fewer frames are looked at; with too many, all are."""
    monkeypatch.setattr("natsproxy.spark.jobs.analyze.BEGINNINGS_MAX", most)
    given = list[DataFrame]()

    def noted(frames: DataFrame, **options: Any) -> DataFrame:
        given.append(frames)
        return exchanges(frames, **options)

    monkeypatch.setattr("natsproxy.spark.jobs.analyze.exchanges", noted)
    analyze(known.frames.sparkSession, known.captures, tmp_path / "out", ["requests", "pub_acks", "js_api"])
    for name in ("requests", "pub_acks", "js_api"):
        found = pq.read_table(tmp_path / "out" / name).to_pylist()
        assert Counter(map(repr, found)) == Counter(map(repr, known.rows(name))), name
    assert (given[0].count() < known.frames.count()) == (most == 100)


def test_foreign_folders_are_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    """A name of a table that is something else, and a folder in which another run is writing."""
    capture = conversation(tmp_path / "a.ncap", 1)
    (tmp_path / "errors").mkdir()
    (tmp_path / "errors" / "mine.txt").write_text("precious")
    with pytest.raises(NatsproxyError, match=r"errors is not a table of an analysis"):
        analyze(spark, [capture], tmp_path, ["errors"])
    assert (tmp_path / "errors" / "mine.txt").read_text() == "precious"

    (tmp_path / "out").mkdir()
    folder = os.open(tmp_path / "out", os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        with pytest.raises(NatsproxyError, match="out: another analysis is writing there"):
            analyze(spark, [capture], tmp_path / "out", ["errors"])
    finally:
        os.close(folder)


def test_an_error_of_a_capture_is_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    """Also where only Spark's own processes meet it."""
    other = tmp_path / "other.ncap"
    other.write_bytes(b"something else entirely")
    with pytest.raises(CaptureError, match=f"^{other}: this is not a natsproxy capture$"):
        analyze(spark, [other], tmp_path / "out", ["frames"])
    with pytest.raises(CaptureError, match=f"^{tmp_path}/none: no such file or folder"):
        analyze(spark, [tmp_path / "none"], tmp_path / "out", ["frames"])
    with pytest.raises(ConfigError, match="there is no table 'nope': there are frames, "):
        analyze(spark, [other], tmp_path / "out", ["nope"])


@contextmanager
def _largest_file(spark: SparkSession, size: int) -> Iterator[None]:
    """Let this process and Spark's write files of so many bytes at most: a full disk, for one test."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    _limit_files(spark, size)
    try:
        yield
    finally:
        _limit_files(spark, before[0])


def _limit_files(spark: SparkSession, size: int) -> None:
    jvm: Any = spark._jvm
    java = jvm.java.lang.ProcessHandle.current()
    below = java.descendants().toArray()  # its Python workers, and the one that makes them
    for pid in [os.getpid(), int(java.pid()), *(int(below[place].pid()) for place in range(len(below)))]:
        with suppress(ProcessLookupError):  # it ended meanwhile
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def test_a_full_disk_is_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    """The table is named, and does not count as whole."""
    capture = conversation(tmp_path / "a.ncap", 3_000)
    out = tmp_path / "out"
    with _largest_file(spark, 8 << 10), pytest.raises(NatsproxyError) as error:
        analyze(spark, [capture], out, ["gaps"])
    assert str(error.value) == f"{out}/frames: cannot write there: File too large"
    with pytest.raises(NatsproxyError, match="no complete table frames"):
        Store(spark, out).read("frames")


@pytest.mark.long
def test_a_stopped_watch_has_taken_all_blocks(spark: SparkSession, tmp_path: Path) -> None:
    """From an empty folder on; where it has written a batch run does not write, nor the other way round."""
    folder, out = tmp_path / "traffic", tmp_path / "out"
    folder.mkdir()
    watch(spark, [folder], out, ["gaps"], stop=lambda: True)
    assert Store(spark, out).read("frames").isEmpty()
    conversation(folder / "a.ncap", 3)
    conversation(folder / "b.ncap", 4)
    watch(spark, [folder], out, ["gaps"], stop=lambda: True)
    assert same(Store(spark, out).read("frames"), dated(read(spark, [folder], payload="256")))
    assert Store(spark, out).read("gaps").count() == 2

    with pytest.raises(NatsproxyError, match="holds the tables of a watch: choose another folder"):
        analyze(spark, [folder], out, ["gaps"])
    with Store(spark, tmp_path / "batch").writing():
        pass  # an empty analysis
    with pytest.raises(NatsproxyError, match="holds the tables of an analysis that was not watching"):
        watch(spark, [folder], tmp_path / "batch", stop=lambda: True)


class Watching:
    """`analyze --watch` as a process; its lines are read one by one."""

    def __init__(self, folder: Path, out: Path, tables: str = "liveness") -> None:
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "natsproxy",
                "analyze",
                str(folder),
                "--out",
                str(out),
                "--watch",
                "--every",
                "0.3",
                "--tables",
                tables,
                "--conf",
                "spark.sql.codegen.wholeStage=false",
                "--conf",
                "spark.sql.shuffle.partitions=1",
            ],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stderr is not None
        self._lines = self.process.stderr
        self._said = ""

    def frames(self) -> int:
        """Wait for a batch of frames; return its rows."""
        return int(self.wait_for("frames: ").split()[1])

    def wait_for(self, begin: str) -> str:
        """Return the next line that begins so."""
        for line in self._lines:
            self._said += line
            if line.startswith(begin):
                return line
        raise AssertionError(f"no such line: {self._said}")

    def end(self, number: signal.Signals) -> int:
        """Send a signal; return the exit code."""
        self.process.send_signal(number)
        self._said += self._lines.read()
        self._lines.close()
        return self.process.wait()


@pytest.mark.long
def test_a_killed_watch_takes_each_block_once(spark: SparkSession, tmp_path: Path) -> None:
    """A recorder writes on while the job is killed and started again: equal to one batch job at the end."""
    made = make(tmp_path / "whole", b"a", [[50] * 20, [70] * 20, [30] * 10])
    recorder, out = Growing(tmp_path / "growing", made), tmp_path / "out"
    part = sum(path.stat().st_size for path in made) // 5
    for end in (signal.SIGKILL, signal.SIGTERM):
        recorder.grow(part)
        job = Watching(recorder.folder, out)
        try:
            assert job.frames() > 0
            recorder.grow(part)
            assert job.frames() > 0
            recorder.grow(part)
        finally:
            code = job.end(end)
        assert code == (0 if end == signal.SIGTERM else -signal.SIGKILL), job._said
    assert re.search(r"^read: [1-9]\d* frames in \d+ batches, 0 items in 0 batches$", job._said, re.MULTILINE)

    assert not recorder.grow(0)
    store = Store(spark, out)
    whole = read(spark, [recorder.folder], payload="256")
    assert store.read("frames").count() == 2_700
    assert same(store.read("frames"), dated(whole))
    items = read(spark, [recorder.folder], what="items")
    assert same(store.read("liveness"), derive("liveness", whole, items))


def same_on_disk(one: DataFrame, other: DataFrame) -> bool:
    """Return `same`, for tables that do not fit here: by the sums of their rows' hashes."""

    def summed(table: DataFrame) -> Row | None:
        cells = [cell for n, name in enumerate(one.columns) for cell in (F.lit(n), F.col(name))]
        return table.agg(F.count("*"), F.sum(F.xxhash64(*cells).cast("decimal(38, 0)"))).first()

    return summed(one) == summed(other)


class Traffic:
    """A client that publishes to itself through a proxy, in a thread; a context manager.

    pause: seconds between two times forty messages.
    """

    def __init__(self, port: int, pause: float) -> None:
        self._port, self._pause = port, pause
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.messages = 0

    def _run(self) -> None:
        with socket.create_connection(("127.0.0.1", self._port)) as sock, sock.makefile("rb") as lines:
            sock.sendall(b"CONNECT {}\r\nSUB t.* 1\r\nPING\r\n")
            while lines.readline() != b"PONG\r\n":
                continue
            while not self._over.wait(self._pause):
                until = self.messages + 40
                asked = (b"t.%d _INBOX.%d" % (n % 7, n) for n in range(self.messages, until))
                sock.sendall(b"".join(b"PUB %s 5\r\nhello\r\n" % one for one in asked))
                while self.messages < until:
                    line = lines.readline()
                    assert line, "the connection was closed"
                    self.messages += line == b"hello\r\n"
                    if line == b"PING\r\n":
                        sock.sendall(b"PONG\r\n")

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()


@pytest.mark.long
def test_a_recorder_and_a_watch_side_by_side(
    nats_server: NatsServer, spark: SparkSession, tmp_path: Path
) -> None:
    """Five minutes of traffic; the job is killed twice, then stopped: its tables equal those of a batch job.

    The pause bounds the rows: each client uses the same reply subjects, which is much work to tell apart.
    """
    period = float(os.environ.get("NATSPROXY_WATCH", 100))
    folder, out = tmp_path / "traffic", tmp_path / "out"
    folder.mkdir()
    faulthandler.dump_traceback_later(600 + 20 * period, exit=True)  # a later end than that of other tests
    address = f"127.0.0.1:{nats_server.port}"
    with ProxyProcess(address, "--record", str(folder), "--record-rotate-every", "20s") as proxy:
        for end in (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM):
            job = Watching(folder, out, "requests,subjects,liveness")
            with Traffic(proxy.port, pause=0.05) as traffic:
                deadline = time.monotonic() + period
                while time.monotonic() < deadline:
                    assert job.frames() > 0
            assert traffic.messages > 1_000
            if end == signal.SIGTERM:
                assert proxy.drain() == 0
            assert job.end(end) == (0 if end == signal.SIGTERM else -signal.SIGKILL), job._said
    assert len(list(folder.glob("*.ncap"))) > period // 20
    store = Store(spark, out)
    whole = read(spark, [folder], payload="256")
    assert same_on_disk(store.read("frames"), dated(whole))
    assert same_on_disk(store.read("items"), read(spark, [folder], what="items"))
    for name in ("requests", "subjects", "liveness"):  # at once, of rows that were just found to be the same
        assert same_on_disk(derive(name, store.read("frames")), store.read(name)), name


@pytest.mark.long
def test_a_watch_of_a_recorder_that_deletes_its_old_segments(
    nats_server: NatsServer, spark: SparkSession, tmp_path: Path
) -> None:
    """They expire faster than it reads: each segment is in the tables, or the watch says that it is lost."""
    folder, out = tmp_path / "traffic", tmp_path / "out"
    folder.mkdir()
    limits = ("--record-rotate", "64KiB", "--record-keep", "3", "--record-flush", "50ms")
    with ProxyProcess(f"127.0.0.1:{nats_server.port}", "--record", str(folder), *limits) as proxy:
        job = Watching(folder, out, "gaps")
        with Traffic(proxy.port, pause=0.01) as traffic:
            job.wait_for("Warning: segment")
        assert proxy.drain() == 0
        assert job.end(signal.SIGTERM) == 0, job._said
    assert traffic.messages > 1_000
    assert "Traceback" not in job._said
    frames = Store(spark, out).read("frames")
    seen = {row["segment"] for row in frames.where("op != '_corrupt'").select("segment").distinct().collect()}
    told = [row["err"] for row in frames.where("op = '_corrupt'").select("err").distinct().collect()]
    found = [re.match(r"segments? (\d+)(?: to (\d+))? of recorder", clause) for clause in told]
    lost = {number for one in found if one for number in range(int(one[1]), int(one[2] or one[1]) + 1)}
    assert lost
    assert seen | lost == set(range(min(seen | lost), max(seen) + 1))
    assert all(clause in job._said for clause in told)


@pytest.mark.long
def test_the_notebook_runs(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every cell, in the session of the tests; its answers are those of the recordings."""
    root = Path(__file__).parents[3]
    monkeypatch.chdir(root)
    monkeypatch.setattr("natsproxy.spark.session.open_session", lambda cores: spark)
    monkeypatch.setattr("tempfile.mkdtemp", lambda prefix: str(tmp_path / "tables"))
    found = runpy.run_path(str(root / "deploy" / "notebook.py"))
    latency = {row["template"]: (row["requests"], row["p50"]) for row in found["slow"]}
    assert latency.keys() >= {"quotes.acme", "quotes.umbrella", "nobody.home"}
    assert latency.pop("nobody.home") == (1, None)  # a 503 is no latency
    assert all(ms > 0 for requests, ms in latency.values() if requests == 1)
    assert found["busiest"].count() > 5
    assert {row["verb"] for row in found["calls"].collect()} >= {"STREAM.CREATE"}
