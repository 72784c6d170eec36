"""Blocks as columns, for Arrow, Parquet and Spark.

Input: one block of a capture.  Output: one Arrow batch.  `table.py` has the columns and reads them in pure
Python.  Its compiled twin is `_columns.pyx`, a walk over the block's bytes, with `_builders.pyx` (columns
that grow row by row), `_subjects.pxd` (templates and patterns in C) and `_jetstream.pxd` (a message's
JetStream fields).  `arrow.py` makes batches of either (`compiled.py` says which is in use), `counts.py`
counts without Arrow.  Read `table.py` first.
"""
