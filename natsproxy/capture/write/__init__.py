"""Items to blocks to segment files.

In flow items, on the traffic path; out flow files, written by a thread.  `builder.py` chooses what gathers
items into a block: `_block.pyx`, or its pure twin.  `first_tokens.py` finds the subjects that the compiled
code cannot; `writer.py` writes blocks, index and footer.  Read `builder.py` first.
"""
