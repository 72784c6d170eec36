"""`pytest --nats-sweep`, by running small suites with it."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable
from functools import partial

import pytest

import natsproxy.pytest_sweep
from natsproxy.replay.cassette.file_names import safe_name
from natsproxy.sweep.sweeping import SweepOptions
from tests.kit.servers import NatsServer

pytest_plugins = ["pytester"]
Run = Callable[..., pytest.RunResult]

CLIENT = '''
import socket

def connect(url, limit):
    """Return a connection and its lines; limit: seconds that a line may take."""
    host, port = url.removeprefix("nats://").rsplit(":", 1)
    link = socket.create_connection((host, int(port)), timeout=limit)
    lines = link.makefile("rb")
    link.sendall(b'CONNECT {"verbose":false,"name":"client"}\\r\\nPING\\r\\n')
    while lines.readline() != b"PONG\\r\\n":
        pass
    return link, lines

def ask(url, limit):
    """Send a message to itself."""
    link, lines = connect(url, limit)
    with link, lines:
        link.sendall(b"SUB job 1\\r\\nPUB job 2\\r\\nhi\\r\\n")
        while (line := lines.readline()) == b"PING\\r\\n":
            link.sendall(b"PONG\\r\\n")
        assert line == b"MSG job 1 2\\r\\n"
        assert lines.readline() == b"hi\\r\\n"
'''
WAITS = """
    from client import ask

    def test_waits({fixture}):
        ask({fixture}.url, None)
"""
GIVES_UP = """
    def test_gives_up({fixture}):
        ask({fixture}.url, 0.3)
