"""The pytest plugin where cassettes are written: their folder, their contents, and which of them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import nats  # noqa: F401 - a run in this process forgets the modules that it was the first to load
import pytest

import natsproxy.testing  # noqa: F401 - compiled code must not be loaded twice
from tests.kit.servers import NatsServer
from tests.testing.test_plugin import SHOP

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.server


@pytest.fixture(autouse=True)
def _shop(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(shop=SHOP)


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess("-p", "natsproxy.pytest_plugin", *options)


def record(pytester: pytest.Pytester, server: NatsServer, *options: str, mode: str = "once") -> None:
    done = run(pytester, f"--nats-record={mode}", f"--nats-upstream={server.url}", *options)
    assert done.ret == 0, done.outlines


def cassettes(pytester: pytest.Pytester) -> list[str]:
    return sorted(str(path.relative_to(pytester.path)) for path in pytester.path.rglob("*.ncap"))


# -- their folder


def test_all_cassettes_may_be_in_one_folder(
    pytester: pytest.Pytester, nats_server: NatsServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Those of modules with one name stay apart; a flag wins, and a folder may be anywhere."""
    for name in ("a", "b"):
        pytester.mkpydir(name).joinpath("test_order.py").write_text(
            "from shop import buy\ndef test_order(nats_cassette): buy(nats_cassette.url, b'one')\n"
        )
    pytester.makeini("[pytest]\nnats_cassette_dir = tapes\npythonpath = .\n")
    record(pytester, nats_server)
    assert cassettes(pytester) == [f"tapes/{name}/test_order/test_order.ncap" for name in ("a", "b")]
    run(pytester).assert_outcomes(passed=2)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    run(pytester, f"--nats-cassette-dir={elsewhere}").assert_outcomes(errors=2)
    (pytester.path / "tapes").rename(elsewhere / "tapes")
    run(pytester, f"--nats-cassette-dir={elsewhere}/tapes").assert_outcomes(passed=2)


# -- their contents


CARDS = """
    import os
    from shop import buy

    def test_order(nats_cassette):
        sent = b"card=" + os.environ["CARD"].encode()
        (received,) = buy(nats_cassette.url, sent)
        assert received in (sent, b"card=1")
"""
SCRUB = """
    import pytest, re

    @pytest.fixture(scope="session")
    def nats_scrub():
        def scrub(subject, headers, body):
            assert (subject, headers) == ("shop", {})
            return re.sub(rb"(?<=card=)([0-9]+)", lambda found: b"%d" % (len(found[0]) // 4), body)
        return scrub
"""


