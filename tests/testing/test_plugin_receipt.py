"""The receipt of a pytest session, and what fails a session that has shown nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nats  # noqa: F401 - a run in this process forgets the modules that it was the first to load
import pytest

import natsproxy.testing  # noqa: F401 - compiled code must not be loaded twice
from tests.kit.servers import NatsServer
from tests.testing.test_plugin import SHOP

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.server
Run = Callable[..., pytest.RunResult]
ORDERS = """
    import os, pytest
    from shop import buy, send

    @pytest.mark.parametrize("n", range(3))
    def test_order(nats_cassette, n):
        assert buy(nats_cassette.url, b"%d" % n, b"again") == [b"%d" % n, b"again"]

    def test_another(nats_cassette):
        body = os.environ.get("BODY", "x").encode()
        assert buy(nats_cassette.url, body) == [body]

    def test_without():
        pass
"""
RECEIPT = "nats-cassettes.receipt.json"


@pytest.fixture(autouse=True)
def _no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


@pytest.fixture
def run(pytester: pytest.Pytester) -> Run:
    pytester.makepyfile(shop=SHOP)
    return lambda *options: pytester.runpytest_inprocess(
        "-p", "natsproxy.pytest_plugin", "-p", "no:cacheprovider", *options
    )


@pytest.fixture
def recorded(run: Run, pytester: pytest.Pytester, nats_server: NatsServer) -> Run:
    """The same, with the cassettes of ORDERS made."""
    pytester.makepyfile(test_orders=ORDERS)
    done = run("--nats-record=once", f"--nats-upstream={nats_server.url}")
    done.assert_outcomes(passed=5)
    done.stdout.fnmatch_lines([f"receipt: 4 cassettes recorded, not isolated ({RECEIPT})"])
    return run


def receipt_of(pytester: pytest.Pytester, name: str = RECEIPT) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((pytester.path / name).read_text())
    return found


def test_a_session_has_a_row_for_each_test(recorded: Run, pytester: pytest.Pytester) -> None:
    done = recorded("--nats-min-served=11", "--nats-min-coverage=100", "--nats-upstream=nats://a:hunter2@h")
    assert done.ret == 0
    done.stdout.fnmatch_lines([f"receipt: 11 of 11 recorded exchanges served, isolated ({RECEIPT})"])
    receipt = receipt_of(pytester)
    assert (receipt["ran"], receipt["exit_code"], receipt["failed_by"]) == ("pytest", 0, None)
    assert receipt["program"][0] == "pytest"
    assert receipt["program"][-1] == "--nats-upstream=nats://a:***@h"
    assert (receipt["served"], receipt["coverage"], receipt["isolated"]) == (11, 100.0, True)
    rows = {row["test"]: row for row in receipt["cassettes"]}
    assert list(rows) == [
        "test_orders.py::test_another",
        *(f"test_orders.py::test_order[{n}]" for n in range(3)),
    ]
    row = rows["test_orders.py::test_order[1]"]
    assert row["path"] == "cassettes/test_orders/test_order.1.ncap"
    assert (row["served"], row["clients"], row["passed"], row["failures"]) == (3, 1, True, [])
    assert row["subjects"] == [{"subject": "shop", "served": 3, "missed": 0, "unused": 0, "repeated": 0}]


@pytest.mark.long
def test_workers_leave_one_receipt(recorded: Run, pytester: pytest.Pytester) -> None:
    """The sums are those of all, and the judgement too."""
    plugins = ["-p", "natsproxy.pytest_plugin", "-p", "no:cacheprovider", "-p", "xdist", "-n", "2"]
    done = pytester.runpytest_subprocess(*plugins, "--nats-min-served=11")
    assert done.ret == 0
    done.stdout.fnmatch_lines([f"receipt: 11 of 11 recorded exchanges served, isolated ({RECEIPT})"])
    assert [row["served"] for row in receipt_of(pytester)["cassettes"]] == [2, 3, 3, 3]
    done = pytester.runpytest_subprocess(*plugins, "--nats-min-served=12")
    assert done.ret == 1
    assert receipt_of(pytester)["exit_code"] == 1


def test_a_session_may_have_to_be_served_a_part(recorded: Run, pytester: pytest.Pytester) -> None:
    """By flags and by the ini file, in a session whose tests all pass."""
    done = recorded("--nats-min-served=12")
    assert done.ret == 1
    sentence = "11 recorded exchanges were served, --nats-min-served requires 12"
    done.stdout.fnmatch_lines([sentence])
    receipt = receipt_of(pytester)
    assert (receipt["failures"], receipt["failed_by"]) == ([sentence], "natsproxy")
    pytester.makeini("[pytest]\nnats_min_coverage = 100\n")
    assert recorded("-k", "another").ret == 0
    assert recorded("-k", "without").ret == 1
    assert receipt_of(pytester)["cassettes"] == []
    assert recorded("--nats-min-coverage=lots").ret == 4


def test_the_file_may_be_elsewhere_or_nowhere(recorded: Run, pytester: pytest.Pytester) -> None:
    path = pytester.path / RECEIPT
    path.unlink()
    done = recorded("--nats-no-receipt")
    done.stdout.fnmatch_lines(["receipt: 11 of 11 recorded exchanges served, isolated"])
    recorded("-k", "without")
    assert not path.exists()
    pytester.makeini("[pytest]\nnats_receipt = there.json\n")
    assert recorded().ret == 0
    assert receipt_of(pytester, "there.json")["isolated"] is True
    assert recorded("--nats-receipt=no/such/folder.json").ret == 1
    pytester.makeini("[pytest]\n")
    path.mkdir()
    done = recorded()
    assert done.ret == 0
    done.stdout.fnmatch_lines([f"Warning: cannot write the receipt {path}: *"])


def test_a_test_that_fails_has_failed_in_it(
    recorded: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BODY", "hunter2")
    monkeypatch.setenv("WAIT", "0.1")
    assert recorded().ret == 1
    receipt = receipt_of(pytester)
    row = receipt["cassettes"][0]
    assert (row["test"], row["passed"], row["missed"], row["unused"]) == (
        "test_orders.py::test_another",
        False,
        1,
        1,
    )
    sentence = "1 client frames were never recorded, the first was PUB shop"
    assert row["failures"] == [sentence]
    assert receipt["failures"] == [f"{row['test']}: {sentence}"]
    assert receipt["failed_by"] == "natsproxy"
    assert "hunter2" not in json.dumps(receipt)


ABSENT = """
    import pytest
    import asyncio
    from shop import listen

    @pytest.mark.nats_cassette("a.ncap")
    def test_absent(nats_cassette):
        {body}

    @pytest.mark.nats_cassette("b.ncap")
    def test_empty(nats_cassette):
        pass
