"""Captures for other tools: JSON lines, Parquet, pcapng.

In flow the frames of a capture that a query asks for, out flows one file, whole or not at all (`output.py`).
`json_lines.py` writes text, `parquet.py` a table (`parquet_file.py` the file of it), `pcapng.py` packets, for
which `tcp.py` makes up the TCP connections.  Read `json_lines.py` first.
"""
