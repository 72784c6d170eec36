"""The `natscap` data source of Spark: captures as Arrow batches.

A read names captures (files, folders, globs, URLs) and options; Spark gets the rows as a DataFrame or as a
stream.  On the driver, `paths.py` finds the segments, `survey.py` lists their blocks, and `partitions.py`
divides them into tasks, each block once.  On the workers, `arrow_batches.py` decodes the blocks of one task.
`stream.py` does the same for captures that still grow.

Read `data_source.py` first, then `survey.py` and `partitions.py`.
"""
