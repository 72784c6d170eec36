"""Clients in JavaScript through the proxy."""

from __future__ import annotations

from pathlib import Path

from natsproxy.testing import TestProxy
from tests.kit.node import run_node
from tests.kit.servers import NatsServer

PROGRAM = Path(__file__).parent / "programs" / "client.js"


def test_nats_js(nats_server: NatsServer) -> None:
    with TestProxy(nats_server.url) as proxy:
        assert run_node(PROGRAM, proxy.url) == "hello: 11 headers: yes\n"
