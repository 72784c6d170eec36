"""Fairness: a client gets its answers while another one floods frames that cost Python work.

No real clock is looked at: each look of a rule or a filter at a frame makes a clock of our own go on by
50 µs, and a slice of 400 µs has time for eight.  The tests count the frames of the flood
that are looked at before the other client has its PONG.
"""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from natsproxy.addresses import Address
from natsproxy.capture.filter import recording_filter
from natsproxy.capture.filter.recording_filter import PayloadPolicy, RecordingFilter, Selection
from natsproxy.capture.write._builder_py import BlockBuilder
from natsproxy.config.endpoints import Listener, Server
from natsproxy.config.recording import RecordSettings
from natsproxy.config.settings import ProxySettings
from natsproxy.events import Event, Firing
from natsproxy.net import recorder
from natsproxy.net.admission import Admission
from natsproxy.net.proxy import Proxy
from natsproxy.net.timeslice import FIRST_STEP, Timeslice
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.engine.rule_engine import RuleEngine
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from natsproxy.session.values import UNLIMITED, Budget
from natsproxy.wire.scanner import COMPILED

INFO = b'INFO {"server_id":"S","version":"2.15.1","headers":true,"max_payload":1048576} \r\n'
CONNECT = b'CONNECT {"verbose":false}\r\nPING\r\n'
FLOOD = b"PUB a 1\r\nx\r\n" * 20_000
CLIENTS = 200
ROUND = 20_000_000  # ns of all other tasks
CORRUPT = '[[rules]]\nname = "r"\nkind = "corrupt"\nop = "PUB"\n'


class Work:
    """Looks at frames, and the clock that they drive."""

    def __init__(self) -> None:
        self.looks = 0

    def clock(self) -> int:
        return self.looks * 50_000

    def counted(self, function: Any) -> Any:
        def look(*args: Any) -> Any:
            self.looks += 1
            return function(*args)

        return look


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    found = Work()
    monkeypatch.setattr(Timeslice, "clock", staticmethod(found.clock))
    monkeypatch.setattr(RuleEngine, "decide", found.counted(RuleEngine.decide))
    monkeypatch.setattr(RecordingFilter, "_one", found.counted(RecordingFilter._one))
    return found


async def answering(stream: trio.SocketStream) -> None:
    """Play a server that answers each PING at once and takes everything else."""
    async with stream:
        await stream.send_all(INFO)
        tail = b""
        while data := await stream.receive_some(1 << 20):
            seen = tail + data
            tail = seen[-5:] if not seen.endswith(b"PING\r\n") else b""
            await stream.send_all(b"PONG\r\n" * seen.count(b"PING\r\n"))


async def connect(address: Address) -> trio.SocketStream:
    stream = await trio.open_tcp_stream(address.host, address.port)
    await stream.send_all(CONNECT)
    await pong(stream)
    return stream


async def pong(stream: trio.SocketStream) -> None:
    received = b""
    with trio.fail_after(30):
        while b"PONG\r\n" not in received:  # a PING of the server may come right behind it
            received += await stream.receive_some()


async def looks_before_the_pong(proxy: Proxy, work: Work) -> list[int]:
    """Flood on one connection; return how many frames were looked at before each of ten PONGs of another."""
    found = []
    async with trio.open_nursery() as nursery:
        (address,) = await nursery.start(proxy.serve)
        async with await connect(address) as flooding, await connect(address) as other:
            nursery.start_soon(flooding.send_all, FLOOD)
            for _ in range(10):
                before = work.looks
                await other.send_all(b"PING\r\n")
                await pong(other)
                found.append(work.looks - before)
            nursery.cancel_scope.cancel()
    return found


