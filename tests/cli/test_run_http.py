"""`natsproxy run` with HTTP servers beside it."""

from __future__ import annotations

import json
import re
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from natsproxy.cli import main
from natsproxy.testing import NatsServer
from tests.kit.process import ProxyProcess


def test_both_servers_answer_until_the_end(nats_server: NatsServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-of-some-length\n")
    flags = ("--monitor", "127.0.0.1:0", "--admin", "localhost:0", "--admin-token-file", str(token))
    with ProxyProcess(nats_server.url, *flags) as proxy:
        urls = {line["event"]: line["url"] for line in proxy.lines() if line["event"].endswith(" listens")}
        assert ask(urls["monitor listens"] + "/healthz") == {"status": "ok"}
        assert ask(urls["admin listens"] + "/v1/health") == {"ready": True, "reason": None}
        assert proxy.drain() == 0
        assert token.read_text().strip() not in proxy.log.read_text()


def call(method: str, url: str, body: object = None) -> tuple[int, Any]:
    """Return the status and the body of an answer."""
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, method=method), timeout=20) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_the_api_of_toxiproxy_has_the_proxy_itself(nats_server: NatsServer, tmp_path: Path) -> None:
    """With toxics of bytes and of rules; it adds proxies, and cannot take the one of the process away."""
    (tmp_path / "rules.toml").write_text('[[rules]]\nname = "own"\nkind = "drop"\nsubject = "own"\n')
    flags = ("--toxiproxy", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--rules", str(tmp_path / "rules.toml"))
    with ProxyProcess(nats_server.url, *flags) as proxy:
        urls = {line["event"]: line["url"] for line in proxy.lines() if line["event"].endswith(" listens")}
        url = urls["toxiproxy listens"]
        main = {
            "name": "main",
            "listen": f"127.0.0.1:{proxy.port}",
            "upstream": nats_server.url.removeprefix("nats://"),
            "enabled": True,
            "toxics": [],
        }
        assert call("GET", f"{url}/proxies") == (200, {"main": main})
        for change in (
            call("DELETE", f"{url}/proxies/main"),
            call("POST", f"{url}/proxies/main", {"enabled": False}),
            call("PATCH", f"{url}/proxies/main", {"upstream": "127.0.0.1:1"}),
            call("POST", f"{url}/populate", [{**main, "upstream": "127.0.0.1:1"}]),
        ):
            assert change[0] == change[1]["status"] == 403
            assert "natsproxy run" in change[1]["error"]
        assert call("POST", f"{url}/proxies/main", {"enabled": True}) == (200, main)
        assert call("POST", f"{url}/populate", [main]) == (201, {"proxies": [main]})

        toxics = f"{url}/proxies/main/toxics"
        lost = {"name": "lost", "type": "nats_drop", "stream": "upstream", "attributes": {"subject": "lost"}}
        cut = {"name": "cut", "type": "limit_data", "attributes": {"bytes": 10}}
        assert call("POST", toxics, {**lost, "name": "own"})[0] == 409
        assert call("POST", toxics, lost)[0] == 200
        assert answers(proxy.port) == [b"kept"]
        assert call("POST", toxics, cut)[0] == 200
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=20) as client:
            assert b"".join(iter(lambda: client.recv(100), b"")) == b'INFO {"ser'
        assert call("POST", f"{url}/reset") == (204, None)
        assert answers(proxy.port) == [b"lost", b"kept"]

        assert call("POST", f"{url}/proxies", {**main, "name": "more", "listen": "127.0.0.1:0"})[0] == 201
        listed = call("GET", urls["admin listens"] + "/v1/proxies")[1]["proxies"]
        assert [one["name"] for one in listed] == ["main", "more"]
        proxy.wait_for(lambda line: line["event"] == "proxy starts" and line["proxy"] == "more")
        assert proxy.drain() == 0


def answers(port: int) -> list[bytes]:
    """Return the subjects, of three, on which a client gets its own messages."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(b'CONNECT {"verbose":false}\r\nSUB own 1\r\nSUB lost 2\r\nSUB kept 3\r\n')
        client.sendall(b"PUB own 1\r\nx\r\nPUB lost 1\r\nx\r\nPUB kept 1\r\nx\r\nPING\r\n")
        got = b""
        while not got.endswith(b"PONG\r\n"):
            data = client.recv(4096)
            assert data, got
            got += data
        return re.findall(rb"MSG (\w+) \d 1\r\nx\r\n", got)


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
        (
            ["--admin", "0.0.0.0:0"],
            "admin on an address other than loopback needs admin-token-file and admin-tls-cert",
        ),
        (["--admin-host", "proxy.local"], "admin-host has no effect without admin"),
        (
            ["--admin", ":0", "--admin-token-file", "env:NO_SUCH"],
            "the variable that admin_token_file names is not set",
        ),
        (
            ["--admin", ":0", "--admin-tls-cert", "none.pem"],
            "admin-tls-cert and admin-tls-key cannot be used",
        ),
        (["--monitor", "192.0.2.1:80"], "cannot listen on 192.0.2.1:80"),
        (["--toxiproxy", "192.0.2.1:80"], "cannot listen on 192.0.2.1:80"),
    ],
)
def test_a_mistake_is_said(flags: list[str], message: str) -> None:
    done = CliRunner().invoke(main, ["run", "-l", "127.0.0.1:0", "-u", "127.0.0.1:1", *flags])
    assert done.exit_code == 2, done.stderr
    assert message in done.stderr
