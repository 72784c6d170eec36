"""The watch: captures that still grow flow in, tables that follow them flow out.

Two streams take the blocks of captures into `frames` and `items`, batch by batch, each exactly once
(`ingest.py`).  The other tables follow by the hour (`refresh.py`), and small files become large ones
(`compaction.py`).  The list of the folders that count is kept on disk
(`natsproxy/spark/storage/manifest.py`), so a watch that is killed goes on where it was.

Read `job.py` first: it is the loop that does these in turn.
"""
