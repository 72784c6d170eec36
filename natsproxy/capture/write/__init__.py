"""Items to blocks to segment files.

Input: items, on the traffic path.  Output: files, written by a thread.  `builder.py` chooses the block
builder: `_block.pyx`, or its pure twin.  `first_tokens.py` finds the subjects that the compiled
code cannot; `writer.py` writes blocks, index and footer.  Read `builder.py` first.
"""
