"""The pytest plugin, by running small suites with it: most in this process, one in workers."""

from __future__ import annotations

import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import nats  # noqa: F401 - a run in this process forgets the modules that it was the first to load
import pytest

import natsproxy.testing  # noqa: F401 - compiled code must not be loaded twice
from natsproxy.capture.read.reader import open_capture
from natsproxy.pytest_settings import default_path
from tests.kit.authority import Authority
from tests.kit.servers import NatsServer

pytest_plugins = ["pytester"]
Run = Callable[..., pytest.RunResult]

# A client that cannot connect is closed too: nats-py leaves its socket open.
SHOP = '''
import asyncio, os
from nats.aio.client import Client

WAIT = float(os.environ.get("WAIT", "5"))

async def order(url, *bodies):
    """Send each body to a subject of our own, and return the answers."""
    nc = Client()
    try:
        await nc.connect(url, name="shop", allow_reconnect=False)
        sub = await nc.subscribe("shop")
        for body in bodies:
            await nc.publish("shop", body)
        return [(await sub.next_msg(WAIT)).data for _ in bodies]
    finally:
        await nc.close()

async def send(url, *bodies):
    """Send each body and expect nothing."""
    nc = Client()
    try:
        await nc.connect(url, name="shop", allow_reconnect=False)
        await nc.subscribe("shop")
        for body in bodies:
            await nc.publish("shop", body)
        await nc.flush()
    finally:
        await nc.close()

def buy(url, *bodies):
    return asyncio.run(order(url, *bodies))
'''
ORDER = """
    import asyncio, os
    from shop import buy, send

    def test_order(nats_cassette):
        bodies = os.environ.get("BODIES", "one two").encode().split()
        assert buy(nats_cassette.url, *bodies) == bodies
        assert "FAIL" not in os.environ
"""
TAPE = "cassettes/test_order/test_order.ncap"


