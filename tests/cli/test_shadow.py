"""Rules in shadow at a running proxy: log, capture, metrics, admin API and `rules promote` tell of each."""

from __future__ import annotations

import asyncio
import json
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import nats
import pytest
from click.testing import CliRunner

from natsproxy.capture.format.records import FiringRecord
from natsproxy.capture.read.reader import open_capture
from natsproxy.cli import main
from tests.kit.clients import settle
from tests.kit.process import ProxyProcess
from tests.kit.servers import NatsServer

pytestmark = pytest.mark.server
RULES = """
# tried until Friday
[[rules]]
name = "no secrets"
kind = "deny"
subject = "secret.>"
mode = "shadow"

[[rules]]
name = "what it needs"
kind = "permissions"
publish = ["secret.>", "orders.>"]
mode = "shadow"

[[rules]]
name = "few"
kind = "limit"
subject = "orders.>"
messages = "4/h"
burst = 4
mode = "shadow"

[[rules]]
name = "quiet"
kind = "deny"
subject = "never"
mode = "shadow"
"""
WOULD = {"no secrets": 6, "what it needs": 2, "few": 6, "quiet": 0}
ACTIONS = {"no secrets": "would deny", "what it needs": "would deny", "few": "would limit"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shadow")


@pytest.fixture(scope="module")
def proxy(nats_server: NatsServer, folder: Path) -> Iterator[ProxyProcess]:
    """A proxy through which traffic has gone that all but one of its rules in shadow would have denied."""
    (folder / "rules.toml").write_text(RULES)

    async def program(url: str) -> None:
        nc = await nats.connect(url, name="app")
        came = 0

        async def take(_: object) -> None:
            nonlocal came
            came += 1

        await nc.subscribe("*.>", cb=take)
        for subject, times in (("secret.7", 3), ("other.x", 2), ("orders.1", 10)):
            for _ in range(times):
                await nc.publish(subject, b"")
        await settle(nc)
        assert came == 15
        await nc.close()

    flags = ["--admin", f"unix:{folder}/admin", "--monitor", "127.0.0.1:0", "--rules", f"{folder}/rules.toml"]
    flags += ["--record", f"{folder}/all.ncap", "--log-rate", "1000"]
    with ProxyProcess(nats_server.url, *flags) as running:
        asyncio.run(program(f"nats://127.0.0.1:{running.port}"))
        running.wait_for(lambda line: line["event"] == "closed")
        yield running


def promote(folder: Path, *args: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["rules", "promote", *args, "--admin", f"unix:{folder}/admin"])
    return done.exit_code, done.output


def test_each_is_logged_and_counted(proxy: ProxyProcess, folder: Path) -> None:
    logged = [(line["rule"], line["action"]) for line in proxy.lines() if line["event"] == "fired"]
    assert {pair: logged.count(pair) for pair in logged} == {
        (name, action): WOULD[name] for name, action in ACTIONS.items()
    }
    url = proxy.wait_for(lambda line: line["event"] == "monitor listens")["url"]
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    for name, action in ACTIONS.items():
        assert f'natsproxy_rule_would_fire_total{{rule="{name}"}} {WOULD[name]}.0' in lines
        assert f'natsproxy_rule_firings_total{{action="{action}",rule="{name}"}} {WOULD[name]}.0' in lines


def test_each_is_recorded(proxy: ProxyProcess, folder: Path) -> None:
    deadline = time.monotonic() + 10
    found: list[tuple[str, str]] = []
    while len(found) < sum(WOULD.values()) and time.monotonic() < deadline:  # it is still written
        items = open_capture(folder / "all.ncap").items()
        found = [(one.info["rule"], one.info["action"]) for _, one in items if isinstance(one, FiringRecord)]
    assert {pair: found.count(pair) for pair in found} == {
        (name, action): WOULD[name] for name, action in ACTIONS.items()
    }


def test_promoting_says_what_the_proxy_has_counted(proxy: ProxyProcess, folder: Path) -> None:
    code, output = promote(folder, str(folder / "rules.toml"))
    assert code == 1, output
    first, *lines = [line for line in output.splitlines() if line.startswith("#")]
    assert first.endswith("these rules would have broken 14:")
    assert [line.split(" of app/1, ")[0] for line in lines if " of app" in line] == [
        "# few: would limit: 6 PUB orders.*",
        "# no secrets: would deny: 3 MSG secret.*",
        "# no secrets: would deny: 3 PUB secret.*",
        "# what it needs: would deny: 2 PUB other.x",
    ]
    assert "# tried until Friday" in lines
    assert "mode" not in output.replace("# ", "").split("until Friday")[1]
    whole = json.loads(promote(folder, "--json")[1])
    assert whole["counts"] == WOULD
    assert [rule["name"] for rule in tomllib.loads(whole["rules"])["rules"]] == list(WOULD)
    assert "mode" not in whole["rules"]


def test_what_has_broken_nothing_ends_with_0(proxy: ProxyProcess, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "quiet.toml").write_text(RULES[RULES.index('[[rules]]\nname = "quiet"') :])
    code, output = promote(folder, str(tmp_path / "quiet.toml"))
    assert (code, "would have broken nothing" in output) == (0, True)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('"quiet"', '"new"', "it is not among its rules"),
        ('"never"', '"ever"', "there it says something else"),
    ],
)
def test_what_the_proxy_has_not_tried_is_no_verdict(
    proxy: ProxyProcess, folder: Path, tmp_path: Path, old: str, new: str, why: str
) -> None:
    (tmp_path / "other.toml").write_text(RULES.replace(old, new))
    code, output = promote(folder, str(tmp_path / "other.toml"))
    assert (code, why in output) == (2, True)
