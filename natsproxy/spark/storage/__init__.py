"""The folder of an analysis: tables go in, and come out again if they are whole.

Jobs write tables of Parquet, a watch besides them the list of the folders that count; readers (the report, a
notebook, another job) get a table as a DataFrame, or a sentence that says why it is not there.  Everything is
written so that a process killed at any moment leaves no half-written table that a reader takes for whole.

Read `store.py` first: it reads and writes any analysis.  `manifest.py` and `watch_state.py` are the list of a
watch, on disk and in memory; `folder.py` is the file system beneath; `executor_writer.py` writes frames fast.
"""
