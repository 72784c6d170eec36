"""Counts and latency of requests, by subject and by client.

A request is a publish with a reply subject, but for pulls and acks; it is answered by the first message on
that subject.  The scanners tell a meter of both as they pass over the frames (`wire/awaited.py`), so nobody
else looks at a frame on that account.  The latency is from the time at which the request was read from the
client to that at which its answer was read from the server: what the proxy delays is in it if it delays
requests, and not if it delays answers.  No latency has what no answer comes for: a request that a rule drops
or answers, one on whose reply subject another request waits already, and one whose reply subject a rule
rewrites.

Subjects are told apart by their template (`template.py`), or by the first of some patterns that matches;
others are not counted then.  Clients are told apart by account and user, and count from their
login on: what is not identified has no ticket.

Everything is bounded: `ROOM` subjects and as many clients have a series of their own, and those that come
later share one, as do subjects that are longer than `LONGEST` bytes or not ASCII.  A series that was not used
for `IDLE` makes room for a new one.

There are two meters with one interface and the same results: `_request_meter` (compiled from Cython) and
`_request_meter_py` (pure Python); threads that run without the interpreter lock use the compiled one.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from natsproxy.protocol._request_meter_py import BOUNDS, IDLE, LONGEST, ROOM, Bucket, Series

if not TYPE_CHECKING and os.environ.get("NATSPROXY_PURE", "") in ("", "0"):
    try:
        from natsproxy.protocol._request_meter import ClientMeter, RequestMeter
    except ImportError:  # not built: the pure twin serves
        from natsproxy.protocol._request_meter_py import ClientMeter, RequestMeter
else:
    from natsproxy.protocol._request_meter_py import ClientMeter, RequestMeter

__all__ = ["BOUNDS", "IDLE", "LONGEST", "ROOM", "Bucket", "ClientMeter", "RequestMeter", "Series"]
