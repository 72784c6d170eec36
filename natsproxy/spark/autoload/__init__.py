"""Installed as the top-level package `pyspark_natsproxy`, which Spark finds without a register call."""

from natsproxy.spark.source.data_source import NatscapDataSource as DefaultSource

__all__ = ["DefaultSource"]
