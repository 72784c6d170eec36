"""deploy/helm: what the official chart of nats-server makes of the values.

No helm runs here.  The chart renders documents of its own, lays `merge` over them (maps are merged, lists are
replaced: Sprig's mergeOverwrite) and applies `patch` (RFC 6902); the documents below are those that it
renders of its default values, as far as the values touch them.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import textwrap
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from natsproxy.cli import main

FOLDER = Path(__file__).parent.parent / "deploy" / "helm"
VALUES: dict[str, Any] = yaml.safe_load((FOLDER / "values.yaml").read_text())
MONITORED: dict[str, Any] = yaml.safe_load((FOLDER / "podmonitor.yaml").read_text())["promExporter"]
SERVER = {
    "name": "nats",
    "ports": [
        {"name": "nats", "containerPort": VALUES["config"]["nats"]["port"]},
        {"name": "monitor", "containerPort": 8222},
    ],
    "volumeMounts": [{"name": "config", "mountPath": "/etc/nats-config"}],
}


def merged(document: Any, more: Any) -> Any:
    """Return a document with `merge` over it."""
    if isinstance(document, dict) and isinstance(more, dict):
        return document | {key: merged(document.get(key), value) for key, value in more.items()}
    return more


def patched(document: Any, patch: list[dict[str, Any]]) -> Any:
    """Return a document after a JSON Patch; a `test` that fails is an AssertionError."""
    document = deepcopy(document)
    for step in patch:
        *path, last = step["path"].removeprefix("/").split("/")
        place = document
        for token in path:
            place = place[int(token)] if isinstance(place, list) else place[token]
        at: Any = last if isinstance(place, dict) or last == "-" else int(last)
        if step["op"] == "test":
            assert place[at] == step["value"]
        elif step["op"] == "remove":
            del place[at]
        elif at == "-":
            place.append(step["value"])
        else:
            raise AssertionError(f"what does {step} do?")
    return document


def given(values: dict[str, Any], document: Any) -> Any:
    return patched(merged(document, values.get("merge", {})), values.get("patch", []))


def pod() -> dict[str, Any]:
    """Return the template of the pods."""
    server = given(VALUES["container"], SERVER)
    spec = {"containers": [server, {"name": "reloader"}], "volumes": [{"name": "config"}, {"name": "pid"}]}
    made: dict[str, Any] = given(VALUES["podTemplate"], {"metadata": {"labels": {"a": "b"}}, "spec": spec})
    return made


def sidecar() -> dict[str, Any]:
    (found,) = [one for one in pod()["spec"]["containers"] if one["name"] == "natsproxy"]
    return dict(found)


def test_the_service_leads_to_the_sidecar_and_nothing_else_is_named_so() -> None:
    """The chart's Service has port `nats` of the pods as its target, by the name."""
    assert VALUES["service"]["ports"]["nats"]["port"] == 4222
    ports = [(one["name"], port) for one in pod()["spec"]["containers"] for port in one.get("ports", [])]
    assert [(owner, port["containerPort"]) for owner, port in ports if port["name"] == "nats"] == [
        ("natsproxy", 4222)
    ]
    numbers = [port["containerPort"] for _, port in ports]
    assert len(set(numbers)) == len(numbers)
    listening = re.findall(r"0\.0\.0\.0:(\d+)", " ".join(sidecar()["args"]))
    assert listening == [str(port["containerPort"]) for port in sidecar()["ports"]]
    annotations = pod()["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == listening[1]
    assert pod()["metadata"]["labels"] == {"a": "b"}


def test_the_sidecar_is_that_of_the_plain_manifest() -> None:
    """Probes, limits and security; the ports alone differ."""
    documents = yaml.safe_load_all((FOLDER.parent / "kubernetes.yaml").read_text())
    (template,) = [one["spec"]["template"] for one in documents if one["kind"] == "StatefulSet"]
    (plain,) = [one for one in template["spec"]["containers"] if one["name"] == "natsproxy"]
    same = ("image", "readinessProbe", "livenessProbe", "resources", "securityContext")
    assert {key: sidecar()[key] for key in same} == {key: plain[key] for key in same}
    assert [arg.replace("8223", "8222") for arg in sidecar()["args"]] == plain["args"]
    assert pod()["spec"]["securityContext"] == template["spec"]["securityContext"]
    volumes = {one["name"]: one for one in pod()["spec"]["volumes"]}
    assert {one["name"] for one in sidecar()["volumeMounts"]} <= set(volumes)
    assert volumes["captures"] in template["spec"]["volumes"]


def test_the_settings_are_a_command_and_rules(tmp_path: Path) -> None:
    settings = tmp_path / "natsproxy.toml"
    settings.write_text(textwrap.dedent(VALUES["configMap"]["merge"]["data"]["natsproxy.toml"]))
    words = [str(settings) if word.endswith(".toml") else word for word in sidecar()["args"]]
    assert words.pop(0) == "run"
    done = CliRunner().invoke(main, ["config", *words, "--json"])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(main, ["rules", "check", str(settings)])
    assert done.exit_code == 0, done.output


def test_the_pod_monitor_scrapes_the_sidecar_too() -> None:
    made = given(MONITORED["podMonitor"], {"spec": {"podMetricsEndpoints": [{"port": "prom-metrics"}]}})
    first, second = made["spec"]["podMetricsEndpoints"]
    assert first == {"port": "prom-metrics"}
    assert second["port"] in {port["name"] for port in sidecar()["ports"]}


@pytest.mark.server
def test_the_server_takes_its_settings(tmp_path: Path) -> None:
    """The chart's configuration is JSON, with `http_port` for the monitoring port."""
    made = merged({"port": VALUES["config"]["nats"]["port"], "http_port": 8222}, VALUES["config"]["merge"])
    (tmp_path / "nats.conf").write_text(json.dumps(made))
    server = shutil.which("nats-server", path=Path(sys.executable).parent) or "nats-server"
    done = subprocess.run(
        [server, "-t", "-c", tmp_path / "nats.conf"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert made["host"] == "127.0.0.1"  # nobody reaches the server past the sidecar
    assert made["http"] == "0.0.0.0:8222"  # else the kubelet would not reach it
