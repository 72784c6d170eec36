"""Captures as a Spark data source: `spark.read.format("natscap")`, one Arrow batch per block.

    spark.read.format("natscap").load("traffic.ncap")
    spark.read.format("natscap").option("op", "PUB,HPUB").schema("t_ns bigint, subject string").load("s3://b/x")
    spark.readStream.format("natscap").load("captures/")          (`natsproxy/spark/source/stream.py`)

A partition holds neighbouring blocks of about 64 MiB, of one file or of many.  Projection is the schema that
the reader requests: only its columns are made.  Pruning is by options, which
`natsproxy/spark/source/options.py` lists.  The columns of frames are explained in
`natsproxy/capture/columns/table.py`.

The option `mode` says how to treat a damaged block, or bytes that are not a block.  PERMISSIVE gives one row
with op `_corrupt` and the reason in `err` (among items: a gap with that reason); DROPMALFORMED gives no row;
FAILFAST raises an error that names file and byte.

There is no `pushFilters`: in PySpark 4.3.0 it gives wrong results when a DataFrame is used twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from natsproxy.errors import ConfigError
from natsproxy.spark.schema import FRAMES, ITEMS, TABLES
from natsproxy.spark.source.arrow_batches import arrow_schema, read_partition
from natsproxy.spark.source.options import Options, parse
from natsproxy.spark.source.partitions import BlockPartition, pack, shares
from natsproxy.spark.source.statements import plan_checks, read_statements
from natsproxy.spark.source.stream import NatscapStream
from natsproxy.spark.source.survey import load, survey

if TYPE_CHECKING:
    import pyarrow as pa

_SCHEMAS: Final = {"frames": FRAMES, "items": ITEMS, "findings": TABLES["findings"]}
"""The columns of what is read."""


class NatscapDataSource(DataSource):
    """The data source `natscap`; Spark makes one object for each read."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "natscap"

    def schema(self) -> str:
        """Return all columns, as DDL, of what is read."""
        return _SCHEMAS[parse(self.options).what]

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a batch reader of the columns of `schema`.  Raises ConfigError for an unknown column."""
        options = _checked(schema, self.options)
        return (CheckReader if options.what == "findings" else NatscapReader)(schema, options)

    def streamReader(self, schema: StructType) -> NatscapStream:
        """Return a stream reader of the columns of `schema`.

        Raises ConfigError as `reader` does, and for findings, which need captures from their beginning.
        """
        options = _checked(schema, self.options)
        if options.what == "findings":
            raise ConfigError("natscap has no stream of findings: read them with spark.read")
        return NatscapStream(schema, options)


def _checked(schema: StructType, given: Mapping[str, str]) -> Options:
    """Return the options of a read; refuse columns that do not exist."""
    options = parse(given)
    known = re.findall(r"(?:^|, )(\w+) ", _SCHEMAS[options.what])
    for name in schema.names:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise ConfigError(f"natscap has no column {name} of {options.what}: {hint}")
    return options


class NatscapReader(DataSourceReader):
    """The batch reader: it plans partitions on the driver and reads blocks on the workers."""

    def __init__(self, schema: StructType, options: Options) -> None:
        self._schema = schema
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return the partitions whose blocks may hold wanted rows."""
        return plan(self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield one Arrow batch per block."""
        return read_partition(partition, arrow_schema(self._schema), self._options)


class CheckReader(NatscapReader):
    """The batch reader of findings: a task reads one recording."""

    def partitions(self) -> Sequence[InputPartition]:
        """Return the recordings and their checks."""
        return plan_checks(self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield one Arrow batch."""
        return read_statements(partition, arrow_schema(self._schema), self._options)


def plan(options: Options) -> list[BlockPartition]:
    """Return the partitions of captures with the blocks that may hold wanted rows."""
    files = survey(options.paths, options.query) if options.survey is None else load(options.survey)
    return list(pack(files, options, shares(files)))
