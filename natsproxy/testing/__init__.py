"""Proxies, faults and cassettes for the tests of NATS programs, in any test framework.

    from natsproxy.testing import TestProxy, cassette, latency

    with TestProxy("nats://127.0.0.1:4222") as proxy:           # before a real server
    with cassette("orders.ncap", mode="once", upstream=URL) as tape:   # recorded once, then no server

Both give `.url` for the client under test, `.fault(...)`, `.frames(...)`, `.wait_for(...)` and `.barrier()`.
What waits has a blocking form and an awaitable one (`wait_for_async`, `barrier_async`; asyncio and trio); the
blocking one called inside a running event loop raises BlockingCall at once.  All faults: `testing.faults`.
`NatsServer` is a real server on a free port, for tests that need one and to record cassettes from.
"""

from natsproxy.replay.conversation.matching import ignoring_json
from natsproxy.testing import faults
from natsproxy.testing.cassettes import CassetteMismatch, cassette
from natsproxy.testing.faults import (
    Fault,
    answer,
    close,
    corrupt,
    deny,
    drop,
    duplicate,
    error,
    latency,
    refuse,
    reorder,
    reset,
    stop_reading,
    truncate,
)
from natsproxy.testing.proxy import TestProxy
from natsproxy.testing.seen import SeenFrame, WaitTimeout
from natsproxy.testing.server import NatsServer
from natsproxy.testing.thread import BlockingCall

__all__ = [
    "BlockingCall",
    "CassetteMismatch",
    "Fault",
    "NatsServer",
    "SeenFrame",
    "TestProxy",
    "WaitTimeout",
    "answer",
    "cassette",
    "close",
    "corrupt",
    "deny",
    "drop",
    "duplicate",
    "error",
    "faults",
    "ignoring_json",
    "latency",
    "refuse",
    "reorder",
    "reset",
    "stop_reading",
    "truncate",
]