@pytest.fixture(autouse=True)
def _no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the suite in this process; `(*options, **environment)`."""
    pytester.makepyfile(shop=SHOP)

    def go(*options: str, **environment: str) -> pytest.RunResult:
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            return pytester.runpytest_inprocess(
                "-p", "natsproxy.pytest_plugin", "-p", "no:cacheprovider", *options
            )

    return go


@pytest.fixture
def recorded(run: Run, pytester: pytest.Pytester, nats_server: NatsServer) -> Run:
    """The same, with the cassette of ORDER made: it sent "one" and "two"."""
    pytester.makepyfile(test_order=ORDER)
    run("--nats-record=once", f"--nats-upstream={nats_server.url}").assert_outcomes(passed=1)
    return run


# -- the cost of the plugin in every run of pytest


def test_it_is_found_and_costs_nothing_until_it_is_used() -> None:
    (found,) = entry_points(group="pytest11", name="natsproxy")
    assert found.value == "natsproxy.pytest_plugin"
    code = (
        "import sys, natsproxy.pytest_plugin as _; sys.exit(bool({'trio', 'natsproxy.net'} & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -- where a cassette lies


def test_default_paths_are_distinct_and_fit_any_file_system(pytester: pytest.Pytester) -> None:
    items = pytester.getitems("""
        import pytest

        def test_plain(): pass

        @pytest.mark.parametrize("x", ["a", "a b", "a/b", "a-b", "ü", "x" * 300, "x" * 301])
        def test_many(x): pass

        class TestGroup:
            def test_plain(self): pass
    """)
    paths = [default_path(item).relative_to(pytester.path) for item in items]
    folder = Path("cassettes/test_default_paths_are_distinct_and_fit_any_file_system")
    assert paths[:2] == [folder / "test_plain.ncap", folder / "test_many.a.ncap"]
    assert paths[-1] == folder / "TestGroup.test_plain.ncap"
    assert len(set(paths)) == len(paths)
    for path in paths:
        assert re.fullmatch(r"[A-Za-z0-9_.-]{1,120}", path.name)


@pytest.mark.server
def test_markers_give_path_matchers_and_strictness(
    run: Run, pytester: pytest.Pytester, nats_server: NatsServer
) -> None:
    """The nearest marker wins; arguments that it leaves out come from the others."""
    pytester.makepyfile(
        test_marked="""
        import os, pytest
        from shop import buy

        pytestmark = pytest.mark.nats_cassette(ignore_json="shop /ts")

        @pytest.mark.nats_cassette("tapes/mine.ncap", strict=True)
        def test_one(nats_cassette):
            assert nats_cassette.path.parts[-2:] == ("tapes", "mine.ncap")
            assert nats_cassette.strict
            body = b'{"ts":%b}' % os.environ["TS"].encode()
            assert buy(nats_cassette.url, body) == [body]
        """
    )
    run("--nats-record=once", f"--nats-upstream={nats_server.url}", TS="1").assert_outcomes(passed=1)
    run(TS="2").assert_outcomes(passed=1)


@pytest.mark.server
def test_options_come_from_ini_flags_markers_and_the_cassette(
    run: Run, pytester: pytest.Pytester, nats_server: NatsServer
) -> None:
    """Lists add up, and of one value the nearest counts; a recording keeps the options."""
    pytester.makeini("[pytest]\nnats_ignore_json =\n    /a\n    shop /b c\nnats_learn = false\n")
    pytester.makepyfile(
        test_options="""
        import os, pytest
        from shop import buy

        @pytest.mark.nats_cassette(ignore_headers="X", learn_not=["/d"], match_on="subject")
        def test_one(nats_cassette):
            body = b'{"ts":%b}' % os.environ["TS"].encode()
            assert buy(nats_cassette.url, body) == [body]
        """
    )
    record = ("--nats-record=once", f"--nats-upstream={nats_server.url}", "--nats-ignore-json=/f")
    run(*record, "--nats-match-on=subject,body", TS="1").assert_outcomes(passed=1)
    (capture,) = pytester.path.rglob("*.ncap")
    (segment,) = open_capture(capture).segments()
    assert segment.settings["cassette"] == {
        "ignore_json": ["/f", "/a", "shop /b c"],
        "match_on": ["subject"],
        "ignore_headers": ["x"],
        "learn": False,
        "learn_not": ["/d"],
    }


@pytest.mark.server
def test_cassettes_may_be_texts(run: Run, pytester: pytest.Pytester, nats_server: NatsServer) -> None:
    """A text is played, edited and found again whatever new ones are; a mismatch names the edited field."""
    pytester.makepyfile(test_order=ORDER)
    text = pytester.path / TAPE.replace(".ncap", ".nats.txt")
    record = ("--nats-record=once", f"--nats-upstream={nats_server.url}")
    run(*record, "--nats-cassette-format=text").assert_outcomes(passed=1)
    assert [file.name for file in text.parent.iterdir()] == [text.name]
    run(*record).assert_outcomes(passed=1)
    assert [file.name for file in text.parent.iterdir()] == [text.name]
    text.write_text(text.read_text().replace("  | two\n", "  | another\n"))
    run(BODIES="one another").assert_outcomes(passed=1)
    run(BODIES="one two").assert_outcomes(failed=1)


# -- modes


@pytest.mark.server
def test_modes(recorded: Run, pytester: pytest.Pytester, nats_server: NatsServer) -> None:
    """Each mode in turn on one cassette; the recording of a failing test is not kept."""
    tape, upstream = pytester.path / TAPE, f"--nats-upstream={nats_server.url}"
    first = tape.read_bytes()
    recorded("--nats-record=once", upstream).assert_outcomes(passed=1)
    assert tape.read_bytes() == first

    added = recorded("--nats-record=new_episodes", upstream, BODIES="one two three")
    added.assert_outcomes(passed=1)
    added.stdout.fnmatch_lines(["*test_order: * frames added to *test_order.ncap"])
    recorded("--nats-strict", BODIES="one two three").assert_outcomes(passed=1)

    for mode in ("all", "rewrite"):
        before = tape.read_bytes()
        failed = recorded(f"--nats-record={mode}", upstream, FAIL="yes")
        failed.assert_outcomes(failed=1)
        failed.stdout.fnmatch_lines([f"cassette *, mode {mode}, seed 0, recording: kept only if*"])
        assert tape.read_bytes() == before
        done = recorded(f"--nats-record={mode}", upstream, BODIES=mode)
        done.assert_outcomes(passed=1)
        done.stdout.fnmatch_lines([f"*cassettes in mode {mode}", f"*test_order: recorded *{TAPE}"])
        recorded("--nats-strict", BODIES=mode).assert_outcomes(passed=1)
    assert [path.name for path in tape.parent.iterdir()] == [tape.name]


@pytest.mark.server
def test_mode_none_dials_nobody(recorded: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as upstream:
        url = f"nats://127.0.0.1:{upstream.getsockname()[1]}"
        recorded(f"--nats-upstream={url}").assert_outcomes(passed=1)
        recorded(f"--nats-upstream={url}", BODIES="other", WAIT="0.1").assert_outcomes(failed=1)
        upstream.setblocking(False)
        with pytest.raises(BlockingIOError):
            upstream.accept()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], "*test_order.ncap: there is no such cassette, and mode none never records one"),
        (["--nats-record=once"], "mode once has to record *: name an upstream server to record from"),
    ],
)
def test_a_missing_cassette_names_the_command_that_records_it(
    options: list[str], expected: str, run: Run, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(test_order=ORDER)
    result = run(*options)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([expected, "record it with: pytest --nats-record=once --nats-upstream=*"])


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("nats_record=sometimes", "*nats_record must be 'none' or 'once' or *, not 'sometimes'"),
        ("nats_seed=red", "*nats_seed must be a whole number of at most 64 bits, not 'red'"),
        (
            "nats_match_on=time",
            "*nats_match_on must be some of subject, headers, body, client, order, not 'time'",
        ),
        ("nats_learn=maybe", "*invalid truth value 'maybe'"),
        ("--nats-ignore-json=id", "*--nats-ignore-json must be a JSON pointer *"),
    ],
)
def test_settings_that_mean_nothing_are_refused(option: str, expected: str, run: Run) -> None:
    result = run(*([option] if option.startswith("--") else ["-o", option]))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([expected])


@pytest.mark.parametrize(
    ("marker", "arguments", "expected"),
    [
        ("'a', 'b'", "nats_cassette", "nats_cassette takes a path and named options, not 'b'"),
        ("mode='all'", "nats_cassette", "nats_cassette: there is no option 'mode': there are match_on,*"),
        ("ignor_json='/a'", "nats_cassette", "*no option 'ignor_json'; did you mean 'ignore_json'?"),
        ("ignore_json='a'", "nats_cassette", "nats_cassette: ignore_json must be a JSON pointer*"),
        ("'a.ncap'", "", "marked nats_cassette, but it does not take the fixture of that name"),
    ],
)
def test_markers_that_mean_nothing_are_refused(
    marker: str, arguments: str, expected: str, run: Run, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(f"import pytest\n@pytest.mark.nats_cassette({marker})\ndef test({arguments}): pass")
    result = run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([expected])


# -- the result of a test, and its report


@pytest.mark.server
def test_a_mismatch_names_what_came_near(recorded: Run, pytester: pytest.Pytester) -> None:
    """The test passes by itself: its client publishes and looks at nothing."""
    pytester.makepyfile(
        test_order="""
        import asyncio
        from shop import send

        def test_order(nats_cassette):
            asyncio.run(send(nats_cassette.url, b"one", b"one", b"three"))
        """
    )
    result = recorded()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "client 'shop' sent a frame more often than recorded: PUB shop 'one'",
            "  recorded, but used already: PUB shop 'one'",
            "client 'shop' sent a frame that was never recorded: PUB shop 'three'",
            "  nearest (not used): PUB shop 'two'",
            "    body: 'two' recorded, 'three' sent",
            '    accepted with ignore_bodies="shop" (marker, TOML) or --ignore-bodies shop (*)',
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")


ASK = """
    import asyncio, json, os, uuid
    import nats
    import pytest

    async def ask(url, **more):
        nc = await nats.connect(url, name="shop", allow_reconnect=False)
        try:
            async def answer(message):
                await message.respond(json.dumps({"for": json.loads(message.data)["id"]}).encode())
            await nc.subscribe("ask", cb=answer)
            order = {"id": str(uuid.uuid4()), **more}
            reply = await nc.request("ask", json.dumps(order).encode(), timeout=30)
            assert json.loads(reply.data)["for"] == order["id"]
        finally:
            await nc.close()

    def test_order(nats_cassette):
        asyncio.run(ask(nats_cassette.url, qty=int(os.environ["QTY"])))
