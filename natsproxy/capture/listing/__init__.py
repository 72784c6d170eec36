"""Frames with what is known around them, for people and for JSON.

In flow items of a capture, or of a recorder as it records; out flow `Listed` frames: the frame, its client,
the request that it answers (`listing.py`), and its meaning (`natsproxy/protocol/meaning.py`).  `choice.py`
selects them, `exchanges.py` finds what belongs to what.  `row.py` makes objects of JSON of them and reads
those again; `cli/frame_lines.py` makes lines of text.  Every table is bounded.

Read `listing.py` first.
"""
