"""The I/O of the traffic path, on trio: everything between the sockets, the session and the capture.

Bytes flow in from the two legs of each connection and out to the other leg; records flow out to one capture,
events to the subscribers.  The decisions are made elsewhere: by the session, and by the rules under it.

Read `proxy.py` first: `Proxy` is the surface that commands, tests and the testing API use.  `listener.py`
accepts clients, `arrivals.py` lets as many of them in as can be served, `opening.py` takes their legs
(`leg.py`) to where NATS begins, `connections.py` gives each a session, a server (`upstreams.py` chooses,
`dial.py` makes one attempt) and a relay (`relay.py`), which moves bytes.
`recording.py` begins and ends captures; `recorder.py` makes one, with `writer_thread.py` for the disk.
"""