"""
QUICK = ("--nats-sweep-faults", "drop", "--nats-sweep-subjects=job", "--nats-sweep-patience=1500ms")


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a suite in this process, with few runs of each test."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    few = partial(SweepOptions, baseline=1, confirm=2)
    monkeypatch.setattr(natsproxy.pytest_sweep, "SweepOptions", few)
    pytester.makepyfile(client=CLIENT)
    return partial(pytester.runpytest_inprocess, "-p", "natsproxy.pytest_plugin", "-p", "no:cacheprovider")


@pytest.mark.long
@pytest.mark.server
def test_a_test_that_hangs_under_a_fault_fails_and_a_sound_one_passes(
    run: Run, pytester: pytest.Pytester
) -> None:
    """Without --nats-upstream each run has a fresh server; the finding says how to see it again."""
    pytester.makepyfile(test_worker=(WAITS + GIVES_UP).format(fixture="nats_proxy"))
    done = run("--nats-sweep", *QUICK)
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(
        [
            "After the 1st PUB of job from client client is lost, *(2 of 2 runs)",
            f"  {pytester.path}/sweep-out/test_worker.py-test_waits-*/01-*",
            "  again: natsproxy sweep --only 01 --server --patience=1.5 --out=sweep-out/* -- *::test_waits",
            "test_worker.py::test_gives_up: swept, 2 tried: 2 failed loudly; report: *report.html",
            "test_worker.py::test_waits: swept, 2 tried: 2 *",
            "FAILED test_worker.py::test_waits - *After the 1st PUB of job *",
        ]
    )
    (stack,) = pytester.path.glob("sweep-out/*test_waits*/01-*/stack.txt")
    assert "in test_waits\n" in stack.read_text()


@pytest.mark.server
@pytest.mark.long
def test_the_command_of_a_finding_shows_it_again(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_worker=WAITS.format(fixture="nats_proxy"))
    done = run("--nats-sweep", *QUICK)
    (again, *_) = re.findall(r"again: natsproxy (sweep --only 01 .*)", done.stdout.str())
    words = shlex.split(again)
    shown = subprocess.run(
        [*words[words.index("--") + 1 :][:2], "natsproxy", *words],
        cwd=pytester.path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.returncode == 1, shown.stderr
    assert "5 of 5 runs" in shown.stdout


@pytest.mark.server
@pytest.mark.long
def test_cassettes_are_played_behind_the_faults(
    run: Run, pytester: pytest.Pytester, nats_server: NatsServer
) -> None:
    pytester.makepyfile(test_worker=(WAITS + GIVES_UP).format(fixture="nats_cassette"))
    run("--nats-record=once", f"--nats-upstream={nats_server.url}").assert_outcomes(passed=2)
    done = run("--nats-sweep", *QUICK)
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(
        [
            "  again: natsproxy sweep --only 01 --cassette=*test_waits.ncap *",
            "test_worker.py::test_gives_up: swept, 2 tried: 2 failed loudly; *",
        ]
    )


@pytest.mark.server
def test_a_test_has_its_own_faults_and_frames(
    run: Run, pytester: pytest.Pytester, nats_server: NatsServer
) -> None:
    """Tests without a fixture and tests that fail are not swept, and all have the server of the user."""
    pytester.makepyfile(
        test_worker="""
        from client import connect

        def test_fault(nats_proxy):
            link, lines = connect(nats_proxy.url, 0.3)
            with link, lines, nats_proxy.fault("drop", subject="other"):
                link.sendall(b"SUB * 1\\r\\nPUB other 2\\r\\nhi\\r\\nPUB job 2\\r\\nhi\\r\\n")
                assert lines.readline() == b"MSG job 1 2\\r\\n"
            assert [frame.subject for frame in nats_proxy.frames(op="PUB")] == ["other", "job"]

        def test_fails(nats_proxy):
            assert not nats_proxy.url

        def test_without():
            pass
        """
    )
    done = run("--nats-sweep", *QUICK, f"--nats-upstream={nats_server.url}")
    done.assert_outcomes(passed=2, failed=1)
    done.stdout.fnmatch_lines(["test_worker.py::test_fault: swept, 2 tried: 2 failed loudly; *"])
    assert [path.name for path in (pytester.path / "sweep-out").iterdir()] == [
        safe_name("test_worker.py::test_fault")
    ]


@pytest.mark.long
@pytest.mark.server
def test_a_test_that_does_not_pass_alone_is_an_error(run: Run, pytester: pytest.Pytester) -> None:
    """It is no finding: neither one that fails there, nor one that is not there."""
    pytester.makepyfile(
        test_alone="""
        import sys
        from client import ask

        def test_fails_alone(nats_proxy):
            ask(nats_proxy.url, 1)
            assert "--nats-swept" not in sys.argv, "not alone"

        if "--nats-swept" not in sys.argv:
            def test_is_not_there(nats_proxy):
                ask(nats_proxy.url, 1)
        """
    )
    done = run("--nats-sweep", *QUICK)
    done.assert_outcomes(errors=2)
    done.stdout.fnmatch_lines(
        [
            "pytest test_alone.py::test_fails_alone ended with 1, without any fault:",
            "*AssertionError: not alone*",
            "pytest test_alone.py::test_is_not_there ended with 4 and no client connected *",
        ]
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--nats-sweep", "--nats-sweep-faults=drops"), "*nats_sweep_faults: there is no fault 'drops': *"),
        (("--nats-sweep", "--nats-sweep-for=soon"), "*nats_sweep_for must be a duration *"),
        (
            ("--nats-sweep", "-p", "xdist", "-n", "2"),
            "*--nats-sweep runs one test side by side with itself:*",
        ),
        (("--nats-swept",), "*--nats-swept needs a server's URL in NATS_URL: `natsproxy sweep` sets it"),
    ],
)
def test_flags_that_mean_nothing_are_refused(
    options: tuple[str, ...], said: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NATS_URL", raising=False)
    done = run(*options)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines([said])


@pytest.mark.server
def test_two_servers_cannot_be_swept(run: Run, pytester: pytest.Pytester, nats_server: NatsServer) -> None:
    pytester.makepyfile(
        test_worker="""
        from client import ask

        def test_both(nats_proxy, nats_cassette):
            ask(nats_cassette.url, 1)
        """
    )
    upstream = f"--nats-upstream={nats_server.url}"
    run("--nats-record=once", upstream).assert_outcomes(passed=1)
    done = run("--nats-sweep", upstream)
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["a test with nats_cassette and nats_proxy has two servers: it is not swept"])
