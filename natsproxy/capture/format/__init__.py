"""The format on disk: blocks, and the items in them.

Converts bytes to values and back.  `records.py` has the items and their msgpack form, one row per
kind; `blocks.py` packs and checks the framing, `_crc.pyx` computes its checksum.  The `.pxd` files read items
and frames in C, for `columns/`, `filter/` and `write/`.
Read `records.py` first; `recordings/FORMAT.md` is the specification.
"""
