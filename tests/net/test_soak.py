"""A proxy that is never left alone: clients come and go, servers too, rules and captures change."""

from __future__ import annotations

import itertools
import os
import random
import signal
import ssl
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio

from tests.kit.process import ProxyProcess
from tests.kit.servers import NatsServer

SECONDS = float(os.environ.get("NATSPROXY_SOAK_SECONDS", "1200"))
SETTLED = min(60.0, SECONDS / 3)  # seconds until memory has its lasting size
RATE = 200  # connections a second
MOST = 300  # clients at once
STORM = 100  # clients that come back at once
CONNECT = b'CONNECT {"verbose":false,"name":"soak"}\r\nPING\r\n'
ROOM = (
    24 << 20
)  # bytes of growth that are no leak: pages that the allocator keeps, a Python heap in fragments
TLS = Path(__file__).parent.parent / "kit" / "tls"
EXPECTED = {"client-closed", "client-lost", "server-closed", "server-lost", "stalled"}
RULES = (
    '[[rules]]\nname = "late"\nkind = "latency"\nsubject = "a.*"\ndelay = "2ms"\n',
    '[[rules]]\nname = "lost"\nkind = "drop"\nsubject = "b.*"\nprobability = 0.5\n',
)


class Load:
    """The clients; outcomes: how their conversations ended."""

    def __init__(self, port: int, tls_port: int) -> None:
        self._port = port
        self._tls_port = tls_port
        self._tls = ssl.create_default_context(cafile=TLS / "cert.pem")
        self._tls.check_hostname = False
        self._rng = random.Random(7)
        self._numbers = itertools.count()
        self.outcomes: Counter[str] = Counter()

    async def run(self, seconds: float) -> None:
        """Open connections at the rate for a time; each ends soon."""
        begun = trio.current_time()
        started = 0
        async with trio.open_nursery() as nursery:
            while (age := trio.current_time() - begun) < seconds:
                room = MOST - len(nursery.child_tasks)  # a busy machine has fewer a second, not more at once
                for _ in range(min(room, int(age * RATE) - started)):
                    nursery.start_soon(self._client, self._rng.choice(PROGRAMS))
                started = int(age * RATE)
                if room > STORM and self._rng.random() < 0.02:
                    for _ in range(STORM):
                        nursery.start_soon(self._client, "storm")
                await trio.sleep(0.02)
            nursery.cancel_scope.deadline = trio.current_time() + 30

    async def _client(self, program: str) -> None:
        try:
            with trio.fail_after(20):
                port = self._tls_port if program == "tls" else self._port
                async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                    await self._talk(stream, program)
            self.outcomes[program] += 1
        except (OSError, trio.BrokenResourceError, EOFError):
            self.outcomes["cut"] += 1  # its server was killed, or the proxy had none for it
        except trio.TooSlowError:
            self.outcomes["slow"] += 1

    async def _talk(self, stream: trio.abc.Stream, program: str) -> None:
        if program == "probe":
            return
        await _until(stream, b"\r\n")
        if program == "half":
            await stream.send_all(CONNECT[: self._rng.randrange(len(CONNECT))])
            return
        if program == "tls":
            stream = trio.SSLStream(stream, self._tls, https_compatible=True)
        own = next(self._numbers)  # each hears itself: hundreds that hear all others are another test
        await stream.send_all(CONNECT + b"SUB a.%d 1\r\nSUB b.%d 2\r\n" % (own, own))
        await _until(stream, b"PONG\r\n")
        if program == "reader":  # takes little of what it asked for, and leaves
            await stream.send_all(b"PUB a.%d 200000\r\n%b\r\n" % (own, bytes(200_000)))
            return
        for size in (0, 10, 3_000):
            frame = b"PUB %c.%d %d\r\n%b\r\n" % (self._rng.choice(b"abc"), own, size, bytes(size))
            await stream.send_all(frame + b"PING\r\n")
            await _until(stream, b"PONG\r\n")


PROGRAMS = ("probe", "half", "reader", "tls", "talk", "talk")


async def _until(stream: trio.abc.Stream, end: bytes) -> None:
    data = b""
    while end not in data:
        more = await stream.receive_some()
        if not more:
            raise EOFError
        data = data[-len(end) :] + more


def _descriptors(process: ProxyProcess) -> int:
    return len(list(Path(f"/proc/{process.process.pid}/fd").iterdir()))


async def _settled(process: ProxyProcess) -> tuple[int, int]:
    """Return the descriptors and the memory once all connections are gone."""
    last, same = -1, 0
    with trio.fail_after(60):
        while same < 10:
            now = _descriptors(process)
            same = same + 1 if now == last else 0
            last = now
            await trio.sleep(0.3)
    return last, process.memory()


async def _change_rules(process: ProxyProcess, file: Path) -> None:
    number = 0
    while True:
        number += 1
        fresh = file.with_suffix(".new")
        fresh.write_text(RULES[number % 2])
        fresh.rename(file)
        process.process.send_signal(signal.SIGHUP)
        await trio.sleep(1)


async def _kill_servers(servers: list[NatsServer]) -> None:
    number = 0
    while True:
        await trio.sleep(10)
        server = servers[number % len(servers)]
        await trio.to_thread.run_sync(server.stop, signal.SIGKILL)
        await trio.sleep(1)
        await trio.to_thread.run_sync(server.start)
        number += 1


@pytest.mark.long
async def test_nothing_grows(tmp_path: Path) -> None:
    rules, captures = tmp_path / "rules.toml", tmp_path / "captures"
    rules.write_text(RULES[0])
    with ExitStack() as stack:
        servers = [stack.enter_context(NatsServer()) for _ in range(2)]
        upstream, other = (f"127.0.0.1:{server.port}" for server in servers)
        options = ["--upstream", other, "--rules", str(rules), "--record", f"{captures}/"]
        options += ["--record-rotate", "4MiB", "--record-keep", "5", "--upstream-hold", "5s"]
        options += ["--listen", "tls://127.0.0.1:0", "--tls-cert", str(TLS / "cert.pem")]
        options += ["--tls-key", str(TLS / "key.pem"), "--tls-timeout", "15s"]
        options += ["--auth-timeout", "15s"]  # the load, on a busy machine, is late itself
        process = stack.enter_context(ProxyProcess(upstream, *options))
        ports = [int(address.rpartition(":")[2]) for address in process.lines()[0]["listen"]]
        load = Load(*ports)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_change_rules, process, rules)
            nursery.start_soon(_kill_servers, servers)
            await load.run(SETTLED)
            descriptors, memory = await _settled(process)
            await load.run(SECONDS - SETTLED)
            nursery.cancel_scope.cancel()
        later = await _settled(process)
        report = f"{load.outcomes}, descriptors {descriptors} -> {later[0]}, memory {memory} -> {later[1]}"
        print(report)
        assert all(load.outcomes[program] for program in PROGRAMS), report
        assert later[0] <= descriptors + 2, report  # a capture file is being opened or closed, at most
        assert later[1] <= memory + ROOM, report
        assert len(list(captures.glob("*.ncap"))) <= 6
        events = Counter(line["event"] for line in process.lines())
        assert events["opened"] > 0
        assert "Traceback" not in process.log.read_text()
        causes = {line["cause"] for line in process.lines() if line["event"] == "closed"}
        assert causes <= EXPECTED, report
        assert process.drain() == 0
