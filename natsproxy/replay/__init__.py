"""Replay of captures: play the server to clients, play the clients to a server, compare two captures.

In: a capture.  Out: live traffic, a report or a longer capture.  `conversation/` reads a capture as
exchanges.  `server_playback/` stands in for the server, `client_playback/` for the clients; they import
nothing from each other.  `diff/` compares two captures, `cassette/` records and replays for tests.

Both playbacks are state machines without I/O (`playback.py`) with a driver on trio beside them (`server.py`,
`player.py`).  `observe.py` records a playback, `handshake.py` connects to a real server, `receipt.py` says
what a run was served.

Read `conversation/steps.py` first, then `server_playback/playback.py`.
"""
