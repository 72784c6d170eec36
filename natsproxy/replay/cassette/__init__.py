"""Cassettes: captures that a test plays back or records anew.

A path, a record mode and an upstream server flow in; a URL for the program under test flows out, and after
the test a new or longer capture.  `record_mode.py` chooses between playing and recording, `merge.py` adds new
episodes to a capture, `cassette_file.py` puts either in its place.  `cassette_used.py` sums up what was
served, `fingerprint.py` tells the bytes that were played.

Read `record_mode.py` first.
"""
