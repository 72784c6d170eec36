"""Cassettes: captures that a test plays back or records anew.

In: a path, a record mode and an upstream server.  Out: a URL for the program under test and, after the test,
a new or longer capture.  `record_mode.py` chooses between playing and recording, `merge.py` adds new episodes
to a capture, `cassette_file.py` replaces the old file.  `cassette_used.py` sums up what was served,
`fingerprint.py` hashes the bytes that were played.

Read `record_mode.py` first.
"""
