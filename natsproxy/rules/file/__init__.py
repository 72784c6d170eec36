"""Rules files: rules from TOML or JSON, and rules as text again.

In: the text of a rules file, or tables.  Out: checked `Rule` values, or a ConfigError that names the place of
the mistake.  Read `parser.py` first; `values.py` converts single values, `reader.py` reads one table and
words its errors.  `serialize.py` goes the other way, and makes exact rules from the firings of a capture.
"""