def test_a_function_scrubs_what_is_written(
    pytester: pytest.Pytester, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It need not bear a second pass; another secret of its kind plays, one that becomes another does not."""
    pytester.makepyfile(test_order=CARDS)
    pytester.makeconftest(SCRUB)
    monkeypatch.setenv("CARD", "4711")
    record(pytester, nats_server)
    (path,) = pytester.path.rglob("*.ncap")
    assert b"card=1" in path.read_bytes()
    assert b"4711" not in path.read_bytes()
    for card, outcome in (("4711", {"passed": 1}), ("9876", {"passed": 1}), ("12345678", {"failed": 1})):
        monkeypatch.setenv("CARD", card)
        done = run(pytester)
        done.assert_outcomes(**outcome)
        done.stdout.no_fnmatch_line(f"*PUB shop 'card={card}*never*")


@pytest.mark.parametrize("broken", ["raise KeyError(body)", "return None", "return 'text'"])
def test_a_function_that_fails_to_scrub_leaves_no_cassette(
    broken: str, pytester: pytest.Pytester, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor the file that was to become one; what it failed on is said, without the payload."""
    pytester.makepyfile(test_order=CARDS)
    pytester.makeconftest(f"""
    import pytest

    @pytest.fixture
    def nats_scrub():
        def scrub(subject, headers, body):
            {broken}
        return scrub
    """)
    monkeypatch.setenv("CARD", "4711")
    done = run(pytester, "--nats-record=once", f"--nats-upstream={nats_server.url}")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*the function that scrubs payloads *, for shop"])
    done.stdout.no_fnmatch_line("*KeyError*4711*")
    assert not [path for path in pytester.path.rglob("*") if b"4711" in _content(path)]
    assert not [path for path in pytester.path.rglob("*") if ".ncap" in path.name]


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def test_a_marker_may_name_the_function(pytester: pytest.Pytester, nats_server: NatsServer) -> None:
    pytester.makeconftest(SCRUB)
    pytester.makepyfile(
        """
        import pytest
        from shop import buy

        @pytest.mark.nats_cassette(scrub=lambda subject, headers, body: b"gone")
        def test_order(nats_cassette):
            buy(nats_cassette.url, b"card=1234")
        """
    )
    record(pytester, nats_server)
    (path,) = pytester.path.rglob("*.ncap")
    assert b"gone" in path.read_bytes()
    run(pytester).assert_outcomes(passed=1)


SETUP = """
    import asyncio, nats, os

    async def prepare():
        nc = await nats.connect(os.environ["NATS_URL"])
        await nc.jetstream().add_stream(name="SHOP", subjects=["kept"])
        await nc.close()

    asyncio.run(prepare())
"""


def test_a_command_prepares_the_server(pytester: pytest.Pytester) -> None:
    """Before the recording, which does not have it; no server is prepared for a play."""
    prepare = pytester.makepyfile(prepare=SETUP)
    pytester.makeini(f"[pytest]\nnats_setup = {sys.executable} {prepare}\n")
    pytester.makepyfile(
        """
        import asyncio, nats

        async def keep(url):
            nc = await nats.connect(url)
            ack = await nc.jetstream().publish("kept", b"x")
            assert ack.seq == 1
            await nc.close()

        def test_kept(nats_cassette):
            asyncio.run(keep(nats_cassette.url))
        """
    )
    with NatsServer(jetstream=True) as server:
        record(pytester, server)
    run(pytester).assert_outcomes(passed=1)


# -- which of them


TWO = """
    import os
    from shop import buy

    def test_one(nats_cassette):
        buy(nats_cassette.url, os.environ["ONE"].encode())

    def test_two(nats_cassette):
        buy(nats_cassette.url, b"two")
"""


def test_the_cassettes_of_failed_tests_are_recorded_anew(
    pytester: pytest.Pytester, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are played; afterwards none has failed, and none is recorded."""
    pytester.makepyfile(test_two=TWO)
    monkeypatch.setenv("ONE", "1")
    monkeypatch.setenv("WAIT", "0.1")
    record(pytester, nats_server)
    one, two = sorted(pytester.path.rglob("*.ncap"))
    before = one.read_bytes(), two.read_bytes()
    anew = ("--nats-record=failed", f"--nats-upstream={nats_server.url}")
    run(pytester, *anew).assert_outcomes(passed=2)
    assert (one.read_bytes(), two.read_bytes()) == before
    monkeypatch.setenv("ONE", "another")
    run(pytester).assert_outcomes(passed=1, failed=1)
    done = run(pytester, *anew)
    done.assert_outcomes(passed=2)
    done.stdout.fnmatch_lines(["natsproxy: the cassettes of 1 test*", "*test_one: recorded *"])
    assert one.read_bytes() != before[0]
    assert two.read_bytes() == before[1]
    run(pytester).assert_outcomes(passed=2)
    off = run(pytester, *anew, "-p", "no:cacheprovider")
    off.stderr.fnmatch_lines(["*nats-record=failed needs pytest's cache*"])


# -- beside cassettes of HTTP


@pytest.fixture
def web() -> Iterator[HTTPServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"8 EUR")

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def _vcr() -> None:
    """Import what records HTTP before `pytester` looks at the modules: those after it are forgotten again.

    `requests` is not usable in a process where a part of it, `http.cookiejar`, was imported twice.
    """
    for name in ("pytest_recording.plugin", "vcr.serializers.yamlserializer"):
        pytest.importorskip(name)


@pytest.mark.usefixtures("_vcr")
def test_a_test_may_use_a_cassette_of_http_too(
    pytester: pytest.Pytester, nats_server: NatsServer, web: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In either order of fixtures; both are in one folder, and play where neither server is reached."""
    pytester.makepyfile(
        test_both=f"""
        import pytest
        from urllib.request import urlopen
        from shop import buy

        pytestmark = pytest.mark.vcr

        def check(nats_cassette):
            price = urlopen("http://127.0.0.1:{web.server_port}/price").read()
            assert buy(nats_cassette.url, price) == [b"8 EUR"]

        def test_marked(nats_cassette):
            check(nats_cassette)

        def test_ours_first(nats_cassette, vcr):
            check(nats_cassette)

        def test_theirs_first(vcr, nats_cassette):
            check(nats_cassette)
        """
    )
    both = ("-p", "pytest_recording.plugin")
    record(pytester, nats_server, *both, "--record-mode=once")
    names = ("marked", "ours_first", "theirs_first")
    assert cassettes(pytester) == [f"cassettes/test_both/test_{name}.ncap" for name in names]
    assert len(list((pytester.path / "cassettes/test_both").glob("*.yaml"))) == len(names)
    web.server_close()
    for more in ((), ("--block-network", "--allowed-hosts=127.0.0.1")):
        run(pytester, *both, *more).assert_outcomes(passed=3)
