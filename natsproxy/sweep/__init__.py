"""The sweep: run a program once for each place in its conversation and each fault there, and judge each run.

Input: a program and a world for it (a server of its own, the user's server, a cassette).  Output: findings,
each with the rules that reproduce it.

Read `values` first.  `positions` finds the places in the recordings of the baseline, `faults` has the table
of what can happen at one, `plan` puts them in order, `runner` runs the program once, with a server from one
of the `worlds`, `stacks` asks where it hangs, `verdicts` judges a run, `findings` groups what failed,
`folder` is what is kept on disk, `report` shows it.  `sweeping` is the machine that calls them all, and
`kept_sweep` is a sweep with its folder: the command and `natsproxy.testing.sweep` begin there.
"""
