"""The selection of recorded traffic, and the removal of secrets.

Input: the items of a session.  Output: the items that may be written.  `redact.py` comes first and cannot be
turned off: it removes secrets from every record.  `recording_filter.py` then applies the user's choice of
connections, subjects and payloads.  Read `redact.py` first.
"""
