"""Rewriting: the server sees other subjects than the client, in both directions.

In: a frame and the rewrite rules of its connection.  Out: the frame in the other side's subjects, and a trace
of the changes for its firing.  Read `subjects.py` first, the mapping of subjects both ways; `frames.py`
applies it to the places of a frame that hold subjects, and counts and reports the changes; `jetstream_api.py`
applies it to JetStream API subjects and bodies.
"""
