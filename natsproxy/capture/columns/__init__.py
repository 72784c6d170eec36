"""Blocks as columns, for Arrow, Parquet and Spark.

In flow one block of a capture, out flows one Arrow batch.  `table.py` has the columns and reads them in pure
Python; `_columns.pyx` is its compiled twin, a walk over the block's bytes; `arrow.py` chooses between them.
Read `table.py` first.
"""
