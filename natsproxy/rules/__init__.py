"""Rules: they decide on frames, reproducibly, and never see a socket or a clock.

In: a rules file (TOML or JSON), and for each connection its frames with their times and a `View` of it.  Out:
a `Decision` on each frame, the conditions of its links, and a firing for each time that a rule acted.

Read `interface.py` first: the promises between the session and the rules.  Then `model/` (the parts of a
rule), `kinds/drop.py` (the smallest kind) and `engine/chain.py` (how rules combine).  `file/` reads and
writes rules, `rewriting/` maps subjects both ways.
"""
