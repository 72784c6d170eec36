"""A proxy that is never left alone: clients come and go, servers too, rules and captures change."""

from __future__ import annotations

import itertools
import os
import random
import signal
import socket
import ssl
import threading
import urllib.request
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from tests.kit.process import ProxyProcess
from tests.kit.servers import NatsServer

SECONDS = float(os.environ.get("NATSPROXY_SOAK_SECONDS", "1200"))
SETTLED = min(60.0, SECONDS / 3)  # seconds until memory has its lasting size
RATE = 220  # connections a second, as long as the machine keeps up: 200 are asked for
PATIENCE = 4  # times as long it may take for all of them: a machine with other work does fewer a second
MOST = 300  # clients at once
STORM = 100  # clients that come back at once
CALM = 2_000  # clients between two storms, at most
CONNECT = b'CONNECT {"verbose":false,"name":"%s"}\r\nPING\r\n'
ROOM = (
    24 << 20
)  # bytes of growth that are no leak: pages that the allocator keeps, a Python heap in fragments
TLS = Path(__file__).parent.parent / "kit" / "tls"
EXPECTED = {"client-closed", "client-lost", "server-closed", "server-lost", "stalled", "slow"}
RULES = (
    '[[rules]]\nname = "late"\nkind = "latency"\nsubject = "a.*"\ndelay = "2ms"\n',
    '[[rules]]\nname = "lost"\nkind = "drop"\nsubject = "b.*"\nprobability = 0.5\n',
)


class Load:
    """The clients.

    outcomes: how their conversations ended.  wanted: the number of clients that there should have been, and
    the seconds that they took.
    """

    def __init__(self, port: int, tls_port: int) -> None:
        self._port = port
        self._tls_port = tls_port
        self._tls = ssl.create_default_context(cafile=TLS / "cert.pem")
        self._tls.check_hostname = False
        self._rng = random.Random(7)
        self._numbers = itertools.count()
        self.outcomes: Counter[str] = Counter()
        self.wanted = 0
        self.seconds = 0.0

    async def offer(self, seconds: float) -> None:
        """Run in a thread that gives way to the proxy: in life clients have machines of their own."""

        def run() -> None:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 5)
            trio.run(self.run, seconds)

        thread = threading.Thread(target=run, daemon=True)  # a new one: trio would use it again
        thread.start()
        await trio.to_thread.run_sync(thread.join, abandon_on_cancel=True)

    async def run(self, seconds: float) -> None:
        """Open as many connections as the rate makes in a time, none before its time; each ends soon."""
        begun, started, wanted, calm = trio.current_time(), 0, int(seconds * RATE), 0
        with trio.move_on_after(seconds * PATIENCE):
            async with trio.open_nursery() as nursery:
                while started < wanted:
                    due = min(wanted, int((trio.current_time() - begun) * RATE)) - started
                    room = MOST - len(nursery.child_tasks)  # those that are late come when there is room
                    late = calm > CALM  # the others wait with a storm for room, on a busy machine
                    if due > 0 and room > STORM and (late or self._rng.random() < 0.02):
                        programs, calm = ["storm"] * STORM, 0
                    else:
                        count = 0 if late else max(0, min(room, due))
                        programs = self._rng.choices(PROGRAMS, WEIGHTS, k=count)
                        calm += count
                    for program in programs:
                        nursery.start_soon(self._client, program)
                    started += len(programs)
                    await trio.sleep(0.02)
        self.wanted += wanted
        self.seconds += trio.current_time() - begun

    async def _client(self, program: str) -> None:
        try:
            with trio.fail_after(20):
                port = self._tls_port if program == "tls" else self._port
                async with await _connected(port, small=program == "slow") as stream:
                    await self._talk(stream, program)
            self.outcomes[program] += 1
        except (OSError, trio.BrokenResourceError, EOFError):
            self.outcomes["cut"] += 1  # its server was killed, or the proxy had none for it
        except trio.TooSlowError:
            self.outcomes["late"] += 1

    async def _talk(self, stream: trio.abc.Stream, program: str) -> None:
        if program == "probe":
            return
        await _until(stream, b"\r\n")
        connect = CONNECT % program.encode()
        if program == "half":
            await stream.send_all(connect[: self._rng.randrange(len(connect))])
            return
        if program == "tls":
            stream = trio.SSLStream(stream, self._tls, https_compatible=True)
        own = next(self._numbers)  # each hears itself: hundreds that hear all others are another test
        await stream.send_all(connect + b"SUB a.%d 1\r\nSUB b.%d 2\r\n" % (own, own))
        await _until(stream, b"PONG\r\n")
        if program == "slow":
            await _ask_and_take_nothing(stream, b"a.%d" % own)
            return
        if program == "reader":  # takes little of what it asked for, and leaves
            await stream.send_all(b"PUB a.%d 200000\r\n%b\r\n" % (own, bytes(200_000)))
            return
        for size in (0, 10, 3_000):
            frame = b"PUB %c.%d %d\r\n%b\r\n" % (self._rng.choice(b"abc"), own, size, bytes(size))
            await stream.send_all(frame + b"PING\r\n")
            await _until(stream, b"PONG\r\n")


