"""The public clients make every call that they have."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.admin.toxiproxy.kit import Toxi
from tests.kit.node import run_node
from tests.kit.servers import NatsServer

pytestmark = pytest.mark.server
PROGRAMS = Path(__file__).parent / "programs"


def test_toxiproxy_python(nats_server: NatsServer) -> None:
    with Toxi() as toxi:
        upstream = nats_server.url.removeprefix("nats://")
        command = [sys.executable, str(PROGRAMS / "client.py"), str(toxi.port), upstream]
        env = {**os.environ, "NO_PROXY": "127.0.0.1"}  # the client would go by a proxy for HTTP
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "all calls made\n"


def free_ports(count: int) -> list[int]:
    """Return ports that nobody uses, of those that the system gives to nobody by itself."""
    found: list[int] = []
    for port in random.sample(range(15_000, 30_000), 1000):
        with suppress(OSError), socket.create_server(("0.0.0.0", port)):
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError("no ports are free")


def test_toxiproxy_node_client(nats_server: NatsServer) -> None:
    """And as many proxies as the container module makes."""
    with Toxi() as toxi:
        upstream = nats_server.url.removeprefix("nats://")
        ports = map(str, free_ports(32))
        assert run_node(PROGRAMS / "client.js", toxi.url, upstream, *ports) == "all calls made\n"
