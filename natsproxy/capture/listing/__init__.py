"""Frames with their context, for people and for JSON.

Input: items of a capture, or of a recorder as it records.  Output: `Listed` frames: the frame, its client,
the request that it answers (`listing.py`), and its meaning (`natsproxy/protocol/meaning.py`).  `choice.py`
selects them, `exchanges.py` groups them by exchange.  `row.py` converts them to JSON objects and back;
`cli/frame_lines.py` makes lines of text.  Every table is bounded.

Read `listing.py` first.
"""
