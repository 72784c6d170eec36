"""Settings: layers of text and TOML in, typed immutable values out.

`options` is the table of all settings: name, reader, default and help of each; flags, variables and files are
made from it.  `build` reads a configuration file, with errors that name file, line and nearest key, and turns
option values into the `ProxySettings` of `settings`.  `fitting` replaces `capture = "x.ncap"` in a rule's
delay by the quantiles of the latencies in that capture.  The layers themselves (defaults < file < environment
< flags) are combined by click, in `cli/run.py`.

Read `options` first.
"""
