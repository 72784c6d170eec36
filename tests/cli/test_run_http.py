"""`natsproxy run` with HTTP servers beside it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from natsproxy.testing import NatsServer
from tests.kit.process import ProxyProcess


def test_both_servers_answer_until_the_end(nats_server: NatsServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-of-some-length\n")
    flags = ("--monitor", "127.0.0.1:0", "--admin", "localhost:0", "--admin-token", str(token))
    with ProxyProcess(nats_server.url, *flags) as proxy:
        urls = {line["event"]: line["url"] for line in proxy.lines() if line["event"].endswith(" listens")}
        assert ask(urls["monitor listens"] + "/healthz") == {"status": "ok"}
        assert ask(urls["admin listens"] + "/v1/health") == {"ready": True, "reason": None}
        assert proxy.drain() == 0
        assert token.read_text().strip() not in proxy.log.read_text()


def ask(url: str) -> object:
    """Return the answer to a GET, once the proxy is ready."""
    deadline = time.monotonic() + 20
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != 503 or time.monotonic() > deadline:
                raise


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--admin", "0.0.0.0:0"], "admin beyond loopback needs admin-token and admin-tls-cert"),
        (["--admin-host", "proxy.local"], "admin-host is for the admin API: it needs admin"),
        (["--admin", ":0", "--admin-token", "env:NO_SUCH"], "admin_token env:NO_SUCH is not set"),
        (
            ["--admin", ":0", "--admin-tls-cert", "none.pem"],
            "admin-tls-cert and admin-tls-key cannot be used",
        ),
        (["--monitor", "192.0.2.1:80"], "cannot listen on 192.0.2.1:80"),
    ],
)
def test_a_mistake_is_said(flags: list[str], message: str) -> None:
    command = [sys.executable, "-m", "natsproxy", "run", "-l", "127.0.0.1:0", "-u", "127.0.0.1:1", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
