"""The pytest plugin: the fixtures `nats_cassette` and `nats_proxy`, and their part of reports.

`nats_cassette` is the server of the test's own capture, `cassettes/<module>/<test>.ncap` beside the module
or below `--nats-cassette-dir` (`<test>.nats.txt` with `--nats-cassette-format text`); the marker of the same
name changes its settings, and the fixture `nats_scrub` what is written.  The mode is `--nats-record` (default
`none`: no upstream is dialled, so CI cannot record by accident); recording modes need `--nats-upstream`.
`nats_proxy` is a proxy before `--nats-upstream`, for faults.  Each option has a key in the ini file
(`nats_record = once`); PYTEST_ADDOPTS sets options from the environment.

The verdict on a test
1. After its body has passed, a barrier ensures that every frame it sent was compared; frames that were never
   recorded fail the test there.  Frames that a fixture sends later are judged at teardown.  Where the body
   failed, the message begins with these frames, since their answers were errors.
2. Recorded frames that no client sent fail the test, too: by default those that change something, with
   `--nats-strict` all, with `--nats-no-strict` none.  The others are named at the end of the run.
3. A failure has a section: path, mode, seed, learned values, faults and the last frames.
4. A recording is kept if its test passed.
5. With `--nats-sweep` a test that has passed is swept (`pytest_sweep`), and fails with what was found.
6. The session leaves a receipt with a row for each test, and fails where that has less than was asked for.
All of this travels in reports, so pytest-xdist, which runs tests in workers, shows the same.

pytest loads this module wherever natsproxy is installed, so it stays light: the first test with a fixture
imports the proxy.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pytest

from natsproxy.errors import ConfigError, NatsproxyError
from natsproxy.pytest_receipt import SessionReceipt
from natsproxy.pytest_settings import (
    FAILED,
    add_options,
    check_settings,
    last_failed,
    marked,
    mode_of,
    plugin_settings,
    record_command,
    sweeps,
    swept,
    upstream_tls,
)

if TYPE_CHECKING:
    from natsproxy.testing import TestProxy, cassette

_RECORD_HINT: Final = "record it with: pytest --nats-record=once --nats-upstream=nats://HOST:PORT"
_BARRIER: Final = 1.0  # seconds
_SHOWN: Final = 5  # unused frames of a test that the summary shows


@dataclass
class _Use:
    """The tools of one run of a test.

    judged: the number of mismatches that were reported.  passed: True if the test's body passed.  holds: True
    if its end decides.  complaint: of the end of the test.
    """

    tape: cassette | None = None
    proxy: TestProxy | None = None
    judged: int = 0
    passed: bool = False
    holds: bool = False
    complaint: str = ""
    notes: dict[str, Any] = field(default_factory=dict)


_USE: Final = pytest.StashKey[_Use]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options and their ini keys."""
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker; refuse invalid settings."""
    check_settings(config)
    if swept(config):
        return
    config.pluginmanager.register(_Summary(config), "natsproxy-summary")


# -- fixtures


@pytest.fixture(scope="session")
def nats_scrub() -> Callable[[str, Mapping[str, str], bytes], bytes] | None:
    """Give the function that replaces payloads before they are written; a conftest overrides it."""
    return None


@pytest.fixture
def nats_cassette(request: pytest.FixtureRequest, nats_scrub: Any) -> Iterator[cassette | TestProxy]:
    """Give the cassette of this test, playing or recording; `.url` is where clients connect."""
    if swept(request.config):
        yield request.getfixturevalue("nats_proxy")
        return
    from natsproxy.testing import cassette

    use = request.node.stash[_USE]
    given = plugin_settings(request.config)
    path, problem = None, ""
    try:
        path, more = marked(request.node)
        more |= upstream_tls(request.config)
        more.setdefault("scrub", nats_scrub)
        more["setup"] = given.setup
        tape = cassette(path, mode_of(request.node), upstream=given.upstream or None, seed=given.seed, **more)
        tape.__enter__()
    except NatsproxyError as error:
        problem = str(error)
    if problem:  # outside the except block, so that pytest shows no chain of exceptions
        missing = path is not None and not path.exists() and not given.upstream
        pytest.fail(f"{problem}\n{_RECORD_HINT}" if missing else problem, pytrace=False)
    use.tape = tape
    tape.record_anew = record_command(request.node, tape.in_force)
    yield tape
    use.complaint = _close(use, tape)
    if request.config.get_verbosity() > 0 and tape.learned():
        use.notes["learned"] = tape.learned()[:_SHOWN]
    if request.config.get_verbosity() > 0 and tape.shared():
        use.notes["shared"] = tape.shared()[:_SHOWN]
    if use.complaint:
        pytest.fail(use.complaint, pytrace=False)


def _close(use: _Use, tape: cassette) -> str:
    """Close a cassette, note its result for the report, and return the message that fails its test."""
    try:
        tape.close(keep=use.passed)
    except NatsproxyError as error:
        return str(error)
    use.notes["use"] = tape.summary(passed=use.passed)
    if not use.passed:
        return ""
    unused = tape.unused()
    if tape.recording:
        use.notes["recorded"] = f"recorded {tape.path}"
    elif tape.added:
        use.notes["recorded"] = f"{tape.added} frames added to {tape.path}"
    complaint = tape.complaint(use.judged)
    if unused and not complaint:
        use.notes["unused"] = [str(tape.path), len(unused), unused[:_SHOWN]]
    return complaint


@pytest.fixture
def nats_proxy(request: pytest.FixtureRequest) -> Iterator[TestProxy]:
    """Give a proxy before `--nats-upstream`, for faults and for its frames."""
    from natsproxy.testing import TestProxy

    config, problem = request.config, ""
    with ExitStack() as server:
        try:
            upstream, tls = _upstream(config, server)
            proxy = TestProxy(upstream, seed=plugin_settings(config).seed, **tls)
        except NatsproxyError as error:
            problem = str(error)
        if problem:
            pytest.fail(problem, pytrace=False)
        with proxy:
            request.node.stash[_USE].proxy = proxy
            request.node.stash[_USE].notes["real_server"] = True
            yield proxy


def _upstream(config: pytest.Config, server: ExitStack) -> tuple[str, dict[str, Any]]:
    """Return the URL of the server of `nats_proxy`, and options of TLS.

    server: keeps one that is started for it.  Raises NatsproxyError where there is none.
    """
    given = plugin_settings(config)
    if swept(config):
        return os.environ["NATS_URL"], {}
    if given.upstream:
        return given.upstream, upstream_tls(config)
    if not sweeps(config):
        raise ConfigError("nats_proxy needs a server: pytest --nats-upstream=nats://HOST:PORT")
    import trio

    from natsproxy.processes.user_command import run_user_command
    from natsproxy.testing import NatsServer

    url = server.enter_context(NatsServer(jetstream=True)).url
    if given.setup:
        trio.run(run_user_command, "setup", given.setup, url)
    return url, {}


# -- reports


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begin without a cassette or proxy of an earlier run of the test; refuse a marker without effect."""
    item.stash[_USE] = _Use()
    marked = any(marker.name == "nats_cassette" for marker in item.own_markers)
    if marked and "nats_cassette" not in getattr(item, "fixturenames", ()):
        pytest.fail("marked nats_cassette, but it does not take the fixture of that name", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test whose client sent frames that were never recorded, and begin its message with them."""
    use, result, failure = item.stash[_USE], None, None
    try:
        result = yield
    except (Exception, pytest.fail.Exception) as error:
        tape = use.tape
        expected = isinstance(error, pytest.xfail.Exception) or item.get_closest_marker("xfail") is not None
        # A debugger starts at the place of the failure.
        if expected or item.config.getoption("usepdb", False) or tape is None or not tape.mismatches():
            raise
        shown = item.repr_failure(pytest.ExceptionInfo.from_exception(error))
        failure = f"{_complaint(use, tape)}\n\nand then the test failed:\n{shown}"
    else:
        if use.tape is not None and not use.tape.recording:
            failure = _complaint(use, use.tape, wait=True)
    if failure:  # outside the except block, so that pytest shows no chain of exceptions
        pytest.fail(failure, pytrace=False)
    return result


def _complaint(use: _Use, tape: cassette, *, wait: bool = False) -> str:
    """Return the message about frames that were never recorded, and remember that it was given.

    wait: until all frames that were sent so far were compared.
    """
    from natsproxy.testing import WaitTimeout

    try:
        with suppress(WaitTimeout):  # a fault may hold the answer back; teardown judges the rest
            if wait:
                tape.barrier(_BARRIER)
    except NatsproxyError as error:
        return str(error)
    use.judged = len(tape.mismatches())
    return tape.complaint(ended=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Sweep a test that has passed."""
    result = yield
    use, problem = item.stash[_USE], ""
    if use.passed and (use.tape or use.proxy) and sweeps(item.config):
        from natsproxy.pytest_sweep import sweep_test

        try:
            if use.tape and use.proxy:
                raise ConfigError("a test with nats_cassette and nats_proxy has two servers: it is not swept")
            outcome = sweep_test(item, use.tape)
        except NatsproxyError as error:
            problem = str(error)
        else:
            problem = use.complaint = outcome.complaint()
            use.notes["swept"] = f"swept, {outcome.counts()}; report: {outcome.page}"
        use.tape = use.proxy = None  # their frames are of the run that has passed
    if problem:
        pytest.fail(problem, pytrace=False)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add a section to a failed report, and the notes of a test to its last report."""
    report = yield
    use = item.stash.get(_USE, None)
    if use is None:
        return report
    # Teardown closes the cassette, keeps a recording only if the body passed, and sweeps.
    if report.when == "call":
        use.passed = report.passed
        use.holds = use.passed and bool(use.tape or (use.proxy and sweeps(item.config)))
    if use.holds:
        report.natsproxy_holds = True  # type: ignore[attr-defined]
    if report.failed:
        tools = [tool for tool in (use.tape, use.proxy) if tool is not None]
        report.sections += [("natsproxy", tool.failure_report()) for tool in tools]
    if report.when == "teardown":
        report.natsproxy = use.notes  # type: ignore[attr-defined] # xdist sends plain data
        if report.failed and call.excinfo is not None and _says(call.excinfo.value, use.complaint):
            report.when = (
                "call"  # what a test sent and left out is a failure of it, and no error of a fixture
            )
    return report


def _says(error: BaseException, complaint: str) -> bool:
    return bool(complaint) and isinstance(error, pytest.fail.Exception) and error.msg == complaint


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """Let a test pass at its end, where that tells what it left out or what its sweep found."""
    if not getattr(report, "natsproxy_holds", False) or not report.passed or hasattr(report, "wasxfail"):
        return None
    return ("", "", "") if report.when == "call" else ("passed", ".", "PASSED")


class _Summary:
    """Collects the notes of all tests, from all worker processes, and prints them at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self.notes: list[tuple[str, dict[str, Any]]] = []
        arguments = config.invocation_params.args
        self.receipt = SessionReceipt(plugin_settings(config), config.rootpath, list(map(str, arguments)))

    def pytest_report_header(self, config: pytest.Config) -> str | None:
        """Return a header line if this run may record."""
        mode = plugin_settings(config).record
        if mode == FAILED:
            count = len(last_failed(config))
            return f"natsproxy: the cassettes of {count} tests that failed last time are recorded anew"
        return None if mode == "none" else f"natsproxy: cassettes in mode {mode}"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the notes."""
        notes = getattr(report, "natsproxy", None)
        if notes:
            self.notes.append((report.nodeid, notes))
            self.receipt.add(report.nodeid, notes)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the receipt, which may fail the session; of worker processes the first one does it."""
        if not hasattr(session.config, "workerinput") and not session.config.getoption("collectonly", False):
            session.exitstatus = self.receipt.finish(exitstatus)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the new recordings and the unused frames; with -v what was learned and shared."""
        receipt = self.receipt
        if not receipt.line and not any("swept" in notes for _, notes in self.notes):
            return
        terminalreporter.section("natsproxy")
        for nodeid, notes in sorted(self.notes, key=lambda one: one[0]):
            if "recorded" in notes:
                terminalreporter.write_line(f"{nodeid}: {notes['recorded']}")
            if "swept" in notes:
                terminalreporter.write_line(f"{nodeid}: {notes['swept']}")
            if "unused" in notes:
                path, count, shown = notes["unused"]
                terminalreporter.write_line(f"{nodeid}: {count} recorded frames not used, in {path}:")
                more = [f"and {count - len(shown)} more"] if count > len(shown) else []
                for line in (*shown, *more):
                    terminalreporter.write_line(f"  {line}")
            for line in notes.get("learned", ()):
                terminalreporter.write_line(f"{nodeid}: learned: {line}")
            for line in notes.get("shared", ()):
                terminalreporter.write_line(f"{nodeid}: shared: {line}")
        last = [receipt.line] if receipt.line else []
        for line in (*(f"Warning: {one}" for one in receipt.warnings), *last, *receipt.failures):
            terminalreporter.write_line(line)
