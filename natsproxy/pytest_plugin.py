"""The pytest plugin: thin fixtures over `natsproxy.testing`.

`@pytest.mark.nats_cassette` gives a test the fixture `nats_cassette`: the server of its own capture,
`cassettes/<module>/<test>.ncap` beside the module.  The mode is `--nats-record` (default `none`: no upstream
is dialled, so CI can record nothing by accident); modes that record take the server from `--nats-upstream`.
The fixture `nats_proxy` is a proxy before `--nats-upstream`, for faults.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from natsproxy.errors import NatsproxyError
from natsproxy.testing import TestProxy, cassette

_MODES = ("none", "once", "new_episodes", "all", "rewrite")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("natsproxy")
    group.addoption("--nats-record", choices=_MODES, default="none", help="How cassettes are recorded.")
    group.addoption("--nats-upstream", default=None, help="The server to record from: nats://HOST:PORT.")
    group.addoption("--nats-strict", action="store_true", help="Fail on recordings that were not used.")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers", "nats_cassette(path=None): play this test's NATS server from a capture"
    )


def default_path(request: pytest.FixtureRequest) -> Path:
    """Return where a test's cassette lies: by module and test name."""
    module = Path(str(request.path))
    name = re.sub(r"[^\w.-]+", "-", request.node.name).strip("-")
    return module.parent / "cassettes" / module.stem / f"{name}.ncap"


@pytest.fixture
def nats_cassette(request: pytest.FixtureRequest) -> Iterator[cassette]:
    """Give the cassette of this test, playing or recording; `.url` is where clients connect."""
    marker = request.node.get_closest_marker("nats_cassette")
    given = marker.args[0] if marker is not None and marker.args else None
    path = default_path(request) if given is None else Path(str(request.path)).parent / given
    path.parent.mkdir(parents=True, exist_ok=True)
    option = request.config.getoption
    try:
        tape = cassette(
            path, option("--nats-record"), upstream=option("--nats-upstream"), strict=option("--nats-strict")
        )
        tape.__enter__()
    except NatsproxyError as error:
        pytest.fail(
            f"{error}\nrecord it with: pytest --nats-record=once --nats-upstream=nats://HOST:PORT",
            pytrace=False,
        )
    request.node.add_report_section("setup", "natsproxy", f"cassette {path}")
    yield tape
    tape.__exit__(KeyError, None, None)  # stop without judging: the complaints are reported below
    complaints = tape.complaints()
    if complaints:
        pytest.fail(f"{path}:\n" + "\n".join(complaints), pytrace=False)


@pytest.fixture
def nats_proxy(request: pytest.FixtureRequest) -> Iterator[TestProxy]:
    """Give a proxy before `--nats-upstream`, for faults and for looking at frames."""
    upstream = request.config.getoption("--nats-upstream")
    if upstream is None:
        pytest.fail("nats_proxy needs a server: pytest --nats-upstream=nats://HOST:PORT", pytrace=False)
    with TestProxy(upstream) as proxy:
        request.node.add_report_section("setup", "natsproxy", f"proxy {proxy.url}, seed {proxy.seed}")
        yield proxy
