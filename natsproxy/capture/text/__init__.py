"""Captures as text, for people to review, edit and compare; it plays like the binary form.

`writer.py` converts items to lines, `brief.py` chooses those that a cassette needs, `parser.py` converts
lines to items.  `statements.py` has statements and the lines below them, `frames.py` frames, `payload.py`
payloads, `values.py` times and other values.  `compiled.py` makes the binary form of a text, so that all
readers of captures read both.  `recordings/TEXT.md` specifies the form.

Read `frames.py` first.
"""
