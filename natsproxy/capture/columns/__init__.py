"""Blocks as columns, for Arrow, Parquet and Spark."""
