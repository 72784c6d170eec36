"""The wire: bytes to frames and back.  No roles, no rules.

In flow the bytes of one direction of a connection; out flow segments: runs of frames that nobody wants,
single frames that somebody wants, and the place from which bytes cannot be framed.  `encode` makes bytes of
frames again.

Read `ops.py` first, the table of operations.  `scanner.py` has the rules of the scanner and chooses between
its twins: `_scanner.pyx` (compiled) and `_scanner_py.py`; both bring unusual frames to `grammar.py`.
`interest.py` describes the wanted frames; `parse.py` reads buffers that are known to be whole.
"""
