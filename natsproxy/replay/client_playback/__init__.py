"""Playback of a capture's clients against a live server.

The events of a capture and the bytes of a live server flow in; the recorded client frames flow out, each when
it is due and when the answers that it depends on have come.  `playback.py` is the state machine. `batches.py`
and `bulk_scan.py` keep plain messages together, `dependencies.py` finds the requirements of a frame,
`read_ahead.py` queues frames in a bounded window, `readiness.py` checks the requirements against `state.py`.
`player.py` drives the machine on trio; `replay_job.py` runs it several times and records it.

Read `dependencies.py` first, then `playback.py`.
"""
