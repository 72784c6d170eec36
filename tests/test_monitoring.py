"""deploy/monitoring: what Prometheus, Grafana and compose read is right, and speaks of metrics that exist."""

from __future__ import annotations

import json
import re
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


@needs_promtool
def test_promtool_takes_configuration_and_alerts() -> None:
    promtool("check", "config", "--syntax-only", "prometheus.yml")


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
    assert {path.name for path in mounts.values()} | {"compose.yaml"} == {path.name for path in FOLDER.iterdir()}
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
