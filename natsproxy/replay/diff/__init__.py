"""Comparison of two captures of one conversation.

Two captures flow in; a `DiffReport` flows out: rows per subject with counts, latencies and the first frames
that differ.  `compared_conversation.py` reads a capture as the frames that are compared
(`compared_frame.py`, `sequences.py`).  `frame_pairs.py` finds those that agree, with the matcher of the
playback; `partners.py` says which connections stand for each other.  Where very many frames are out of order,
`multiset_diff.py` compares them in bounded memory.  `compare.py` puts them together.

Read `compare.py` first.
"""
