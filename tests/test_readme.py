"""README, guides and deploy files tell the truth: every natsproxy command in them is run, or checked."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import bcrypt
import pytest
import yaml
from click.testing import CliRunner

from natsproxy.capture.read.reader import open_capture
from natsproxy.capture.text.writer import write_text
from natsproxy.cli import main
from natsproxy.protocol.credentials import KeyPair
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from natsproxy.units import MIB, parse_size
from natsproxy.wire.ops import C2S, S2C
from tests.kit.accounts import Operator, seed
from tests.kit.captures import Scribe, write
from tests.kit.collector import Collector, served
from tests.kit.documents import DOCUMENTS, ROOT, TEXT, blocks
from tests.kit.process import ProxyProcess
from tests.kit.servers import NatsServer
from tests.kit.waits import replace_waits
from tests.rules.kit import Wire

COMMANDS = [line for block in blocks("sh") for line in block.splitlines()]
RULES = blocks("toml")


def test_make_targets_exist() -> None:
    """Those that the documents name."""
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^make ([\w-]+)|`make ([\w-]+)`", TEXT, re.MULTILINE)
    for target in filter(None, itertools.chain(*targets)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def anchors(document: Path) -> set[str]:
    """Return the anchors of its headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_the_links_of_a_document_lead_somewhere(document: Path) -> None:
    """Those within the project: to a file or folder, and to a heading in it."""
    links = re.findall(r"\]\(((?!https?://)[^)#]*)(?:#([^)]*))?\)", document.read_text())
    assert links
    for place, anchor in links:
        target = document.parent / place if place else document
        assert target.exists(), place
        assert not anchor or anchor in anchors(target), f"{place}#{anchor}"


def test_each_guide_is_in_the_readme() -> None:
    """A guide that no link leads to would not be read."""
    readme, *guides = DOCUMENTS
    for guide in guides:
        assert f"]({guide.relative_to(ROOT)})" in readme.read_text()


def test_the_rules_are_rules() -> None:
    """The TOML of the README loads."""
    (text,) = RULES
    assert len(load(text, KINDS)) == 3


def test_the_walk_through_makes_a_rule_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kind and its test, as they are printed."""
    kind, test = (block for block in blocks("python") if "empty" in block)
    names: dict[str, Any] = {"Wire": Wire}
    exec(kind, names)
    monkeypatch.setitem(KINDS, "empty", names["KIND"])
    assert len(load(names["KIND"].example, KINDS)) == 1
    exec(test, names)
    names["test_the_payload_is_gone"]()


# `make demo` runs that command too.
TABLES = [pytest.mark.spark, pytest.mark.long]
OURS = [
    pytest.param(line, marks=TABLES if line.startswith("natsproxy analyze") else ())
    for line in COMMANDS
    if line.startswith("natsproxy ") and not line.startswith("natsproxy sweep")
]
SWEEPS = [line for line in COMMANDS if line.startswith("natsproxy sweep")]
REMOTE = ("ctl", "top", "tap")
"""The commands that reach a running proxy by its admin API."""


@pytest.fixture(scope="module")
def admin(nats_server: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a proxy; give the address of its admin API."""
    flags = ("--admin", "127.0.0.1:0", "--admin-captures", str(tmp_path_factory.mktemp("captures")))
    with ProxyProcess(nats_server.url, *flags) as proxy:
        yield str(proxy.wait_for(lambda said: said["event"] == "admin listens")["url"])


@pytest.fixture
def collector() -> Iterator[str]:
    """Give the URL of a collector."""
    with served(Collector()) as url:
        yield url


def interrupt(_: float) -> None:
    """Be a signal in the place of a wait."""
    raise KeyboardInterrupt


