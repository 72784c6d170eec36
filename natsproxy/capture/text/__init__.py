"""Captures as text: a form that people review, edit and compare, and that plays as the binary form does.

Items flow in and lines flow out (`writer.py`), or lines flow in and items flow out (`parser.py`).  A
statement and the lines below it are `statements.py`, a frame `frames.py`, a payload `payload.py`, times and
other values `values.py`.  `compiled.py` makes the binary form of a text, so that all readers of captures read
both.  `recordings/TEXT.md` specifies the form.

Read `frames.py` first.
"""
