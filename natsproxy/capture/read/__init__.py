"""Segment files to blocks, items and frames.

Input: files, whole, growing, damaged or hostile, so limits are checked before memory is allocated.  Output:
items (`reader.py`) and frames with their ordinals and times (`frames.py`).  `segment.py` reads the blocks of
one file; `copied.py` finds blocks that several files hold; `recover.py` rebuilds a damaged file.
Read `reader.py` first.
"""
