"""The data source on a capture whose answers are known."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from natsproxy.capture.format.records import CloseRecord, FiringRecord, GapRecord, OpenRecord
from natsproxy.capture.read.frames import read_frames
from natsproxy.capture.read.reader import open_capture
from natsproxy.errors import ConfigError
from natsproxy.wire.ops import C2S, S2C
from tests.kit.captures import MONO, WALL, Scribe, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
MS = 1_000_000
REQUESTS = 40


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A requester and a responder; the n-th request takes n ms, of which the responder n - 0.5."""
    scribe = Scribe()
    scribe.items.append(OpenRecord(1, MONO, {"client": "10.0.0.1:1"}))
    scribe.frame(0, 2, C2S, b"SUB svc 1\r\n")
    for number in range(1, REQUESTS + 1):
        t, reply = number * 100 * MS, b"_INBOX.x.%d" % number
        scribe.frame(t, 1, C2S, b"PUB svc %s 1\r\nq\r\n" % reply)
        scribe.frame(t + MS // 4, 2, S2C, b"MSG svc 1 %s 1\r\nq\r\n" % reply)
        scribe.frame(t + number * MS - MS // 4, 2, C2S, b"PUB %s 1\r\na\r\n" % reply)
        scribe.frame(t + number * MS, 1, S2C, b"MSG %s 9 1\r\na\r\n" % reply)
    scribe.frame(6_000 * MS, 1, C2S, b"PUB nobody _INBOX.x.z 0\r\n\r\n")
    none = b"NATS/1.0 503\r\n\r\n"
    scribe.frame(6_001 * MS, 1, S2C, b"HMSG _INBOX.x.z 9 %d %d\r\n%s\r\n" % (len(none), len(none), none))
    ack = b"$JS.ACK.S.C.%d.1.1.1767225600000000000.0"
    for delivered, answer in ((1, b"-NAK"), (2, b"+ACK")):
        scribe.frame(7_000 * MS, 1, S2C, b"MSG s.a 8 %s 0\r\n\r\n" % (ack % delivered))
        scribe.frame(7_002 * MS, 1, C2S, b"PUB %s 4\r\n%s\r\n" % (ack % delivered, answer))
    scribe.frame(8_000 * MS, 1, C2S, b"PUB secret 1\r\nx\r\n", cause="no-secrets")
    scribe.frame(8_000 * MS, 1, S2C, b"-ERR 'Permissions Violation for Publish to \"secret\"'\r\n")
    firing = {"rule": "no-secrets", "kind": "deny", "action": "deny", "m": 1, "ordinal": 42, "delay": 0}
    scribe.items.append(FiringRecord(1, MONO + 8_000 * MS, firing))
    scribe.items.append(GapRecord(None, MONO + 8_500 * MS, {"reason": "the disk", "frames": 3, "bytes": 99}))
    scribe.items.append(CloseRecord(1, MONO + 9_000 * MS, "client-closed", {"c2s_bytes": 10}))
    return write(tmp_path_factory.mktemp("captures") / "known.ncap", scribe.items, per_block=17)


def test_every_frame_of_a_sequential_reader_is_there_once(spark: SparkSession, capture: Path) -> None:
    """In the same order, with the wall clock of the capture."""
    expected = [(one.conn.number, int(one.direction), one.data) for one in read_frames(open_capture(capture))]
    frames = spark.read.format("natscap").option("payload", "-1").load(str(capture))

    rows = frames.orderBy("block_off", "idx").select("conn_id", "dir", "op", "subject", "t_ns").collect()

    assert [(row.conn_id, row.dir) for row in rows] == [(conn, way) for conn, way, _ in expected]
    assert rows[0].t_ns == WALL


def test_any_split_gives_the_same_rows(spark: SparkSession, capture: Path) -> None:
    """One partition for each block, or one for all."""
    counts = []
    for size in ("1", "100000000"):
        reader = spark.read.format("natscap").option("partitionBytes", size)
        frames = reader.schema("op string, t_ns bigint").load(str(capture))
        counts.append(sorted(map(tuple, frames.groupBy("op").count().collect())))
    assert counts[0] == counts[1]
    assert frames.columns == ["op", "t_ns"]


def test_one_dataframe_may_be_used_again_and_again(spark: SparkSession, capture: Path) -> None:
    """Repeated, filtered, unioned, self-joined: here `pushFilters` of 4.3.0 is wrong."""
    frames = spark.read.format("natscap").load(str(capture))
    whole = frames.count()
    pubs = frames.where("op = 'PUB'").count()
    assert 0 < pubs < whole
    assert frames.count() == whole
    both = frames.where("op = 'PUB'").union(frames.where("op <> 'PUB'"))
    assert both.count() == whole
    keys = ["block_off", "idx"]
    assert frames.alias("a").join(frames.alias("b"), keys).count() == whole


def test_options_prune(spark: SparkSession, capture: Path) -> None:
    """Time, connection, operation, direction and subject."""
    reader = spark.read.format("natscap")
    assert reader.option("conn", "2").load(str(capture)).select("conn_id").distinct().count() == 1
    reader = spark.read.format("natscap").option("op", "PUB,HMSG").option("direction", "c2s")
    assert {row.op for row in reader.load(str(capture)).select("op").distinct().collect()} == {"PUB"}
    late = str(WALL + 7_000 * MS)
    reader = spark.read.format("natscap").option("from_ns", late).option("subject", "secret")
    assert reader.load(str(capture)).count() == 1


def test_a_misspelt_option_or_column_is_named(spark: SparkSession, capture: Path) -> None:
    """At once by our own call, and in the exception of Spark's; with what it may have meant."""
    from pyspark.errors import PySparkException

    from natsproxy.spark.jobs.analyze import read

    with pytest.raises(ConfigError, match=r"natscap has no option subjct: did you mean subject\?"):
        read(spark, [capture], subjct="svc")
    reader = spark.read.format("natscap")
    with pytest.raises(
        PySparkException, match="ConfigError: natscap has no option payloads: did you mean pay"
    ):
        reader.option("payloads", "1").load(str(capture)).count()
    reader = spark.read.format("natscap").schema("t_ns bigint, subjects string")
    with pytest.raises(
        PySparkException, match=r"ConfigError: natscap has no column subjects of frames: did you"
    ):
        reader.load(str(capture)).count()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"Partitionbytes": "1", "maxBytes": "2"}, "no option maxbytes: did you mean maxBytesPerTrigger"),
        ({"zzz": "1"}, "no option zzz: there are .*paths.*what.*partitionBytes"),
    ],
)
def test_options_have_names(given: dict[str, str], text: str) -> None:
    """In any letter case."""
    from natsproxy.spark.source.options import parse

    with pytest.raises(ConfigError, match=text):
        parse({"path": "x.ncap", **given})


