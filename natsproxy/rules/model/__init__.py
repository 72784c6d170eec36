"""The model: the parts of a rule.

In: the settings that `file/` read.  Out: values that the engine asks per frame.  A rule (`rule.py`, which to
read first) is a selector (which frames: `selector.py`, `roles.py`), a gate (which of the matches: `gate.py`)
and an action, which returns a verdict (`verdicts.py`).  `rule_state.py` is a rule on one connection, with its
counts and its random numbers (`seeded_random.py`).
"""
