"""The selection of recorded traffic, and the removal of secrets.

In flow the items of a session, out flow the items that may be written.  `redact.py` comes first and is no
setting: secrets leave every record.  `recording_filter.py` then applies the user's choice of connections,
subjects and payloads.  Read `redact.py` first.
"""
