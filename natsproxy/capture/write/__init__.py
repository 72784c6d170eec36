"""Items to blocks to segment files.

In flow items, on the traffic path; out flow files, written by a thread.  `builder.py` gathers items into a
block, `first_tokens.py` finds the subjects for its summary, `writer.py` writes blocks, index and footer.
Read `builder.py` first.
"""