@pytest.mark.parametrize(
    ("rules", "selection"),
    [
        (CORRUPT, None),
        (CORRUPT, Selection()),
        ("", Selection(payloads=(PayloadPolicy(b">", "drop"),))),
        ("", Selection(payloads=(PayloadPolicy(b">", "truncate", 0),))),
        ("", Selection(subjects=(b"other",))),
    ],
    ids=["a rule", "a rule, recorded", "payloads dropped", "payloads truncated", "another subject recorded"],
)
async def test_a_ping_is_answered_after_a_few_slices_of_a_flood(
    rules: str,
    selection: Selection | None,
    work: Work,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not rules:  # compiled code filters without a look from Python
        monkeypatch.setenv("NATSPROXY_PLANE", "python")
        monkeypatch.setattr(recorder, "BlockBuilder", BlockBuilder)
        monkeypatch.setattr(recording_filter, "_selection", None)
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, answering, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]
        record = None if selection is None else RecordSettings(tmp_path / "x.ncap", selection=selection)
        settings = ProxySettings(
            listen=(Listener(),), upstream=(Server(Address("127.0.0.1", port)),), record=record
        )
        chain = RuleChain(load(rules, KINDS), seed=1) if rules else None
        found = await looks_before_the_pong(Proxy(settings, chain), work)
        nursery.cancel_scope.cancel()

    assert sum(found) > 0, "the flood was not seen at all"
    # A filter's first step comes before its price is known.  Without slices all 20,000 frames come first.
    assert max(found) < FIRST_STEP + 200 * 20
    assert sorted(found)[5] < 50 * 20


@pytest.mark.long
@pytest.mark.parametrize("plane", ["native", "python"])
async def test_many_tasks_leave_connections_their_share(plane: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As while a thousand clients come at once: a round of tasks is long then, and so is the plane's turn."""
    monkeypatch.setenv("NATSPROXY_PLANE", plane)
    rounds = 0

    async def busy() -> None:
        nonlocal rounds
        while True:
            end = time.monotonic_ns() + ROUND
            while time.monotonic_ns() < end:
                pass
            rounds += 1
            await trio.lowlevel.checkpoint()

    fired = 0

    def count(event: Event) -> None:
        nonlocal fired
        fired += isinstance(event, Firing)

    async with trio.open_nursery() as nursery:
        (upstream,) = await nursery.start(partial(trio.serve_tcp, answering, 0, host="127.0.0.1"))
        server = Server(Address("127.0.0.1", upstream.socket.getsockname()[1]))
        proxy = Proxy(
            ProxySettings(listen=(Listener(),), upstream=(server,)), RuleChain(load(CORRUPT, KINDS))
        )
        proxy.subscribe(count)
        (address,) = await nursery.start(proxy.serve)
        streams = [await connect(address) for _ in range(CLIENTS)]
        for stream in streams:  # at once, without a round of the loop in between
            os.write(stream.socket.fileno(), b"PUB a 1\r\nx\r\n")
        nursery.start_soon(busy)
        with trio.fail_after(60):
            while fired < CLIENTS:
                await trio.lowlevel.checkpoint()
        passed = rounds
        for stream in streams:
            await stream.aclose()
        nursery.cancel_scope.cancel()
    assert passed < CLIENTS // 4


@pytest.mark.skipif(not COMPILED, reason="there is one plane only")
async def test_after_one_long_step_the_plane_looks_at_the_loop_again() -> None:
    """Else nobody would be dialled, and no answer of a dialled server be seen, while a flood goes on."""
    from natsproxy.net.native_plane import LOOP, NativePlane

    looked_at: list[bool] = []
    begun = trio.Event()

    class Steps:
        """A plane under an unending flood; in its first step the loop has an event."""

        workers = ()

        def __init__(self) -> None:
            self.fd = os.eventfd(1)

        def step(self, most: int, spare: int, loop: int) -> int:
            looked_at.append(loop >= 0)
            assert loop >= 0 or spare == 0  # it ends after its time
            begun.set()
            if len(looked_at) == 20:
                scope.cancel()
                return 0
            return LOOP if len(looked_at) == 1 else 1

        def close(self) -> None:
            os.close(self.fd)

    async def busy() -> None:
        await begun.wait()
        end = time.thread_time_ns() + ROUND
        while time.thread_time_ns() < end:
            pass
        await trio.sleep(60)

    plane = NativePlane(Admission(), Budget(UNLIMITED), 1 << 20, 1 << 20)
    plane._plane.close()
    plane._plane = Steps()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(busy)
            await plane.run()
    assert looked_at.count(False) == 1
