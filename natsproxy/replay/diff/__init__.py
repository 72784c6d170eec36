"""Comparison of two captures of one conversation.

In: two captures.  Out: a `DiffReport`, with rows per subject of counts, latencies and the first frames that
differ.  `compared_conversation.py` reads a capture as the frames that are compared (`compared_frame.py`,
`sequences.py`).  `partners.py` says which connections of the two correspond, `frame_pairs.py` which frames,
with the matcher of the playback.  If very many frames are out of order, `multiset_diff.py` compares them in
bounded memory.  `compare.py` makes the report.

Read `compare.py` first.
"""
