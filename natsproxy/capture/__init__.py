"""The capture format: write, read, follow, recover.

In flow the items of a recorder (frames, openings, firings, gaps, …); out flow files, and from files the same
items, frames, columns and exports.  `recordings/FORMAT.md` is the specification.

Read `format/records.py` first, then `format/blocks.py`.  `filter/` chooses and redacts items, `write/` makes
segment files of them, `text/` texts and back, `read/` opens both, `listing/` says what frames mean,
`columns/` makes Arrow batches of blocks, `export/` other formats.
"""
