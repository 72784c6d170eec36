"""Our workflows and the recipes for CI: pinned, least rights, and steps that work."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from natsproxy.rules.cookbook import COOKBOOK
from tests.cli.test_sweep import WAITS
from tests.sweep.kit import HELLO

ROOT = Path(__file__).parent.parent
RELEASE = ROOT / ".github" / "workflows" / "release.yml"
CI = ROOT / ".github" / "workflows" / "ci.yml"
RECIPE = ROOT / "deploy" / "github-actions.yml"
SWEEP = ROOT / "deploy" / "sweep-actions.yml"
WORKFLOWS = (RELEASE, CI, RECIPE, SWEEP)
BIN = Path(sys.executable).parent


def workflow(path: Path) -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load(path.read_text())
    return found


def steps(path: Path) -> Iterator[dict[str, Any]]:
    for job in workflow(path)["jobs"].values():
        yield from job["steps"]


def test_actions_are_pinned_and_named() -> None:
    """To a commit, with the release in a comment; the same one everywhere."""
    texts = "".join(path.read_text() for path in WORKFLOWS)
    used = re.findall(r"uses: (\S+)@(\S+)(?: # (v[\d.]+))?$", texts, re.MULTILINE)
    assert len(used) == sum("uses" in step for path in WORKFLOWS for step in steps(path))
    assert all(re.fullmatch("[0-9a-f]{40}", commit) and release for _, commit, release in used)
    assert len(set(used)) == len({name for name, *_ in used})


def test_jobs_have_the_rights_that_they_need() -> None:
    found = workflow(RELEASE)
    assert found["permissions"] == {}
    writing = {
        name: {right for right, level in job["permissions"].items() if level == "write"}
        for name, job in found["jobs"].items()
    }
    assert {name: rights for name, rights in writing.items() if rights} == {
        "pypi": {"id-token"},
        "github": {"contents"},
        "image": {"packages"},
    }
    assert found["jobs"]["pypi"]["environment"] == "pypi"
    for name in ("pypi", "image"):
        assert found["jobs"][name]["if"] == "github.event_name == 'push' && github.ref_type == 'tag'"
    assert found["jobs"]["github"]["needs"] == ["pypi"]


def test_ci_runs_the_targets_of_the_makefile_on_the_versions_that_we_support() -> None:
    """Changes are checked on every supported Python; the long tests run on a schedule."""
    found = workflow(CI)
    makefile = (ROOT / "Makefile").read_text()
    targets = {match for step in steps(CI) for match in re.findall(r"\bmake ([\w-]+)", step.get("run", ""))}
    assert targets == {"check", "test", "test-fast", "check-long"}
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest, *_ = found["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert project["requires-python"] == f">={oldest}"
    # PyYAML reads the key `on` as true.
    assert {"push", "pull_request", "schedule"} <= found[True].keys()
    assert all(job["permissions"] == {"contents": "read"} for job in found["jobs"].values())


def test_the_tag_is_held_against_the_version(tmp_path: Path) -> None:
    (script,) = (step["run"] for step in steps(RELEASE) if step.get("name") == "The tag is the version")
    (version,) = re.findall(r'__version__ = "(.*)"', (ROOT / "natsproxy" / "__init__.py").read_text())
    for tag, code in ((f"v{version}", 0), ("v99.0.0", 1)):
        done = subprocess.run(
            ["bash", "-e", "-c", script], cwd=ROOT, env={**os.environ, "GITHUB_REF_NAME": tag}, check=False
        )
        assert done.returncode == code


def test_the_test_of_a_wheel_passes_here() -> None:
    """The command that cibuildwheel runs in each wheel's environment."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    done = subprocess.run(
        ["bash", "-e", "-c", settings["test-command"]],
        env={**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


ZIZMOR = shutil.which("zizmor", path=f"{BIN}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.skipif(ZIZMOR is None, reason="zizmor is not installed: pip install zizmor")
@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_zizmor_finds_nothing(path: Path) -> None:
    done = subprocess.run(
        [ZIZMOR or "", "--offline", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_the_matrix_is_of_the_cookbook() -> None:
    faults = workflow(RECIPE)["jobs"]["faults"]["strategy"]["matrix"]["fault"]
    assert faults[0] == "none"
    assert set(faults[1:]) <= set(COOKBOOK)


SUITE = """
import os
import nats
import pytest

@pytest.mark.asyncio
async def test_publishing():
    nc = await nats.connect(os.environ["NATS_URL"])
    js = nc.jetstream(timeout=1)
    await js.add_stream(name="ORDERS", subjects=["orders.>"])
    assert (await js.publish("orders.new", b"x")).seq == 1
    await nc.close()
"""


STOP = "Stop the proxy, which fails if a rule has never fired"


@pytest.mark.long
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="there is no repository here")
@pytest.mark.parametrize("path", [RECIPE, SWEEP], ids=lambda path: path.name)
def test_the_recipe_installs(path: Path, tmp_path: Path) -> None:
    """Its command, from a repository, as far as what would be installed."""
    (job,) = workflow(path)["jobs"].values()
    (script,) = (step["run"] for step in job["steps"] if step.get("name") == "Install")
    assert job["env"]["NATSPROXY"] == "git+https://github.com/OWNER/natsproxy@main"
    (tmp_path / "requirements.txt").write_text("pytest\n")
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=tmp_path,
        env={
            **os.environ,
            "NATSPROXY": f"git+file://{ROOT}",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            **{f"PIP_{name}": "1" for name in ("DRY_RUN", "NO_DEPS", "NO_INDEX")},
            "PIP_NO_BUILD_ISOLATION": "0",  # which turns isolation off, as pip's documentation says
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Would install natsproxy-" in done.stdout


@pytest.mark.long
@pytest.mark.server
def test_a_part_of_a_sweep_fails_on_findings_that_are_not_known(tmp_path: Path) -> None:
    """The shell steps as they are printed, with less patience and one fault; nothing is installed."""
    (job,) = workflow(SWEEP)["jobs"].values()
    assert set(job["env"]) == {"NATSPROXY", "PROGRAM", "SHARD"}
    parts = job["strategy"]["matrix"]["part"]
    assert job["env"]["SHARD"].endswith(f"}}}}/{len(parts)}")
    assert f"of {len(parts)}" in job["name"]
    assert parts == [*range(1, len(parts) + 1)]
    scripts = {step["name"]: step["run"] for step in job["steps"] if "run" in step}
    assert list(scripts) == ["Install", "Sweep", "Show the findings"]
    (tmp_path / "worker.py").write_text(textwrap.dedent(HELLO) + WAITS)

    def run(name: str) -> subprocess.CompletedProcess[str]:
        quick = "--faults drop --subject job --baseline 2 --confirm 2 --patience 1500ms"
        return subprocess.run(
            ["bash", "-e", "-c", scripts[name].replace(" -- ", f" {quick} -- ")],
            cwd=tmp_path,
            env={
                **os.environ,
                "PROGRAM": f"{sys.executable} -S worker.py",
                "SHARD": "1/1",
                "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    swept = run("Sweep")
    assert swept.returncode == 1, swept.stderr
    assert "2 tried: 2 deaf" in swept.stderr
    shown = run("Show the findings").stdout
    names = re.findall(r"^Accept it, .*:\n *(\S+)$", shown, re.MULTILINE)
    assert len(names) == 2
    (tmp_path / "known-findings").write_text("\n".join(names))
    known = run("Sweep")
    assert known.returncode == 0, known.stderr
    assert "accepted)" in known.stdout


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@pytest.mark.server
@pytest.mark.parametrize(
    ("fault", "passes", "fires"),
    [
        ("none", True, True),
        pytest.param("reconnect-storm", True, False, marks=pytest.mark.long),
        pytest.param("slow-api", False, True, marks=pytest.mark.long),
        pytest.param("no-quorum", False, True, marks=pytest.mark.long),
    ],
)
def test_the_steps_of_the_recipe(fault: str, passes: bool, fires: bool, tmp_path: Path) -> None:
    """Its shell steps, as they are printed, with other ports; nothing is installed."""
    (tmp_path / "test_suite.py").write_text(SUITE)
    server, proxy = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    job = workflow(RECIPE)["jobs"]["faults"]
    assert set(job["env"]) == {"FAULT", "NATSPROXY", "SERVER", "PROXY", "SEED"}
    environment = {
        **os.environ,
        "FAULT": fault,
        "SERVER": server,
        "PROXY": proxy,
        "SEED": "7",
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    }
    scripts = {step["name"]: step for step in job["steps"] if "run" in step}
    assert list(scripts) == ["Install", "Start the server and the proxy", "Test", STOP, "Show what happened"]
    del scripts["Install"]

    def run(name: str) -> subprocess.CompletedProcess[str]:
        step = scripts[name]
        own = {key: value.replace(job["env"]["PROXY"], proxy) for key, value in step.get("env", {}).items()}
        with (tmp_path / "output").open("w+") as output:  # a pipe would stay open in what runs on
            done = subprocess.run(
                ["bash", "-e", "-c", step["run"]],
                cwd=tmp_path,
                env={**environment, **own},
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                process_group=group,
            )
            output.seek(0)
            return subprocess.CompletedProcess(done.args, done.returncode, output.read())

    holder = subprocess.Popen(["sleep", "300"], process_group=0)  # its group is that of all steps
    group = holder.pid
    try:
        started = run("Start the server and the proxy")
        assert started.returncode == 0, started.stdout
        tested = run("Test")
        assert (tested.returncode == 0) is passes, tested.stdout
        ended = run(STOP)
        assert (ended.returncode == 0) is fires, ended.stdout
        if not fires:
            says = "Error: rule 'all at once' never fired: it selected 1 connection, and its gate (10s to 11s"
            assert ended.stdout.startswith(says)
        if fault == "no-quorum":
            assert "10008" in tested.stdout
            shown = run("Show what happened")
            assert shown.returncode == 0, shown.stdout
            assert '"rule": "no leader"' in shown.stdout
            assert "$JS.API.STREAM.CREATE.ORDERS" in shown.stdout
    finally:
        os.killpg(group, signal.SIGKILL)
        holder.wait()
