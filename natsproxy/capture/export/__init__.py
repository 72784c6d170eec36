"""Captures for other tools: JSON lines, Parquet, pcapng.

Input: the frames of a capture that match a query.  Output: one file, whole or not at all (`output.py`).
`json_lines.py` writes text, `parquet.py` a table (to the file of `parquet_file.py`), `pcapng.py` packets in
TCP connections that `tcp.py` synthesizes.  Read `json_lines.py` first.
"""
