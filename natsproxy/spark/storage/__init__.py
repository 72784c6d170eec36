"""The folder of an analysis: tables are written to it, and read again if they are complete.

Jobs write Parquet tables, and a watch also the list of the folders that belong to them; readers (the report,
a notebook, another job) get a table as a DataFrame, or an error that says why it is missing.  A process that
is killed at any moment leaves no half-written table that a reader takes for a complete one.

Read `store.py` first: it reads and writes any analysis.  `manifest.py` and `watch_state.py` are the list of a
watch, on disk and in memory; `folder.py` is the file system below; `executor_writer.py` writes frames fast.
`permission_rows.py` reads one table without Spark.
"""
