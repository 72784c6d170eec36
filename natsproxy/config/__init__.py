"""Settings: layers of text and TOML in, typed immutable values out.

`settings` is the table: each setting is one field, from which flags, variables, files and `--help` are made
(see `natsproxy/option.py`).  A group of settings has a module of its own, with the types of its values and
its checks: `endpoints`, `tls`, `login`, `recording`, `admin`.  `files` reads
configuration and rules, with errors that name file, line and nearest key.  `fitting` replaces
`capture = "x.ncap"` in a rule's delay by the quantiles of the latencies in that capture.  The layers
themselves (defaults < file < environment < flags) are combined by click, in `cli/run.py`.

Read `settings` first.
"""
