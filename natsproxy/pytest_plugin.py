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
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from natsproxy.errors import NatsproxyError
from natsproxy.testing import TestProxy, WaitTimeout, cassette

_MODES: Final = ("none", "once", "new_episodes", "all", "rewrite")
_RECORD_IT: Final = "record it with: pytest --nats-record=once --nats-upstream=nats://HOST:PORT"
_BARRIER: Final = 1.0  # seconds
_NAME: Final = 100  # characters of a file's name
_SHOWN: Final = 5  # unused recordings of a test that the summary names


@dataclass
class _Use:
    """What one test uses.  judged: how many mismatches were reported; passed: its body did."""

    tools: list[TestProxy | cassette] = field(default_factory=list)
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
    """Return the path and the other settings that a test's marker gives."""
    marker = node.get_closest_marker("nats_cassette")
    given = {} if marker is None else dict(marker.kwargs)
    path = given.pop("path", None)
    if marker is not None and marker.args:
        path = marker.args[0]
    wrong = sorted(given.keys() - {"bodies", "strict"})
    if wrong or (marker is not None and len(marker.args) > 1):
        raise NatsproxyError(f"nats_cassette takes path, bodies and strict, not {wrong or marker.args!r}")  # type: ignore[union-attr]
    return (default_path(node) if path is None else node.path.parent / path), given


# -- fixtures


@pytest.fixture
def nats_cassette(request: pytest.FixtureRequest) -> Iterator[cassette]:
    """Give the cassette of this test, playing or recording; `.url` is where clients connect."""
    use = request.node.stash.setdefault(_USE, _Use())
    try:
        path, more = _marked(request.node)
        strict = more.pop("strict", None)
        tape = cassette(
            path,
            _setting(request.config, "record"),
            upstream=_setting(request.config, "upstream") or None,
            strict=_setting(request.config, "strict") if strict is None else strict,
            seed=int(_setting(request.config, "seed")),
            **more,
        )
        tape.__enter__()
    except NatsproxyError as error:
        complaint = f"{error}\n{_RECORD_IT}"  # said outside, so that no chain of exceptions is shown
    else:
        complaint = ""
    if complaint:
        pytest.fail(complaint, pytrace=False)
    use.tools.append(tape)
    yield tape
    tape.close(keep=use.passed)
    if use.passed:
        _judge_late(use, tape)


def _judge_late(use: _Use, tape: cassette) -> None:
    late, unused = tape.mismatches()[use.judged :], tape.unused()
    if unused and not tape.strict:
        use.notes["unused"] = [str(tape.path), len(unused), unused[:_SHOWN]]
    if tape.recording:
        use.notes["recorded"] = f"recorded {tape.path}"
    elif tape.added:
        use.notes["recorded"] = f"{tape.added} frames added to {tape.path}"
    if tape.strict:
        late += [f"recorded, but not sent by any client: {one}" for one in unused]
    if late:
        pytest.fail(f"{tape.path}:\n" + "\n".join(late), pytrace=False)


@pytest.fixture
def nats_proxy(request: pytest.FixtureRequest) -> Iterator[TestProxy]:
    """Give a proxy before `--nats-upstream`, for faults and for looking at frames."""
    upstream = _setting(request.config, "upstream")
    if not upstream:
        pytest.fail("nats_proxy needs a server: pytest --nats-upstream=nats://HOST:PORT", pytrace=False)
    with TestProxy(upstream, seed=int(_setting(request.config, "seed"))) as proxy:
        request.node.stash.setdefault(_USE, _Use()).tools.append(proxy)
        yield proxy


# -- what a report says


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that passed but whose client sent what was never recorded."""
    result = yield
    use = item.stash.get(_USE, None)
    for tape in () if use is None else use.tools:
        if use is None or not isinstance(tape, cassette) or tape.recording:
            continue
        with suppress(WaitTimeout):  # a fault still holds something back: judged at teardown
            tape.barrier(_BARRIER)
        found = tape.mismatches()
        use.judged = len(found)
        if found:
            pytest.fail(f"{tape.path}:\n" + "\n".join(found), pytrace=False)
    return result


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
        report.sections += [("natsproxy", _story(tool)) for tool in use.tools]
    if report.when == "teardown":
        report.natsproxy = use.notes  # type: ignore[attr-defined] # reports keep what is plain data
    return report


def _story(tool: TestProxy | cassette) -> str:
    if not isinstance(tool, cassette):
        return f"proxy before {tool.upstream}, seed {tool.seed}\n{tool.story()}"
    end = ": not kept, since the test failed" if tool.recording else ""
    lines = [f"cassette {tool.path}, mode {tool.mode}, seed {tool.seed}{end}", *tool.mismatches()]
    return "\n".join([*lines, tool.story()])


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
