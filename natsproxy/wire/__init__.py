"""The wire: bytes to frames and back.  No roles, no rules.

In: the bytes of one direction of a connection.  Out: segments, which are runs of frames that nobody wants,
single frames that somebody wants, and the place from which bytes cannot be framed.  `encode` turns frames
back into bytes.

Read `ops.py` first, the table of operations.  `scanner.py` has the rules of the scanner and chooses between
its twins: `_scanner.pyx` (compiled) and `_scanner_py.py`; both leave unusual frames to `grammar.py`.
`interest.py` describes the wanted frames; `parse.py` reads buffers that are known to be whole.
"""
