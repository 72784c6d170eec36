"""One Spark session for all tests: starting one takes longer than most of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.captures import write
from tests.spark.generated_traffic import Conversation, record
from tests.spark.hop_captures import in_a_row, restarted
from tests.spark.known_conversation import write_known_conversation
from tests.spark.odd_captures import binary, damaged, skewed
from tests.spark.shared_replies import hostile, slow_and_fast

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    # To compile a plan takes longer than to run it on a few rows; the README's commands run compiled ones.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local session of two cores, with the data source registered.

    An editable install is no folder on the path, so Spark's own search does not see the source.
    """
    pytest.importorskip("pyspark", reason="the tables need pyspark: pip install 'natsproxy[spark]'")
    from natsproxy.spark.jobs.analyze import register
    from natsproxy.spark.session import local_session

    session = local_session(2, **SETTINGS)
    register(session)
    yield session
    session.stop()


def load(spark: SparkSession, captures: Iterable[Path]) -> tuple[DataFrame, DataFrame]:
    """Return the frames and the items of captures.

    Decoded here as the data source decodes them on a worker: its processes cost more than a test's work.
    """
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from natsproxy.spark.schema import FRAMES, ITEMS
    from natsproxy.spark.source.arrow_batches import arrow_schema, read_partition
    from natsproxy.spark.source.options import parse
    from natsproxy.spark.source.partitions import pack
    from natsproxy.spark.source.survey import contents
    from natsproxy.spark.tables import PAYLOAD_BYTES

    found = []
    for what, ddl in (("frames", FRAMES), ("items", ITEMS)):
        schema = StructType.fromDDL(ddl)
        assert isinstance(schema, StructType)
        given = {"paths": json.dumps(list(map(str, captures))), "what": what, "payload": str(PAYLOAD_BYTES)}
        options = parse(given)
        arrow = arrow_schema(schema)
        batches = [
            batch
            for partition in pack(map(contents, options.paths), options)
            for batch in read_partition(partition, arrow, options)
        ]
        # As one batch: from a table of several, Spark stops at the first that is empty.
        table = pa.Table.from_batches(batches, arrow).combine_chunks()
        found.append(spark.createDataFrame(table, schema))
    return found[0], found[1]


class Known:
    """Captures whose answers are known, and their tables, each computed once.

    They are read as one: the known conversation, the golden captures, generated traffic in small blocks,
    two proxies in a row, payloads that are no text, shared reply subjects, skew and damage, in an order
    and a split that have nothing to do with those of the recording.
    """

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        from natsproxy.spark.tables import exchanges

        self._spark = spark
        self.conversation_capture = write_known_conversation(folder / "story.ncap")
        self.conversation = Conversation(100)
        self.hostile, self.hostile_capture = hostile(0), folder / "hostile.ncap"
        golden = sorted((Path(__file__).parents[2] / "recordings").glob("*.ncap"))
        self.captures = [
            self.conversation_capture,
            *golden,
            record(folder / "conversation.ncap", self.conversation, block=20_000),
            *in_a_row(folder),
            *restarted(folder),
            binary(folder / "binary.ncap"),
            slow_and_fast(folder / "shared.ncap"),
            write(self.hostile_capture, self.hostile.items().items),
            skewed(folder / "skewed.ncap"),
            damaged(folder / "damaged.ncap"),
        ]
        frames, self.items = load(spark, self.captures)
        self.frames = frames.repartition(3)
        paired = exchanges(self.frames)
        self.paired = spark.createDataFrame(paired.toArrow(), paired.schema)
        self._tables: dict[str, DataFrame] = {}
        self._arrow: dict[str, pa.Table] = {}

    def table(self, name: str) -> DataFrame:
        """Return a table, not yet computed."""
        from natsproxy.spark.jobs.analyze import check
        from natsproxy.spark.tables import derive

        if name not in self._tables:
            statements = check(self._spark, self.captures, here=True) if name == "findings" else None
            self._tables[name] = derive(name, self.frames, self.items, self.paired, statements)
        return self._tables[name]

    def arrow(self, name: str) -> pa.Table:
        """Return a table."""
        if name not in self._arrow:
            self._arrow[name] = self.table(name).toArrow()
        return self._arrow[name]

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a table."""
        found: list[dict[str, Any]] = self.arrow(name).to_pylist()
        return found


@pytest.fixture(scope="session")
def known(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Known:
    """The captures that are known, with their tables."""
    return Known(spark, tmp_path_factory.mktemp("known"))