"""


@pytest.mark.server
def test_a_failure_begins_with_the_mismatch_that_caused_it(
    run: Run, pytester: pytest.Pytester, nats_server: NatsServer
) -> None:
    """The identifier may differ; the request that does ends at once, long before its time-out."""
    pytester.makepyfile(test_order=ASK)
    run("--nats-record=once", f"--nats-upstream={nats_server.url}", QTY="3").assert_outcomes(passed=1)
    played = run("-v", QTY="3")
    played.assert_outcomes(passed=1)
    played.stdout.fnmatch_lines(["*test_order: learned: ask /id ????????... -> ????????..."])
    result = run("-rf", QTY="4")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "/qty: 3 recorded, 4 sent: PUB ask of client 'shop'",
            "*test_order.ncap:",
            "client 'shop' sent a frame that was never recorded: PUB ask *",
            "  nearest (not used): PUB ask *",
            "    /qty: 3 recorded, 4 sent",
            '    accepted with like_json="ask /qty" (marker, TOML) or --like-json *',
            "and then the test failed:",
            "*NoRespondersError*",
            "*-- natsproxy --*",
            "*short test summary info*",
            "FAILED test_order.py::test_order - Failed: /qty: 3 recorded, 4 sent: PUB ask *",
        ]
    )
    marked = ASK.replace(
        "    def test_order", '    @pytest.mark.nats_cassette(like_json="ask /qty")\n    def test_order'
    )
    pytester.makepyfile(test_order=marked)
    run(QTY="4").assert_outcomes(passed=1)


@pytest.mark.server
def test_an_expected_failure_stays_what_it_is(recorded: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_order="""
        import asyncio, pytest
        from shop import send

        @pytest.mark.xfail(raises=ZeroDivisionError, strict=True)
        def test_order(nats_cassette):
            asyncio.run(send(nats_cassette.url, b"three"))
            1 / 0
        """
    )
    recorded().assert_outcomes(xfailed=1)


@pytest.mark.server
def test_a_publish_that_is_forgotten_fails_unless_that_is_allowed(recorded: Run) -> None:
    for option in (["--nats-no-strict"], ["-o", "nats_strict=false"]):
        result = recorded(*option, BODIES="one")
        result.assert_outcomes(passed=1)
        result.stdout.fnmatch_lines(
            ["*test_order: 1 recorded frames not used, in */test_order.ncap:", "  PUB shop 'two'"]
        )
    for option in ([], ["--nats-strict"], ["-o", "nats_strict=true"]):
        result = recorded(*option, BODIES="one")
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(
            [
                "recorded, but not sent by any client: PUB shop 'two'",
                "to record it anew: pytest test_order.py::test_order --nats-record=all "
                "--nats-upstream=nats://HOST:PORT",
                "FAILED test_order.py::test_order*",
            ]
        )


@pytest.mark.server
def test_what_is_left_out_is_one_failure_in_every_report(recorded: Run, pytester: pytest.Pytester) -> None:
    for bodies, word, counts in (
        ("one", "FAILED", {"failures": "1", "errors": "0"}),
        ("one two", "PASSED", {"failures": "0", "errors": "0"}),
    ):
        result = recorded("-v", "--junitxml=found.xml", BODIES=bodies)
        words = re.findall(r"::test_order (\w+) +\[", str(result.stdout))
        assert words == [word]
        found = (pytester.path / "found.xml").read_text()
        assert found.count("<testcase ") == 1
        assert counts.items() <= dict(re.findall(r'(\w+)="(\d+)"', found)).items()


@pytest.mark.server
def test_a_test_is_recorded_anew_by_the_command_of_its_failure(
    recorded: Run, pytester: pytest.Pytester, nats_server: NatsServer
) -> None:
    """It has the options that the cassette kept, and none that the test gives."""
    pytester.makeini("[pytest]\nnats_ignore_json = shop /ini\nnats_upstream = nats://127.0.0.1:1\n")
    upstream = f"--nats-upstream={nats_server.url}"
    kept = ("--nats-ignore-json=shop /flag", "--nats-match-on=subject,body")
    recorded("--nats-record=all", upstream, *kept).assert_outcomes(passed=1)
    failed = recorded(upstream, BODIES="one other")
    failed.assert_outcomes(failed=1)
    (line,) = {one for one in failed.outlines if one.startswith("to record it anew: ")}  # CI: twice
    command, *flags = shlex.split(line.partition(": ")[2])
    assert (command, flags) == (
        "pytest",
        [
            "test_order.py::test_order",
            "--nats-record=all",
            upstream,
            "--nats-match-on=subject,body",
            "--nats-ignore-json=shop /flag",
        ],
    )
    recorded(*flags, BODIES="one other").assert_outcomes(passed=1)
    recorded(BODIES="one other").assert_outcomes(passed=1)


@pytest.mark.server
def test_messages_of_a_fixture_teardown_count_too(recorded: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_order="""
        import asyncio, pytest
        from shop import buy, send

        @pytest.fixture
        def goodbye(nats_cassette):
            yield
            asyncio.run(send(nats_cassette.url, b"bye"))

        def test_order(nats_cassette, goodbye):
            buy(nats_cassette.url, b"one", b"two")
        """
    )
    result = recorded()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*never recorded: PUB shop 'bye'"])


@pytest.mark.server
def test_a_failure_shows_path_seed_faults_and_frames(recorded: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_order="""
        from natsproxy.testing import drop
        from shop import buy

        def test_order(nats_cassette):
            with nats_cassette.fault(drop(every=2), subject="shop", direction="s2c"):
                assert buy(nats_cassette.url, b"one", b"two") == [b"one", b"two"]
        """
    )
    result = recorded("--nats-seed=7", WAIT="0.1")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*-- natsproxy --*",
            f"cassette */{TAPE}, mode none, seed 7",
            "fired: drop-1 (drop) s2c shop on connection 1",
            "the last * frames:",
            "#1 c2s CONNECT",
            "#1 c2s PUB shop 'one'",
            "#1 s2c MSG shop 'one'",
            "#1 s2c MSG shop 'two' (drop-1)",
        ]
    )


@pytest.mark.server
def test_frames_and_faults_over_a_cassette(recorded: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_order="""
        from natsproxy.testing import latency
        from shop import buy

        def test_order(nats_cassette):
            with nats_cassette.fault(latency("10ms"), subject="shop", op="MSG"):
                buy(nats_cassette.url, b"one", b"two")
            nats_cassette.barrier()
            assert [f.payload for f in nats_cassette.frames("shop", op="PUB")] == [b"one", b"two"]
            assert {f.rule for f in nats_cassette.firings} == {"latency-1"}
        """
    )
    recorded("--nats-strict").assert_outcomes(passed=1)


@pytest.mark.server
@pytest.mark.parametrize(("argument", "outcome"), [("", {"failed": 1}), (", must_fire=False", {"passed": 1})])
def test_a_fault_that_never_fires_fails_its_test(
    recorded: Run, pytester: pytest.Pytester, argument: str, outcome: dict[str, int]
) -> None:
    pytester.makepyfile(
        test_order=f"""
        from natsproxy.testing import drop
        from shop import buy

        def test_order(nats_cassette):
            with nats_cassette.fault(drop(), subject="shpo"{argument}):
                buy(nats_cassette.url, b"one", b"two")
        """
    )
    result = recorded()
    result.assert_outcomes(**outcome)
    if outcome.get("failed"):
        result.stdout.fnmatch_lines(
            ["*the fault 'drop-1' never fired: *nearest of what passed: *PUB shop (2)*"]
        )


@pytest.mark.server
def test_a_test_that_is_run_again_begins_anew(recorded: Run, pytester: pytest.Pytester) -> None:
    """As plugins do that give flaky tests another chance."""
    pytester.makeconftest(
        """
        from _pytest.runner import runtestprotocol

        def pytest_runtest_protocol(item, nextitem):
            for _ in range(3):
                reports = runtestprotocol(item, nextitem=nextitem, log=False)
            for report in reports:
                item.ihook.pytest_runtest_logreport(report=report)
            return True
        """
    )
    recorded("--nats-strict").assert_outcomes(passed=1)


@pytest.mark.server
def test_a_truncated_cassette_is_reported_in_one_sentence(recorded: Run, pytester: pytest.Pytester) -> None:
    tape = pytester.path / TAPE
    whole = tape.read_bytes()
    for size, expected in (
        (0, "the file ends before its first block"),
        (20, "there is no segment header"),
        (len(whole) // 2, "the capture is cut short: `natsproxy capture recover"),
    ):
        tape.write_bytes(whole[:size])
        result = recorded()
        result.assert_outcomes(errors=1)
        result.stdout.fnmatch_lines([f"*{TAPE}: {expected}*"])
        result.stdout.no_fnmatch_line("*Traceback*")


# -- before a real server


@pytest.mark.server
def test_nats_proxy_puts_faults_before_a_real_server(
    run: Run, pytester: pytest.Pytester, nats_server: NatsServer
) -> None:
    pytester.makepyfile(
        """
        from natsproxy.testing import drop
        from shop import buy

        def test_lossy(nats_proxy):
            with nats_proxy.fault(drop(first=1), subject="shop", op="PUB"):
                assert buy(nats_proxy.url, b"kept", b"kept") == [b"kept"]
        """
    )
    result = run(f"--nats-upstream={nats_server.url}", "--nats-seed=3", WAIT="0.1")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"proxy before {nats_server.url}, seed 3", "*PUB shop 'kept' (drop-1)"])
    for options, expected in (
        ([], "nats_proxy needs a server: *"),
        (["--nats-upstream=x://"], "the server's address must be *"),
    ):
        result = run(*options)
        result.assert_outcomes(errors=1)
        result.stdout.fnmatch_lines([expected])


@pytest.mark.server
def test_a_server_with_tls(run: Run, pytester: pytest.Pytester, tmp_path: Path) -> None:
    """With the CA as a flag, and in the ini file; its name is not that of the address."""
    pytester.makepyfile(test_order=ORDER)
    pytester.makepyfile(
        test_proxy="""
        from shop import buy

        def test_it(nats_proxy):
            assert buy(nats_proxy.url, b"x") == [b"x"]
        """
    )
    authority = Authority(tmp_path)
    with NatsServer(authority.server_config()) as server:
        to_server = ("--nats-record=all", f"--nats-upstream={server.url.replace('nats:', 'tls:')}")
        run(*to_server).assert_outcomes(errors=1, failed=1)
        run(*to_server, f"--nats-upstream-tls-ca={authority.file}").assert_outcomes(passed=2)
        pytester.makeini(f"[pytest]\nnats_upstream_tls_ca = {authority.file}")
        run(*to_server).assert_outcomes(passed=2)
        run(*to_server, "--nats-upstream-tls-name=other.test").assert_outcomes(errors=1, failed=1)
    run().assert_outcomes(passed=1, errors=1)  # the proxy wants a server


# -- beside other plugins


@pytest.mark.long
@pytest.mark.server
def test_asyncio_trio_and_plain_tests_in_workers(
    run: Run, pytester: pytest.Pytester, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded in one process, played in two; notes and failures come back from the workers."""
    pytester.makepyfile(
        test_all="""
        import os, pytest, trio
        from shop import buy, order

        less = os.environ.get("LESS") == "yes"

        def test_plain(nats_cassette):
            assert buy(nats_cassette.url, b"1") == [b"1"]

        @pytest.mark.asyncio
        async def test_asyncio(nats_cassette):
            assert await order(nats_cassette.url, b"2") == [b"2"]
            await nats_cassette.barrier_async()
            assert len(await nats_cassette.wait_for_async("shop", op="MSG")) == 1

        @pytest.mark.trio
        async def test_trio(nats_cassette):
            host, port = nats_cassette.url.removeprefix("nats://").split(":")
            async with await trio.open_tcp_stream(host, int(port)) as stream:
                await stream.send_all(b'CONNECT {"verbose":false,"name":"trio"}\\r\\nPUB shop 1\\r\\n3\\r\\n')
                assert len(await nats_cassette.wait_for_async("shop", op="PUB")) == 1

        @pytest.mark.parametrize("n", range(4))
        def test_many(nats_cassette, n):
            bodies = [b"%d" % n, b"again"][: 1 if less else 2]
            assert buy(nats_cassette.url, *bodies) == bodies
            assert not (less and n == 3)
        """
    )
    others = ["-p", "pytest_asyncio.plugin", "-p", "pytest_trio.plugin"]
    others += ["-o", "asyncio_default_fixture_loop_scope=function"]
    run(*others, "--nats-record=once", f"--nats-upstream={nats_server.url}").assert_outcomes(passed=7)
    monkeypatch.setenv("LESS", "yes")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    options = ["-p", "natsproxy.pytest_plugin", "-p", "no:cacheprovider", "-p", "xdist", "-n", "2", *others]
    pytester.runpytest_subprocess(*options).assert_outcomes(passed=3, failed=4)
    played = pytester.runpytest_subprocess(*options, "--nats-no-strict")
    played.assert_outcomes(passed=6, failed=1)
    played.stdout.fnmatch_lines(
        [
            "cassette */cassettes/test_all/test_many.3.ncap, mode none, seed 0",
            "#1 s2c MSG shop '3'",
            *(f"*test_many?{n}?: 1 recorded frames not used, in *test_many.{n}.ncap:" for n in range(3)),
        ]
    )