def test_a_damaged_block_is_a_row_or_an_error(spark: SparkSession, capture: Path, tmp_path: Path) -> None:
    """As Spark's own sources: PERMISSIVE, DROPMALFORMED, FAILFAST."""
    from pyspark.errors import PySparkException

    raw = bytearray(capture.read_bytes())
    place = raw.index(b"PUB svc _INBOX.x.20 ")
    raw[place] ^= 0xFF
    broken = tmp_path / "broken.ncap"
    broken.write_bytes(raw)
    load = {
        mode: spark.read.format("natscap").option("mode", mode).load(str(broken))
        for mode in ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
    }

    assert load["PERMISSIVE"].where("op = '_corrupt'").count() == 1
    assert load["DROPMALFORMED"].count() == load["PERMISSIVE"].count() - 1
    with pytest.raises(PySparkException, match="checksum"):
        load["FAILFAST"].count()


@pytest.mark.long
def test_a_wheel_is_found_without_a_register_call(capture: Path, tmp_path: Path) -> None:
    """Installed as a wheel, read from another folder, in SQL."""
    pytest.importorskip("pyspark", reason="the tables need pyspark: pip install 'natsproxy[spark]'")
    project = Path(__file__).parents[3]
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target), str(project)]
    subprocess.run(pip, check=True, cwd=tmp_path)
    code = (
        "from natsproxy.spark.session import local_session\n"
        "spark = local_session(1)\n"
        f"spark.sql(\"CREATE TEMPORARY VIEW f USING natscap OPTIONS (path '{capture}')\")\n"
        "print('rows', spark.sql('SELECT count(*) FROM f').first()[0])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(target)},
    )
    assert f"rows {len(list(read_frames(open_capture(capture))))}" in done.stdout, done.stderr
