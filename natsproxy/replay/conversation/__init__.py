"""Captures as conversations: the part that both playbacks and the comparison share.

A capture flows in; steps (`steps.py`) flow out in recording order, and for the playback of a server a
`Recording` (`recording.py`) of exchanges and effects (`exchanges.py`): client frames, and the server frames
that they caused.  `causes.py` finds the causes, `frame_kind.py` the frames that change nothing,
`stored_messages.py` the publishes that reads show.

`matching.py` compares a live frame with a recorded one, JSON in `json_difference.py`, as `match_options.py`
says, other payloads as `payload_codecs.py` reads them; `difference.py` is the result for people.
`generated_values.py` knows the shapes of values that differ from run to run, `identifier_map.py` keeps their
pairs, and puts the live ones into recorded messages (`live_payloads.py`: into payloads of any form).

Read `steps.py` first.
"""