PROGRAMS = ("probe", "half", "reader", "tls", "talk", "slow")
WEIGHTS = (20, 20, 20, 20, 40, 1)  # of the programs: each that is slow holds megabytes for seconds


async def _connected(port: int, *, small: bool) -> trio.SocketStream:
    sock = trio.socket.socket()
    if small:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    try:
        await sock.connect(("127.0.0.1", port))
    except BaseException:
        sock.close()
        raise
    return trio.SocketStream(sock)


async def _ask_and_take_nothing(stream: trio.abc.Stream, subject: bytes) -> None:
    """Go on until the proxy ends the connection: only those who write learn of it, as nothing is read."""
    try:
        for size in itertools.chain(itertools.repeat(200_000, 20), itertools.repeat(0)):
            await stream.send_all(b"PUB %b %d\r\n%b\r\n" % (subject, size, bytes(size)))
            await trio.sleep(0.02)
    except trio.BrokenResourceError:
        return


async def _until(stream: trio.abc.Stream, end: bytes) -> None:
    data = b""
    while end not in data:
        more = await stream.receive_some()
        if not more:
            raise EOFError
        data = data[-len(end) :] + more


class Held(NamedTuple):
    """The things that a proxy holds once all connections are gone."""

    connections: int
    tasks: int
    descriptors: int
    memory: int


def _held(process: ProxyProcess, monitor: str) -> Held:
    found = _metrics(monitor)
    descriptors = len(list(Path(f"/proc/{process.process.pid}/fd").iterdir()))
    connections, tasks = (found[f"natsproxy_{name}"] for name in ("connections_open", "tasks"))
    return Held(int(connections), int(tasks), descriptors, process.memory())


def _metrics(monitor: str) -> dict[str, float]:
    """Return the values by their names; those with a label by name and the first label."""
    with urllib.request.urlopen(monitor + "/metrics", timeout=20) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    samples = [sample for family in families for sample in family.samples]
    return {" ".join([one.name, *list(one.labels.values())[:1]]): one.value for one in samples}


async def _settled(process: ProxyProcess, monitor: str) -> Held:
    """Return the least of the things that are held, in a while without connections.

    It is longer than the time between two times that the proxy gives freed memory back.
    """
    seen: list[Held] = []
    with trio.fail_after(120):
        while len(seen) < 40:
            held = await trio.to_thread.run_sync(_held, process, monitor)
            seen = [] if held.connections else [*seen, held]
            await trio.sleep(0.3)
    return Held(*map(min, zip(*seen, strict=True)))


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
        options += ["--write-deadline", "3s", "--monitor", "127.0.0.1:0"]
        process = stack.enter_context(ProxyProcess(upstream, *options))
        listening = process.wait_for(lambda line: line["event"] == "listening")["listen"]
        ports = [int(address.rpartition(":")[2]) for address in listening]
        monitor = process.wait_for(lambda line: line["event"] == "monitor listens")["url"]
        load = Load(*ports)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_change_rules, process, rules)
            nursery.start_soon(_kill_servers, servers)
            await load.offer(SETTLED)
            before = await _settled(process, monitor)
            await load.offer(SECONDS - SETTLED)
            nursery.cancel_scope.cancel()
        after = await _settled(process, monitor)
        metrics = await trio.to_thread.run_sync(_metrics, monitor)
        accepted = int(metrics["natsproxy_connections_accepted_total"])
        slow = int(metrics["natsproxy_connections_ended_total slow"])
        rate = f"{accepted} connections, {accepted / load.seconds:.0f} a second, {slow} of them slow"
        report = f"{rate}\n{load.outcomes}\n{before}\n{after}"
        print(report)
        assert all(load.outcomes[program] for program in (*PROGRAMS, "storm")), report
        assert accepted >= load.wanted, report
        assert load.outcomes["late"] + load.outcomes["cut"] < accepted / 4, report
        assert after.connections == before.connections == 0, report
        assert after.tasks <= before.tasks, report
        assert after.descriptors <= before.descriptors + 2, report  # a capture file is opened or closed
        assert after.memory <= before.memory + ROOM, report
        assert slow > 0, report
        assert len(list(captures.glob("*.ncap"))) <= 6
        events = Counter(line["event"] for line in process.lines())
        assert events["opened"] > 0
        assert "Traceback" not in process.log.read_text()
        closed = [line for line in process.lines() if line["event"] == "closed"]
        strange = [line for line in closed if line["cause"] not in EXPECTED]
        # A client that is late itself does not end its handshake in time.
        assert [line for line in strange if not line["detail"].startswith("TLS handshake")] == [], report
        assert len(strange) <= load.outcomes["late"], report
        assert {line.get("name", "") for line in closed if line["cause"] == "slow"} == {"slow"}, report
        assert process.drain() == 0