@pytest.mark.server
@pytest.mark.parametrize("line", OURS)
def test_each_command_runs_as_printed(
    line: str,
    nats_server: NatsServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """With the ports of this machine put in; servers are stopped when they say that they listen."""
    capture = Scribe()
    capture.frame(
        0, 1, S2C, b'INFO {"server_id":"S","version":"2.15.1","headers":true,"max_payload":1000} \r\n'
    )
    capture.frame(1, 1, C2S, b'CONNECT {"verbose":false,"headers":true}\r\n')
    capture.frame(2, 1, C2S, b"PUB orders.new 1\r\nx\r\n")
    if "--record" not in line:
        traffic = open_capture(write(tmp_path / "traffic.ncap", capture.items))
        if "traffic.nats.txt again.ncap" in line:
            with (tmp_path / "traffic.nats.txt").open("wb") as text:
                write_text(traffic, text)
    (tmp_path / "faults.toml").write_text(RULES[0])
    (tmp_path / "signers.txt").write_text(f"# ours\n{KeyPair(seed('account')).public}\n")
    (tmp_path / "own.creds").write_text(Operator().creds("own"))
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
    (tmp_path / "users.toml").write_text(f'[[users]]\nuser = "ann"\npassword = "{hashed}"\n')
    if "certs/" in line:
        assert CliRunner().invoke(main, ["cert", str(tmp_path / "certs")]).exit_code == 0
    line = line.replace("nats://127.0.0.1:4223", nats_server.url)
    line = re.sub(r"--listen (tls://)?127\.0\.0\.1:\d+", r"--listen \g<1>127.0.0.1:0", line)
    line = line.replace("-port=8474", "-port=0")
    line = re.sub(r"127\.0\.0\.1:822[23]", "127.0.0.1:0", line)
    if "--follow" in line:
        (tmp_path / "traffic").mkdir()
        write(tmp_path / "traffic" / "1.ncap", capture.items)
        replace_waits(monkeypatch, interrupt)
        line = line.replace("http://127.0.0.1:4318", request.getfixturevalue("collector"))
    arguments = shlex.split(line)[1:]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(
        "PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    )  # a command may run another
    if arguments[0] in REMOTE:
        monkeypatch.setenv("NATSPROXY_ADMIN_URL", request.getfixturevalue("admin"))
    if "--listen" in line or arguments[0] in ("toxiproxy", "tap"):
        stopped(arguments)
    else:
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 0, done.output


@pytest.mark.long
@pytest.mark.server
def test_the_sweep_finds_what_is_printed(tmp_path: Path) -> None:
    """In the program as it is printed, with less patience."""
    (program,) = (block for block in blocks("python") if "publish_async_completed" in block)
    (printed,) = (block for block in blocks("text") if block.startswith("01-"))
    (tmp_path / "worker.py").write_text(program)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    again = "drop at worker · c2s · 1st PUB on orders.*: hung, 2 of 2 runs"
    for line, expected in zip(SWEEPS, (printed, again), strict=True):
        done = subprocess.run(
            line.replace(" -- ", " --patience 3s --confirm 2 -- "),
            shell=True,
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 1, done.stderr
        assert {*map(gist, expected.splitlines())} <= {*map(gist, (done.stdout + done.stderr).splitlines())}


def gist(line: str) -> str:
    """Return a line of a sweep without what differs from run to run: it depends on who is first."""
    return re.sub(r"\d(?:st|nd|rd)|gets .*? and sends|in [\d.]+ s|\d of \d", "…", line)


def stopped(arguments: list[str]) -> None:
    """Run a command until it says that it listens; it must end well."""
    command = [sys.executable, "-m", "natsproxy", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            words = ("looking at", "listening", "playing", "toxiproxy listens")
            assert any(word in said for said in process.stderr for word in words)
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=280)
        finally:
            process.kill()
    assert "Traceback" not in errors
    assert process.returncode in ((0, 1, 130) if "to-client" in arguments else (0,)), errors


def test_help_is_there_for_every_command() -> None:
    """Each command's --help has an example."""
    runner = CliRunner()
    for name in main.list_commands(None):  # type: ignore[arg-type]
        done = runner.invoke(main, [name, "--help"])
        assert done.exit_code == 0
        assert "natsproxy" in done.output or "Commands:" in done.output


DEPLOYED = [
    ("Dockerfile", r'^CMD (\["run".*\])$'),
    ("compose.yaml", r'command: (\["run".*\])$'),
    ("cluster.yaml", r'command: (\["run".*\])$'),
    ("monitoring/compose.yaml", r'command: (\["run".*\])$'),
    ("kubernetes.yaml", r'args: (\["run".*\])$'),
    ("natsproxy.service", r"^ExecStart=\S+/natsproxy (.*)$"),
]


@pytest.mark.parametrize(("name", "pattern"), DEPLOYED)
def test_what_is_deployed_is_a_command(name: str, pattern: str, tmp_path: Path) -> None:
    """The commands of the deploy files are known to the command line: it gets as far as the settings."""
    (text,) = re.findall(pattern, (ROOT / "deploy" / name).read_text(), re.MULTILINE)
    words: list[str] = tomllib.loads(f"words = {text}")["words"] if text[0] == "[" else shlex.split(text)
    assert words.pop(0) == "run"
    if "--config" in words:
        place = words.index("--config") + 1
        (tmp_path / "settings.toml").write_text(CONFIG_MAP)
        words[place] = str(tmp_path / "settings.toml")
    done = CliRunner().invoke(main, ["config", *words, "--json"])
    assert done.exit_code == 0, done.output
    assert "4222" in done.output


def test_the_image_in_the_place_of_toxiproxys() -> None:
    """Its command line, as far as the flags are read."""
    image = (ROOT / "deploy" / "Dockerfile").read_text()
    (words,) = re.findall(r'^ENTRYPOINT \["natsproxy", ("toxiproxy")\]\nCMD \[(.*)\]$', image, re.MULTILINE)
    words = [word for text in words for word in tomllib.loads(f"words = [{text}]")["words"]]
    done = CliRunner().invoke(main, [*words, "-port=none"])
    assert "'none' is not a valid integer" in done.output


def test_the_image_in_the_place_of_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It plays the only cassette of its folder, and is healthy while it does."""
    image = (ROOT / "deploy" / "Dockerfile").read_text()
    (text,) = re.findall(r"^FROM natsproxy AS cassette\n(?:.*\n)*?CMD (\[.*\])$", image, re.MULTILINE)
    words: list[str] = tomllib.loads(f"words = {text}")["words"]
    scribe = Scribe()
    scribe.frame(0, 1, S2C, b'INFO {"server_id":"S","version":"2.15.1","headers":true} \r\n')
    write(tmp_path / "orders.ncap", scribe.items)
    monkeypatch.setenv("NATSPROXY_READY_FILE", str(tmp_path / "ready"))
    places = {"/cassettes": str(tmp_path), "0.0.0.0:4222": "127.0.0.1:0", "0.0.0.0:8222": "127.0.0.1:0"}
    command = [sys.executable, "-m", "natsproxy", *(places.get(word, word) for word in words)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            said = process.stderr.readline()
            found = re.fullmatch(r"playing \S+ on nats://\S+, scopes at (\S+)\n", said)
            assert found, said
            with urlopen(found[1], timeout=30) as answer:
                assert json.load(answer)["cassette"] == str(tmp_path / "orders.ncap")
            assert CliRunner().invoke(main, ["healthcheck"]).exit_code == 0
        finally:
            process.terminate()
            process.communicate(timeout=30)
    assert process.returncode == 0
    assert CliRunner().invoke(main, ["healthcheck"]).exit_code == 1


def test_the_pod_opens_the_ports_that_it_listens_on() -> None:
    text = (ROOT / "deploy" / "kubernetes.yaml").read_text()
    listening = re.findall(r'"--(?:listen|monitor)", "0\.0\.0\.0:(\d+)"', text)
    assert listening == re.findall(r"containerPort: (\d+)", text) == ["4222", "8222"]
    assert 'prometheus.io/port: "8222"' in text


def test_captures_stay_within_the_volume_of_the_pod() -> None:
    """Kubernetes evicts a pod whose volume is too full; a segment of room is left."""
    text = (ROOT / "deploy" / "kubernetes.yaml").read_text()
    (keep,) = re.findall(r'"--record-keep", "([^"]+)"', text)
    (limit,) = re.findall(r"name: captures, emptyDir: {sizeLimit: (\S+?)}", text)
    assert parse_size(keep) + 256 * MIB < parse_size(f"{limit}B")


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("Dockerfile", r'^HEALTHCHECK .* CMD \["natsproxy", (.*)\]$'),
        ("kubernetes.yaml", r'Probe: {exec: {command: \["natsproxy", (.*?)\]}'),
    ],
)
def test_probes_find_the_files_of_the_image(
    name: str, pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an argument: the image names the files for the proxy and for its probes."""
    image = (ROOT / "deploy" / "Dockerfile").read_text()
    for variable, place in re.findall(r"(NATSPROXY_\w+_FILE)=(\S+)", image):
        monkeypatch.setenv(variable, str(tmp_path / Path(place).name))
        (tmp_path / Path(place).name).touch()
    found = re.findall(pattern, (ROOT / "deploy" / name).read_text(), re.MULTILINE)
    assert found
    for text in found:
        done = CliRunner().invoke(main, tomllib.loads(f"words = [{text}]")["words"])
        assert done.exit_code == 0, done.output


def test_the_socket_is_that_of_the_service() -> None:
    """A socket that no --listen names would be refused."""
    service = (ROOT / "deploy" / "natsproxy.service").read_text()
    (place,) = re.findall(
        r"^ListenStream=(\S+)$", (ROOT / "deploy" / "natsproxy.socket").read_text(), re.MULTILINE
    )
    assert f"--listen :{place} " in service


CONFIG_MAP = textwrap.dedent(
    (ROOT / "deploy" / "kubernetes.yaml").read_text().split("natsproxy.toml: |\n")[1].split("---")[0]
)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
def test_systemd_understands_the_units(tmp_path: Path) -> None:
    for name in ("natsproxy.service", "natsproxy.socket"):
        unit = (ROOT / "deploy" / name).read_text()
        (tmp_path / name).write_text(unit.replace("/usr/local/bin/natsproxy", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / "natsproxy.socket")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert [line for line in done.stderr.splitlines() if "natsproxy." in line] == []


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
def test_the_unit_is_confined() -> None:
    """By the rating of systemd: below 3 of 10, where 0 is best."""
    done = subprocess.run(
        [
            "systemd-analyze",
            "security",
            "--offline=true",
            "--no-pager",
            ROOT / "deploy" / "natsproxy.service",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"Overall exposure level for natsproxy.service: ([0-9.]+)", done.stdout)
    assert found is not None, done.stderr
    assert float(found[1]) < 3


def test_the_pod_monitor_finds_the_pods() -> None:
    """Label and port are those of the pods."""
    monitor = yaml.safe_load((ROOT / "deploy" / "monitoring" / "podmonitor.yaml").read_text())["spec"]
    documents = yaml.safe_load_all((ROOT / "deploy" / "kubernetes.yaml").read_text())
    (pods,) = [one["spec"]["template"] for one in documents if one["kind"] == "StatefulSet"]
    assert monitor["selector"]["matchLabels"].items() <= pods["metadata"]["labels"].items()
    ports = {port["name"] for one in pods["spec"]["containers"] for port in one.get("ports", [])}
    assert {one["port"] for one in monitor["podMetricsEndpoints"]} <= ports
