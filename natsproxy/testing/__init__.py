"""Proxies, faults and cassettes for the tests of NATS programs, in any test framework.

    from natsproxy.testing import TestProxy, cassette, latency

    with TestProxy("nats://127.0.0.1:4222") as proxy:           # before a real server
    with cassette("orders.ncap", mode="once", upstream=URL) as tape:   # recorded once, then no server

Both have `.url` for the client under test, `.fault(...)`, `.frames(...)`, `.wait_for(...)` and `.barrier()`.
A fault that never fires fails its test.
Each wait has a blocking form and an awaitable one (`wait_for_async`, `barrier_async`; asyncio and trio); the
blocking form raises BlockingCall inside a running event loop.  `testing.faults` has all faults.
`NatsServer` is a real server on a free port, for tests that need one and to record cassettes from.
`sweep(program).check()` runs a program once for each place in its conversation and each fault there, and
raises SweepFailure with the frames whose loss, delay, repetition or cut breaks it.

Input: a test's calls, which run on a proxy of `net` in a trio thread (`thread`).  Output: frames from its tap
(`frame_log`).  Read `harness` first: the calls that `TestProxy` (`proxy`) and `cassette` (`cassettes`) share.
"""

from natsproxy.processes.nats_server import NatsServer
from natsproxy.sweep.kept_sweep import SweepFailure
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
from natsproxy.testing.frame_log import SeenFrame, WaitTimeout
from natsproxy.testing.harness import FaultNeverFired
from natsproxy.testing.proxy import TestProxy
from natsproxy.testing.sweeps import sweep, sweep_async
from natsproxy.testing.thread import BlockingCall

__all__ = [
    "BlockingCall",
    "CassetteMismatch",
    "Fault",
    "FaultNeverFired",
    "NatsServer",
    "SeenFrame",
    "SweepFailure",
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
    "latency",
    "refuse",
    "reorder",
    "reset",
    "stop_reading",
    "sweep",
    "sweep_async",
    "truncate",
]
