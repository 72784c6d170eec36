"""The admin API before requests that are made from its own document: no 5xx, and answers as described."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest

from natsproxy.admin.api.app import operations_of
from natsproxy.admin.page.sessions import Sessions
from natsproxy.testing import NatsServer
from tests.admin.kit import TOKEN
from tests.benchmarks.bench_proxy import dial
from tests.kit.process import ProxyProcess

CONFIG = """
[parameters]
"path.proxy" = "main"
"path.conn" = 1
"path.rule" = "r"
"If-Match" = "*"

# What may be answered to a wrong request: the defaults, and 413 to one that is too large as well.
[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 428, 429]

[[operations]]
include-operation-id = "closeConnection"
parameters = { "path.conn" = 2 }
"""
ENDLESS = ("streamFirings", "streamFrames", "drainProxy")
RULE = {"rule": {"kind": "drop", "subject": "never.>"}}


@pytest.mark.long
def test_requests_made_from_the_document(nats_server: NatsServer, tmp_path: Path) -> None:
    token, config = tmp_path / "token", tmp_path / "schemathesis.toml"
    token.write_text(TOKEN)
    config.write_text(CONFIG)
    flags = [
        "--admin",
        "127.0.0.1:0",
        "--admin-token-file",
        str(token),
        "--admin-captures",
        str(tmp_path / "made"),
    ]
    with ProxyProcess(nats_server.url, *flags) as proxy, ExitStack() as clients:
        url = next(line["url"] for line in proxy.lines() if line["event"] == "admin listens")
        for _ in range(2):
            clients.enter_context(dial(proxy.port))
        put(f"{url}/v1/proxies/main/rules/r")
        command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run"]
        command += [f"{url}/v1/openapi.json", "-H", f"Authorization: Bearer {TOKEN}", "--no-color"]
        # What a rule or a setting means is more than a schema says: such requests get 422.
        command += ["--exclude-checks", "positive_data_acceptance", "--generation-database", "none"]
        command += ["--max-examples", "150"]
        for name in ENDLESS:
            command += ["--exclude-operation-id", name]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=600)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        known = operations_of({}, {}, None, Sessions())
        count = len(known) - len(ENDLESS) - 1  # it does not ask for the document again
        assert f" {count} selected" in done.stdout, done.stdout
        assert not [line for line in proxy.lines() if line["level"] == "error"]
        dial(proxy.port).close()  # and traffic goes on


def put(url: str) -> None:
    """Add the rule that the requests are about."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    request = urllib.request.Request(url, json.dumps(RULE).encode(), headers, method="PUT")
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 201
