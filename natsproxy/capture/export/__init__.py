"""Captures for other tools: JSON lines, Parquet, pcapng.

In flow the frames of a capture that a query asks for, out flows one file, whole or not at all (`output.py`).
`json_lines.py` writes text, `parquet.py` a table, `pcapng.py` packets with a TCP connection made up around
them by `tcp.py`.  Read `json_lines.py` first.
"""
