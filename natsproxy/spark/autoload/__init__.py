"""The top-level package `pyspark_natsproxy`, under which this folder is installed.

Spark looks for data sources in packages named `pyspark_*`, so `format("natscap")` needs no `register` call.
"""

from natsproxy.spark.source.data_source import NatscapDataSource as DefaultSource

__all__ = ["DefaultSource"]
