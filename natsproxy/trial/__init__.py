"""Rules tried on recordings: the verdict on each frame, by the engine that serves traffic.

`rehearsal.py` runs the rules over captures, whose frames `arrivals.py` orders.  `bound.py` binds the rules to
a connection, `consequences.py` has what follows from a verdict for later frames, and `report.py` counts and
compares with expectations.
"""
