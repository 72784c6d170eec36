"""The capture format: write, read, follow, recover.

Input: the items of a recorder (frames, opened connections, firings, gaps, …).  Output: files, and from files
the same items, frames, columns and exports.  `recordings/FORMAT.md` is the specification.

Read `format/records.py` first, then `format/blocks.py`.  `filter/` selects and redacts items, `write/` writes
them to segment files, `text/` converts to text and back, `read/` reads both, `listing/` adds context and
meaning to frames, `columns/` makes Arrow batches of blocks, `export/` writes other formats.
"""
