"""deploy/monitoring: what Prometheus, Grafana and compose read is right, and speaks of metrics that exist."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import nats
import pytest
import yaml

from tests.kit.process import ProxyProcess
from tests.kit.servers import NatsServer

FOLDER = Path(__file__).parent.parent / "deploy" / "monitoring"
PROMTOOL = shutil.which("promtool")
COMPOSE = shutil.which("docker-compose")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not installed: apt-get install prometheus"
)


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text())
    return found


def promtool(*arguments: str, given: str | None = None) -> str:
    done = subprocess.run(
        [PROMTOOL or "", *arguments], input=given, capture_output=True, text=True, check=False, cwd=FOLDER
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def expressions() -> list[str]:
    """Return all queries of the board and the alerts, with the board's variables put in."""
    panels = json.loads((FOLDER / "natsproxy.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    alerts = [rule["expr"] for rule in read("alerts.yml")["groups"][0]["rules"]]
    return [
        query.replace("$__rate_interval", "1m").replace("$instance", ".*") for query in [*queries, *alerts]
    ]


@needs_promtool
def test_promtool_takes_configuration_and_alerts() -> None:
    promtool("check", "config", "--syntax-only", "prometheus.yml")
    promtool("check", "rules", "alerts.yml")
    promtool("test", "rules", "alerts.test.yml")


def test_each_alert_has_its_tests() -> None:
    """One where all is well, one where it is raised."""
    names = {rule["alert"] for rule in read("alerts.yml")["groups"][0]["rules"]}
    well, wrong = (
        {case["alertname"]: case.get("exp_alerts", []) for case in test["alert_rule_test"]}
        for test in read("alerts.test.yml")["tests"]
    )
    assert well == {name: [] for name in names}
    assert set(wrong) == names
    assert all(wrong.values())


@needs_promtool
def test_promtool_understands_the_queries_of_the_board(tmp_path: Path) -> None:
    rules = [{"record": f"query{number}", "expr": query} for number, query in enumerate(expressions())]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": rules}]}))
    promtool("check", "rules", str(file))


def test_panels_of_the_board_lie_side_by_side() -> None:
    panels = json.loads((FOLDER / "natsproxy.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (panel["gridPos"]["x"] + across, panel["gridPos"]["y"] + down)
        for panel in panels
        for across in range(panel["gridPos"]["w"])
        for down in range(panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)


def test_compose_mounts_files_that_are_there() -> None:
    """Each where the service reads it, and where the other files say."""
    services = read("compose.yaml")["services"]
    mounts: dict[str, Path] = {}
    for service in services.values():
        for volume in service.get("volumes", []):
            source, target, *_ = volume.split(":")
            if source.startswith("."):
                assert (FOLDER / source).is_file()
                mounts[target] = FOLDER / source
    others = {"compose.yaml", "alerts.test.yml", "podmonitor.yaml"}
    assert {path.name for path in mounts.values()} | others == {path.name for path in FOLDER.iterdir()}
    (name,) = read("prometheus.yml")["rule_files"]
    assert f"/etc/prometheus/{name}" in mounts
    folder = read("boards.yml")["providers"][0]["options"]["path"]
    boards = [target for target in mounts if target.startswith(f"{folder}/")]
    assert boards == [services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]]
    (target,) = read("prometheus.yml")["scrape_configs"][0]["static_configs"][0]["targets"]
    host, _, port = target.partition(":")
    assert f"0.0.0.0:{port}" in services[host]["command"]
    assert read("datasource.yml")["datasources"][0]["url"] == "http://prometheus:9090"


@pytest.mark.skipif(COMPOSE is None, reason="docker-compose is not installed: apt-get install docker-compose")
def test_compose_takes_the_file() -> None:
    done = subprocess.run(
        [COMPOSE or "", "-f", str(FOLDER / "compose.yaml"), "config", "-q"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


RULE = '[[rules]]\nname = "late"\nkind = "latency"\nop = "PUB"\nsubject = "a"\ndelay = "1ms"\n'
METRIC = re.compile(r"\b((?:natsproxy|process)_\w+)(?:\{(.*?)\})?")
GIVEN = {"instance", "job", "le"}
"""Labels that Prometheus adds, and that of histograms."""


async def publish(url: str) -> None:
    nc = await nats.connect(url, user="anybody", password="x")  # the server asks for no login
    await nc.publish("a", b"")
    with pytest.raises(nats.errors.NoRespondersError):
        await nc.request("b", b"")
    await nc.close()


@pytest.mark.server
def test_all_metrics_and_labels_of_the_queries_are_in_a_scrape(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    """Of a proxy with a client that publishes, a rule that fires, a capture, and a connection that ended."""
    rules = tmp_path / "rules.toml"
    rules.write_text(RULE)
    options = ["--monitor", "127.0.0.1:0", "--record", str(tmp_path / "x.ncap"), "--rules", str(rules)]
    options += ["--request-metrics", "templates"]
    with ProxyProcess(nats_server.url, *options) as proxy:
        monitor = proxy.wait_for(lambda line: line["event"] == "monitor listens")["url"]
        asyncio.run(publish(f"nats://127.0.0.1:{proxy.port}"))
        proxy.wait_for(lambda line: line["event"] == "closed")
        for _ in range(2):  # the second one has the first one's request
            with urlopen(f"{monitor}/metrics", timeout=10) as answer:
                scrape = answer.read().decode()
    assert 'natsproxy_client_requests_total{account="",user="(claimed)"} 1.0' in scrape
    labels: dict[str, set[str]] = {name: set() for name in re.findall(r"^# TYPE (\S+)", scrape, re.MULTILINE)}
    for name, pairs in re.findall(r"^([a-z]\w+)(?:\{(.*)\})? ", scrape, re.MULTILINE):
        labels.setdefault(name, set()).update(re.findall(r'(\w+)="', pairs))
    for query in expressions():
        used = METRIC.findall(query)
        assert used or query.startswith("up{")
        for name, selected in used:
            assert name in labels, query
            assert set(re.findall(r'(\w+)=~?"', selected)) <= labels[name] | GIVEN, query
        grouped = {label for found in re.findall(r"by \((.*?)\)", query) for label in found.split(",")}
        assert {label.strip() for label in grouped} <= labels.get(used[0][0] if used else "", set()) | GIVEN


@needs_promtool
@pytest.mark.server
def test_promtool_finds_nothing_wrong_with_a_scrape(nats_server: NatsServer) -> None:
    with ProxyProcess(nats_server.url, "--monitor", "127.0.0.1:0") as proxy:
        monitor = proxy.wait_for(lambda line: line["event"] == "monitor listens")["url"]
        with urlopen(f"{monitor}/metrics", timeout=10) as answer:
            promtool("check", "metrics", given=answer.read().decode())
