"""The proxies of playbacks: whole captures, and an end that nobody waits for."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from natsproxy.addresses import Address
from natsproxy.config.endpoints import Listener, Server
from natsproxy.config.settings import ProxySettings
from natsproxy.events import Closed, Event
from natsproxy.replay.observe import observe
from natsproxy.replay.transport_proxy import running_proxy
from tests.kit.servers import NatsServer

pytestmark = pytest.mark.server
REQUEST = b'CONNECT {"verbose":false}\r\nSUB _INBOX.1 1\r\nPUB ask _INBOX.1 0\r\n\r\nPING\r\n'


async def test_a_request_that_has_no_answer_holds_no_end(nats_server: NatsServer) -> None:
    """A client that still waits is ended once the server has what it sent, and not at a deadline."""
    ends: list[Event] = []
    upstream = Server(Address("127.0.0.1", nats_server.port))
    with trio.fail_after(20):
        async with running_proxy(ProxySettings(listen=(Listener(),), upstream=(upstream,))) as proxy:
            proxy.subscribe(ends.append)
            stream = await trio.open_tcp_stream("127.0.0.1", proxy.listen[0].port)
            await stream.send_all(REQUEST)
            received = b""
            while b"PONG\r\n" not in received:
                received += await stream.receive_some()
        await stream.aclose()
    (closed,) = [event for event in ends if isinstance(event, Closed)]
    assert (closed.cause, closed.detail) == ("drained", "natsproxy is shutting down")


async def test_the_recording_of_a_playback_waits_for_its_disk(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    """A gap would be a difference that no peer made."""
    async with observe(tmp_path / "x.ncap", Address("127.0.0.1", nats_server.port)) as proxy:
        record = proxy.settings.record
    assert record is not None
    assert record.overflow == "wait"
