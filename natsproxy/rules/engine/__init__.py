"""The engine: the chain of a proxy and the rules of one connection at work.

In: loaded rules (`RuleChain`), a connection's `View`, and its frames.  Out: decisions, link conditions,
firings.

Read `chain.py` first, then `rule_engine.py`, the rules of one connection: it finds the rules for a frame with
`rule_index.py`, adds up their verdicts with `decision_builder.py`, and keeps link rules in
`link_rules.py`.  `fastpath.py`, `cached_decision.py` and `batch.py` decide on neighbouring plain
messages together.  `trial.py` asks the rules about frames without a session, and `explain.py` answers
`natsproxy rules explain` with it.
"""
