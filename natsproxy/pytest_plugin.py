"""The pytest plugin: fixtures over `natsproxy.testing`, and what a report says of them.

`@pytest.mark.nats_cassette` gives a test the fixture `nats_cassette`: the server of its own capture,
`cassettes/<module>/<test>.ncap` beside the module.  The mode is `--nats-record` (default `none`: no upstream
is dialled, so CI can record nothing by accident); modes that record take the server from `--nats-upstream`.
The fixture `nats_proxy` is a proxy before `--nats-upstream`, for faults.  Each option has a key of the same
name in the ini file (`nats_record = once`); PYTEST_ADDOPTS sets them from the environment.

How a test is judged
1. When its body has passed, a barrier makes sure that all it has sent was looked at; what was never recorded
   fails it there.  What a fixture sends later is judged at teardown.
2. Recordings that it did not use are named at the end of the run; with `--nats-strict` they fail it.
3. A failure carries a section: path, mode, seed, what differed, the faults and the last frames.
4. What a test recorded is kept if it passed.
All of it travels in reports, so it is the same under pytest-xdist, where a worker runs the test.

pytest loads this module in every run of everybody who has natsproxy installed, so it stays light: the proxy
is imported by the first test that takes a fixture.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from natsproxy.errors import NatsproxyError

if TYPE_CHECKING:
    from natsproxy.testing import TestProxy, cassette

_MODES: Final = ("none", "once", "new_episodes", "all", "rewrite")
_RECORD_IT: Final = "record it with: pytest --nats-record=once --nats-upstream=nats://HOST:PORT"
_BARRIER: Final = 1.0  # seconds
_NAME: Final = 100  # characters of a file's name
_SHOWN: Final = 5  # unused recordings of a test that the summary names


@dataclass
class _Use:
    """What one run of a test uses.  judged: how many mismatches were reported; passed: its body did."""

    tape: cassette | None = None
    proxy: TestProxy | None = None
    judged: int = 0
    passed: bool = False
    notes: dict[str, Any] = field(default_factory=dict)


_USE: Final = pytest.StashKey[_Use]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options and their ini keys."""
    group = parser.getgroup("natsproxy")
    group.addoption("--nats-record", choices=_MODES, default=None, help="How cassettes are recorded (none).")
    group.addoption("--nats-upstream", default=None, help="The server to record from: nats://HOST:PORT.")
    group.addoption(
        "--nats-strict", action="store_true", default=None, help="Fail on recordings that were not used."
    )
    group.addoption("--nats-seed", type=int, default=None, help="The seed of faults with chance (0).")
    parser.addini("nats_record", "How cassettes are recorded: " + ", ".join(_MODES), default="none")
    parser.addini("nats_upstream", "The server to record from: nats://HOST:PORT", default="")
    parser.addini("nats_strict", "Fail on recordings that were not used", type="bool", default=False)
    parser.addini("nats_seed", "The seed of faults with chance", default="0")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker; refuse settings that mean nothing."""
    config.addinivalue_line(
        "markers",
        "nats_cassette(path=None, *, bodies=None, strict=None): play this test's NATS server from a capture",
    )
    if _setting(config, "record") not in _MODES:
        raise pytest.UsageError(f"nats_record = {_setting(config, 'record')!r}: one of {', '.join(_MODES)}")
    if not str(_setting(config, "seed")).isdigit():
        raise pytest.UsageError(f"nats_seed = {_setting(config, 'seed')!r} is no whole number")
    config.pluginmanager.register(_Summary(), "natsproxy-summary")


def _setting(config: pytest.Config, name: str) -> Any:
    given = config.getoption(f"--nats-{name}")
    return config.getini(f"nats_{name}") if given is None else given


def default_path(node: pytest.Item) -> Path:
    """Return where the cassette of a test lies: by module, class and name, distinct per parameter set."""
    classes = [str(one.name) for one in node.listchain() if isinstance(one, pytest.Class)]
    name = ".".join([*classes, node.name.replace("[", ".", 1).removesuffix("]")])
    safe = re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII)
    if safe != name or len(safe) > _NAME:
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]  # two names may look the same without it
        safe = f"{safe[:_NAME]}-{digest}"
    return node.path.parent / "cassettes" / node.path.stem / f"{safe}.ncap"


def _marked(node: pytest.Item) -> tuple[Path, dict[str, Any]]:
    """Return the path and the other settings that a test's markers give; the nearest marker wins."""
    given: dict[str, Any] = {}
    for marker in reversed(list(node.iter_markers("nats_cassette"))):
        given |= {**dict(zip(("path",), marker.args, strict=False)), **marker.kwargs}
        wrong = [*map(repr, marker.args[1:]), *sorted(given.keys() - {"path", "bodies", "strict"})]
        if wrong:
            raise NatsproxyError(f"nats_cassette takes path, bodies and strict, not {', '.join(wrong)}")
    path = given.pop("path", None)
    return (default_path(node) if path is None else node.path.parent / path), given


# -- fixtures


