"""Frames with what is known around them, for people and for JSON.

In flow items of a capture, or of a recorder as it records; out flow `Listed` frames: the frame, its client,
the request that it answers (`listing.py`), and its meaning (`natsproxy/protocol/meaning.py`).  `row.py` makes
objects of JSON of them; the command line makes lines of text.  Every table is bounded.
"""
