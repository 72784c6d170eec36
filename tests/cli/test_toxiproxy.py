"""`natsproxy toxiproxy` as a process: its flags, its file, its log, its end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from natsproxy.cli import main

PROXIES = [
    {"name": "nats", "listen": "127.0.0.1:0", "upstream": "127.0.0.1:1"},
    {"name": "off", "listen": "127.0.0.1:0", "upstream": "127.0.0.1:1", "enabled": False},
]


@contextmanager
def running(*flags: str) -> Iterator[tuple[subprocess.Popen[str], str, list[dict[str, Any]]]]:
    """Run it; give the process, the URL of the API, and the lines of the log before that."""
    command = [sys.executable, "-m", "natsproxy", "toxiproxy", "--log-format", "json", *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        lines = []
        for line in process.stderr:
            lines.append(json.loads(line))
            if lines[-1]["event"] == "toxiproxy listens":
                break
        yield process, lines[-1]["url"], lines
    finally:
        process.kill()
        process.communicate()


def ask(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return json.loads(answer.read())


@pytest.mark.parametrize(
    "flags",
    [
        ["-host=127.0.0.1", "-port=0", "-config={}"],
        pytest.param(["-host", "127.0.0.1", "-port", "0", "-config", "{}"], marks=pytest.mark.long),
        pytest.param(["--host=127.0.0.1", "--port", "0", "--config={}", "-seed=5"], marks=pytest.mark.long),
    ],
)
def test_it_is_started_as_toxiproxy_is(flags: list[str], tmp_path: Path) -> None:
    config = tmp_path / "proxies.json"
    config.write_text(json.dumps(PROXIES))
    with running(*(flag.format(config) for flag in flags)) as (process, url, lines):
        proxies = ask(f"{url}/proxies")
        assert {name: proxy["enabled"] for name, proxy in proxies.items()} == {"nats": True, "off": False}
        assert [line["proxy"] for line in lines[:-1]] == ["nats"]
        assert all(line["level"] == "info" for line in lines)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_an_open_api_is_warned_of() -> None:
    with running("-host=0.0.0.0", "-port=0", "-proxy-metrics") as (_, url, lines):
        assert any(line["level"] == "warning" and "no authentication" in line["event"] for line in lines)
        with urllib.request.urlopen(url.replace("0.0.0.0", "127.0.0.1") + "/metrics", timeout=20) as answer:
            assert b"toxiproxy_proxy_sent_bytes_total" in answer.read()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"name": "a"}]', "config: missing required field: upstream at proxy 1"),
        ("nonsense", "config: bad request body"),
        (None, "cannot read the configuration"),
    ],
)
def test_a_wrong_config_ends_it(text: str | None, message: str, tmp_path: Path) -> None:
    config = tmp_path / "proxies.json"
    if text is not None:
        config.write_text(text)
    done = CliRunner().invoke(main, ["toxiproxy", "-port=0", "-config", str(config)])
    assert done.exit_code == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
