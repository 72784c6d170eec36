"""The engine: the chain of a proxy and the rules of one connection at work.

In: loaded rules (`RuleChain`), a connection's `View`, and its frames.  Out: decisions, link conditions,
firings.

Read `chain.py` first, then `rule_engine.py`, the rules of one connection: it finds the rules for a frame with
`rule_index.py`, adds up their verdicts with `decision_builder.py`, and keeps link rules in `link_rules.py`.
`static_decisions.py` has the decisions that are the same for all plain messages of a subject, and `batch.py`
carries them out on neighbours.  `trial.py` asks the rules about frames without a session, and `explain.py`
answers `natsproxy rules explain` with it.
"""
