"""deploy/monitoring: what Prometheus, Grafana and compose read is right, and speaks of metrics that exist."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

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
    others = {"compose.yaml", "alerts.test.yml"}
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
