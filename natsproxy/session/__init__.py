"""One proxied connection as a state machine without I/O: events in, actions out.

In: bytes of a direction, the end of a stream, time, another chain of rules (`Session`).  Out: a list of
actions in order: send, half-close, record, emit an event, end the connection (`values.py`).

Read `session.py` first: it has the theory, and all that changes the machine.  Then `phase.py` (how far a
connection is), `direction.py` (the path of the bytes; `outbox.py` holds those that wait), `fences.py` (where
answers of the proxy are inserted among the server's), `subscriptions.py` and `login.py`; `values.py` has what
goes in and what comes out.
"""
