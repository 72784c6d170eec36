"""Playback of a capture's server: live clients connect, no server is needed.

The events of a capture and the frames of live clients flow in; recorded server frames, adapted to the live
identifiers, flow out, and mismatches for a report.

`playback.py` is the state machine.  `pairing.py` finds the recorded connection of a `Client` (`client.py`),
and the recorded exchange of its frame, in what `progress.py` has left of the recording; `turns.py` knows
which poll's turn it is, `played.py` keeps what was played, and `counts.py` counts it.  A frame and what it
matched go to the effect sources (`effect_source.py`), which return actions: `delivery_requests.py` the
statuses of pull requests and heartbeats, `recorded_effects.py` what was recorded, `repeated_polls.py` the
answers to polls that come more often, `shared_work.py` what workers leave to others, and for unrecorded
frames `refusals.py`, with the nearest recorded frames and advice (`mismatch.py`), or `live_server.py`, with
`new_episodes.py` for the cassette.

`server.py` drives the machine on trio, with `upstream.py` for input that goes to a real server.

Read `playback.py` first.
"""
