"""Fixtures and settings of all tests: hypothesis profiles, a running server, a time limit."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.kit.servers import NatsServer
from tests.testing.zoo import recorded

settings.register_profile(
    "fast", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("deep", max_examples=5_000, deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile(os.environ.get("NATSPROXY_TEST_PROFILE", "fast"))

# A shell makes its background jobs ignore SIGINT; the programs that tests start would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What a terminal is like, and whether colours are wanted, is for those tests to say that are about it.
for variable in ("COLUMNS", "LINES", "TERM", "NO_COLOR", "FORCE_COLOR"):
    os.environ.pop(variable, None)


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_xdist_auto_num_workers() -> Generator[None, int, int]:
    """Return three workers for two cores.

    Tests wait for programs, servers and deadlines: one worker for each core leaves the cores idle.  With two
    they are full, but each test takes longer, as they take the caches from each other.
    """
    return 3 * (yield) // 2


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spare the garbage collector the thousands of collected tests: they live to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


TOGETHER = (
    "tests/spark/",
    "tests/admin/page/",
    "tests/replay/test_versions.py",
    "tests/test_shape.py",
    "tests/testing/test_zoo.py",
)
"""Tests that one worker runs together: they share a Java process, a browser or cached results."""


class Grouped(LoadScopeScheduling):  # type: ignore[misc] # xdist has no types
    """A scheduler that gives tests to workers one by one, and those of `TOGETHER` to one worker."""

    def _split_scope(self, nodeid: str) -> str:
        return next((group for group in TOGETHER if nodeid.startswith(group)), nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Return the scheduler of pytest-xdist."""
    return Grouped(config, log)


LIMIT = 300  # seconds for one test: a hang ends with all stacks
LONG_LIMIT = 6_000  # for one that is marked long: a soak takes twenty minutes, or up to eighty


@pytest.fixture(autouse=True)
def _no_hang(request: pytest.FixtureRequest) -> Iterator[None]:
    long = request.node.get_closest_marker("long") is not None
    faulthandler.dump_traceback_later(LONG_LIMIT if long else LIMIT, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NatsServer]:
    """Give one nats-server with JetStream for the whole run (of one worker)."""
    with NatsServer(jetstream=True) as server:
        yield server


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of the recordings of the programs in `tests/testing/zoo`, one for all workers."""
    base = tmp_path_factory.getbasetemp()
    return recorded(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base)
