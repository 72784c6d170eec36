"""Comparison of two captures of one conversation.

Two captures flow in; a `DiffReport` flows out: rows per subject with counts, latencies and the first frames
that differ.  `normalize.py` removes the parts of a frame that differ from run to run,
`normalized_conversation.py` applies it to a capture, `multiset_diff.py` finds the difference in bounded
memory, `compare.py` puts them together.

Read `compare.py` first.
"""
