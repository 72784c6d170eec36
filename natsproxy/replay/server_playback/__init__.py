"""Playback of a capture's server: live clients connect, no server is needed.

The events of a capture and the frames of live clients flow in; recorded server frames, adapted to the live
identifiers, flow out, and mismatches for a report. `playback.py` is the state machine: `binding.py` chooses
the recorded connection of a client, `delivery.py` sends effects, `standing.py` the statuses of pull requests
and heartbeats, `repeats.py` answers polls that come more often, `mismatch_replies.py` answers unrecorded
input, `mismatch.py` finds the nearest recorded frames, and the options that would accept a live
one, `forwarding.py` passes unrecorded input to a real server, `new_episodes.py` collects it for the cassette.
`server.py` drives the machine on trio, with `upstream.py` for input that goes to a real server.

Read `playback.py` first.
"""
