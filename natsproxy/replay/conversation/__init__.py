"""Captures as conversations: the part that both playbacks and the comparison share.

A capture flows in; steps (`steps.py`) flow out in recording order, and for the playback of a server
exchanges (`recorded_conversation.py`): client frames with the server frames that they caused. `causes.py`
finds the causes, `polls.py` the frames that change nothing, `matching.py` compares a live frame with a
recorded one, `identifier_map.py` translates the names that differ from run to run.

Read `steps.py` first.
"""