@pytest.fixture
def nats_cassette(request: pytest.FixtureRequest) -> Iterator[cassette]:
    """Give the cassette of this test, playing or recording; `.url` is where clients connect."""
    from natsproxy.testing import cassette

    use = request.node.stash[_USE]
    mode, upstream, strict, seed = (
        _setting(request.config, name) for name in ("record", "upstream", "strict", "seed")
    )
    path, complaint = None, ""
    try:
        path, more = _marked(request.node)
        tape = cassette(path, mode, upstream=upstream or None, seed=int(seed), **{"strict": strict, **more})
        tape.__enter__()
    except NatsproxyError as error:
        complaint = str(error)
    if complaint:  # said out here, so that no chain of exceptions is shown
        missing = path is not None and not path.exists() and not upstream
        pytest.fail(f"{complaint}\n{_RECORD_IT}" if missing else complaint, pytrace=False)
    use.tape = tape
    yield tape
    _blame(tape, _close(use, tape))


def _blame(tape: cassette, complaints: list[str]) -> None:
    """Fail a test for what its cassette complains of, if it does."""
    from natsproxy.testing.cassettes import brief

    if complaints:
        pytest.fail("\n".join([f"{tape.path}:", *brief(complaints)]), pytrace=False)


def _close(use: _Use, tape: cassette) -> list[str]:
    """End a cassette, note what became of it, and return what its test is blamed for."""
    try:
        tape.close(keep=use.passed)
    except NatsproxyError as error:
        return [str(error)]
    if not use.passed:
        return []
    late, unused = tape.mismatches()[use.judged :], tape.unused()
    if tape.recording:
        use.notes["recorded"] = f"recorded {tape.path}"
    elif tape.added:
        use.notes["recorded"] = f"{tape.added} frames added to {tape.path}"
    if tape.strict:
        late += [f"recorded, but not sent by any client: {one}" for one in unused]
    elif unused:
        use.notes["unused"] = [str(tape.path), len(unused), unused[:_SHOWN]]
    return late


@pytest.fixture
def nats_proxy(request: pytest.FixtureRequest) -> Iterator[TestProxy]:
    """Give a proxy before `--nats-upstream`, for faults and for looking at frames."""
    from natsproxy.testing import TestProxy

    upstream = _setting(request.config, "upstream")
    complaint = "" if upstream else "nats_proxy needs a server: pytest --nats-upstream=nats://HOST:PORT"
    try:
        proxy = TestProxy(upstream, seed=int(_setting(request.config, "seed")))
    except NatsproxyError as error:
        complaint = complaint or str(error)
    if complaint:
        pytest.fail(complaint, pytrace=False)
    with proxy:
        request.node.stash[_USE].proxy = proxy
        yield proxy


# -- what a report says


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begin anew (plugins may run a test again); refuse a marker that does nothing."""
    item.stash[_USE] = _Use()
    marked = any(marker.name == "nats_cassette" for marker in item.own_markers)
    if marked and "nats_cassette" not in getattr(item, "fixturenames", ()):
        pytest.fail("marked nats_cassette, but it does not take the fixture of that name", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that passed but whose client sent what was never recorded."""
    result = yield
    use = item.stash[_USE]
    if use.tape is not None and not use.tape.recording:
        found = _sent_so_far(use.tape)
        use.judged = len(found)
        _blame(use.tape, found)
    return result


def _sent_so_far(tape: cassette) -> list[str]:
    """Return what differed in all that was sent up to now."""
    from natsproxy.testing import WaitTimeout

    try:
        with suppress(WaitTimeout):  # a fault keeps the answer away: judged at teardown
            tape.barrier(_BARRIER)
    except NatsproxyError as error:
        return [str(error)]
    return tape.mismatches()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put what a person needs beside a failure, and the notes of a test into its last report."""
    report = yield
    use = item.stash.get(_USE, None)
    if use is None:
        return report
    if report.when == "call":
        use.passed = report.passed
    if report.failed:
        tools = [tool for tool in (use.tape, use.proxy) if tool is not None]
        report.sections += [("natsproxy", tool.story()) for tool in tools]
    if report.when == "teardown":
        report.natsproxy = use.notes  # type: ignore[attr-defined] # reports keep what is plain data
    return report


class _Summary:
    """Collects the notes of all tests, in whatever process they ran, and says them at the end."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, dict[str, Any]]] = []

    def pytest_report_header(self, config: pytest.Config) -> str | None:
        """Say that this run may record."""
        mode = _setting(config, "record")
        return None if mode == "none" else f"natsproxy: cassettes in mode {mode}"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the notes."""
        notes = getattr(report, "natsproxy", None)
        if notes:
            self.notes.append((report.nodeid, notes))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name the recordings that were made and those that were not used."""
        if not self.notes:
            return
        terminalreporter.section("natsproxy")
        for nodeid, notes in sorted(self.notes, key=lambda one: one[0]):
            if "recorded" in notes:
                terminalreporter.write_line(f"{nodeid}: {notes['recorded']}")
            if "unused" in notes:
                path, count, shown = notes["unused"]
                terminalreporter.write_line(f"{nodeid}: {count} recorded frames not used, in {path}:")
                more = [f"and {count - len(shown)} more"] if count > len(shown) else []
                for line in (*shown, *more):
                    terminalreporter.write_line(f"  {line}")
