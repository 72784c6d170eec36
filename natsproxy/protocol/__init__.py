"""The meaning of frames: pure functions and small immutable types over bytes.

Input: subjects, headers, payloads and arguments as they are on the wire.  Output: values with the meaning
that nats-server or its clients give them.  No I/O, no clock, nothing above `wire`.

Read `subjects.py` first: everything matches subjects by its rules.  `patternset.py` matches many patterns at
once; `mapping.py` is the server's subject mapping, `permissions.py` its permissions.
`connect.py` and `info.py` read the greeting (with `gojson.py`, Go's JSON), `errors.py` the -ERR texts,
`jetstream.py` API, acks and statuses.  `identifiers.py` and `template.py` recognise generated names,
`folding.py` finds positions with too many names; `redaction.py` withholds secrets.
"""