"""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("pass", "*no client connected to nats://127.0.0.1:*, where *a.ncap was played"),
        (
            "asyncio.run(listen(nats_cassette.url))",
            "*clients connected to nats://127.0.0.1:*, but none sent any of the 1 recorded frames",
        ),
    ],
)
def test_a_test_that_asks_for_nothing_fails(
    body: str, said: str, run: Run, pytester: pytest.Pytester, nats_server: NatsServer
) -> None:
    """Where there was something: a test that never connected when recorded plays so."""
    listens_to = (
        "\n\nasync def listen(url, *subjects):\n    nc = Client()\n    await nc.connect(url, name='shop')\n"
        "    for subject in subjects:\n        await nc.subscribe(subject)\n    await nc.close()\n"
    )
    pytester.makepyfile(shop=SHOP + listens_to)
    pytester.makepyfile(test_absent=ABSENT.format(body="asyncio.run(listen(nats_cassette.url, 'x'))"))
    run("--nats-record=once", f"--nats-upstream={nats_server.url}").assert_outcomes(passed=2)
    assert run("-q").ret == 0
    pytester.makepyfile(test_absent=ABSENT.format(body=body))
    done = run()
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines([said, "Warning: b.ncap is empty: *"])
    assert receipt_of(pytester)["isolated"] is False
    assert run("--nats-no-strict").ret == 0
    assert receipt_of(pytester)["served"] == 0


def test_two_tests_in_one_cassette(run: Run, pytester: pytest.Pytester, nats_server: NatsServer) -> None:
    """Each is judged alone; what both have recorded is told, and which tests share it."""
    pytester.makepyfile(
        test_shared="""
        import pytest
        from shop import buy

        pytestmark = pytest.mark.nats_cassette("both.ncap")

        def test_one(nats_cassette):
            assert buy(nats_cassette.url, b"1") == [b"1"]

        def test_two(nats_cassette):
            assert buy(nats_cassette.url, b"1") == [b"1"]
        """
    )
    upstream = f"--nats-upstream={nats_server.url}"
    done = run("--nats-record=all", upstream)
    assert done.ret == 0
    sentence = "both.ncap was recorded by 2 tests, and has the last recording alone: give each its own"
    done.stdout.fnmatch_lines([f"Warning: {sentence}"])
    done = run()
    done.stdout.no_fnmatch_line("Warning: *")
    shared = {"both.ncap": ["test_shared.py::test_one", "test_shared.py::test_two"]}
    assert receipt_of(pytester)["shared"] == shared


def test_a_session_with_a_real_server_is_not_isolated(
    recorded: Run, pytester: pytest.Pytester, nats_server: NatsServer
) -> None:
    pytester.makepyfile(
        test_proxied="""
        from shop import buy

        def test_proxied(nats_proxy):
            assert buy(nats_proxy.url, b"1") == [b"1"]
        """
    )
    assert recorded(f"--nats-upstream={nats_server.url}").ret == 0
    receipt = receipt_of(pytester)
    assert (receipt["served"], receipt["isolated"]) == (11, False)


def test_new_episodes_are_isolated_until_a_server_is_asked(
    recorded: Run, pytester: pytest.Pytester, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--nats-record=new_episodes", f"--nats-upstream={nats_server.url}", "-k", "another")
    assert recorded(*options).ret == 0
    assert receipt_of(pytester)["isolated"] is True
    monkeypatch.setenv("BODY", "new")
    assert recorded(*options).ret == 0
    receipt = receipt_of(pytester)
    (row,) = receipt["cassettes"]
    assert (receipt["isolated"], row["reached_server"], row["missed"]) == (False, True, 1)
    assert row["added"] > 0
