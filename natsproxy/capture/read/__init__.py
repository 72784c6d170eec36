"""Segment files to blocks, items and frames.

In flow files: whole, growing, damaged or hostile, so limits are checked before memory is taken.  Out flow
items (`reader.py`) and frames with their ordinals and times (`frames.py`).  `segment.py` reads the blocks of
one file; `copied.py` finds blocks that several files hold; `recover.py` makes a whole file of a damaged one.
Read `reader.py` first.
"""
