"""Failover with more kinds of clients, legs and servers, and what a recording has of it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from natsproxy.capture.format.records import Frames
from natsproxy.capture.read.reader import open_capture
from natsproxy.wire.ops import C2S
from tests.kit.authority import Authority
from tests.kit.node import started_node
from tests.kit.process import ProxyProcess
from tests.kit.servers import NatsServer
from tests.net.test_failover import HOLD, LIMIT, Seen, agree, failed_over, run, stop

pytestmark = pytest.mark.server
PROGRAM = Path(__file__).parent / "programs" / "asking.js"


@pytest.mark.parametrize("how", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.long)])
def test_pulls_go_on_at_the_next_server(how: signal.Signals) -> None:
    """A server that stops in order ends them by a 409, which the client does not get."""

    async def main() -> None:
        with NatsServer(jetstream=True) as server, ProxyProcess(server.url, *HOLD) as proxy:
            async with seen.client(proxy) as client:
                jetstream = client.jetstream()
                await jetstream.add_stream(name="S", subjects=["s.>"])
                pulled = await jetstream.pull_subscribe("s.>", "worker")
                await jetstream.publish("s.a", b"1")
                (first,) = await pulled.fetch(1, timeout=20)
                await first.ack_sync()
                fetching = asyncio.create_task(pulled.fetch(1, timeout=40))
                for _ in range(1000):
                    if (await jetstream.consumer_info("S", "worker")).num_waiting:
                        break
                server.stop(how)
                server.start()
                assert failed_over(proxy, 1)["pulls"] == 1
                await jetstream.publish("s.a", b"2", timeout=20)
                (second,) = await fetching
                assert second.data == b"2"
                await second.ack_sync(timeout=20)

    seen = Seen()
    run(main)
    seen.nothing()


@pytest.mark.parametrize("scheme", ["nats", pytest.param("ws", marks=pytest.mark.long)])
def test_a_client_in_javascript_that_never_reconnects(scheme: str) -> None:
    with NatsServer() as server, ProxyProcess(server.url, *HOLD, "--listen", "ws://127.0.0.1:0") as proxy:
        heard = proxy.wait_for(lambda line: line["event"] == "listening")["listen"]
        port = heard[scheme == "ws"].rpartition(":")[2]
        with started_node(PROGRAM, f"{scheme}://127.0.0.1:{port}") as node:
            for restarts in range(1, 3):
                server.stop()
                server.start()
                failed_over(proxy, restarts)
            out, _ = node.communicate(timeout=LIMIT)
    assert node.returncode == 0
    _, answered, _, refused = out.split()
    assert int(answered) > 0
    assert int(refused) <= 2


def test_a_server_with_tls(authority: Authority) -> None:
    async def main() -> None:
        with NatsServer(authority.server_config()) as server:
            url = server.url.replace("nats://127.0.0.1", "tls://localhost")
            with ProxyProcess(url, *HOLD, "--upstream-tls-ca", str(authority.file)) as proxy:
                async with seen.client(proxy) as client:
                    await client.subscribe("svc", cb=agree)
                    await client.flush()
                    server.stop()
                    asked = asyncio.create_task(client.request("svc", b"?", timeout=30))
                    server.start()
                    assert (await asked).data == b"yes"

    seen = Seen()
    run(main)
    seen.nothing()


def test_a_recording_says_where_the_server_was_replaced(tmp_path: Path) -> None:
    async def main() -> None:
        with NatsServer() as server, ProxyProcess(server.url, *HOLD, "--record", str(path)) as proxy:
            async with seen.client(proxy) as client:
                await client.subscribe("svc", cb=agree)
                assert (await client.request("svc", b"before")).data == b"yes"
                await stop(server, client)
                asked = asyncio.create_task(client.request("svc", b"after", timeout=30))
                await asyncio.sleep(0.3)
                server.start()
                assert (await asked).data == b"yes"
            proxy.drain()

    path, seen = tmp_path / "one.ncap", Seen()
    run(main)
    seen.nothing()
    frames = [item for _, item in open_capture(path).items() if isinstance(item, Frames)]
    ours = [
        one for one in frames if one.cause == "failover" and one.direction == C2S and one.in_first is None
    ]
    assert [bytes(one.data).split()[0] for one in ours] == [b"CONNECT", b"SUB", b"SUB", b"PING"]
    done = subprocess.run(
        [sys.executable, "-m", "natsproxy", "check", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with NatsServer() as fresh:
        played = subprocess.run(
            [
                *[sys.executable, "-m", "natsproxy", "replay", "to-server", str(path)],
                *["--to", fresh.url, "--speed", "max"],
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    assert played.returncode == 0, played.stdout + played.stderr
