"""A proxy in tests: faults that undo themselves, frames, waiting, from plain code, asyncio and trio."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
import trio
from nats.errors import TimeoutError as NatsTimeout

from natsproxy.config.endpoints import read_server
from natsproxy.errors import ConfigError, NatsproxyError
from natsproxy.replay.conversation.steps import Step, events
from natsproxy.testing import BlockingCall, FaultNeverFired, TestProxy, WaitTimeout, drop, latency
from tests.kit.servers import NatsServer

HELLO = b'CONNECT {"verbose":false,"name":"raw"}\r\n'


@pytest.fixture
def proxy(nats_server: NatsServer) -> Iterator[TestProxy]:
    with TestProxy(nats_server.url, seed=5) as made:
        yield made


def dial(proxy: TestProxy) -> socket.socket:
    """Connect and greet, as clients do."""
    address = read_server(proxy.url).address
    sock = socket.create_connection((address.host, address.port), timeout=5)
    sock.sendall(HELLO + b"PING\r\n")
    until(sock, b"PONG\r\n")
    return sock


def until(sock: socket.socket, mark: bytes) -> bytes:
    received = b""
    while mark not in received:
        data = sock.recv(65536)
        assert data, received
        received += data
    return received


# -- addresses


@pytest.mark.parametrize("url", ["mqtt://demo", "nats://demo:99999", "nats://a:1,b:2", "nats://demo:x"])
def test_a_bad_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^the server's address must "):
        TestProxy(url)


def test_a_bad_address_is_shown_without_its_password() -> None:
    with pytest.raises(ConfigError) as caught:
        TestProxy("mqtt://u:secret@demo")
    assert "not 'mqtt://u:***@demo'" in str(caught.value)


# -- life


def test_it_is_used_inside_its_with() -> None:
    proxy = TestProxy("nats://127.0.0.1:1")
    for use in (lambda: proxy.url, proxy.barrier, proxy.fault("drop").__enter__):
        with pytest.raises(NatsproxyError, match="use it inside its `with`"):
            use()
    assert (proxy.frames(), proxy.firings, proxy.failure_report()) == (
        [],
        [],
        "proxy before nats://127.0.0.1:1, seed 0\nno frame passed",
    )


@pytest.mark.server
def test_many_starts_and_stops_leave_nothing(nats_server: NatsServer) -> None:
    """No thread and no descriptor stays."""

    def round_trip() -> None:
        with TestProxy(nats_server.url):
            pass

    round_trip()
    threads, descriptors = threading.active_count(), sum(1 for _ in Path("/proc/self/fd").iterdir())
    for _ in range(300):
        round_trip()
    deadline = time.monotonic() + 20
    while threading.active_count() > threads and time.monotonic() < deadline:
        threading.Event().wait(0.05)  # trio's cache of worker threads lets them go after ten seconds
    assert threading.active_count() <= threads
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) <= descriptors


@pytest.mark.server
def test_passing_frames_are_recorded(nats_server: NatsServer, tmp_path: Path) -> None:
    capture = tmp_path / "x.ncap"
    with TestProxy(nats_server.url, record=capture) as proxy, dial(proxy) as sock:
        sock.sendall(b"PUB t.record 2\r\nhi\r\n")
        proxy.wait_for("t.record")
    subjects = [event.frame.subject for event in events(capture) if isinstance(event, Step)]
    assert b"t.record" in subjects


# -- faults


@pytest.mark.server
def test_a_fault_holds_for_its_with(proxy: TestProxy) -> None:
    """From a plain test with an asyncio client: in force at once, gone at once, on record."""

    async def program() -> None:
        nc = await nats.connect(proxy.url)
        try:
            sub = await nc.subscribe("t.fault")
            await nc.flush()
            with proxy.fault(drop(subject="t.fault", name="loss"), direction="c2s") as name:
                assert name == "loss"
                await nc.publish("t.fault", b"lost")
                with pytest.raises(NatsTimeout):
                    await sub.next_msg(0.2)
                assert "fault in force" in proxy.failure_report()
            await nc.publish("t.fault", b"kept")
            assert (await sub.next_msg(5)).data == b"kept"
            await proxy.barrier_async()
        finally:
            await nc.close()

    asyncio.run(program())
    assert [(firing.rule, firing.action) for firing in proxy.firings] == [("loss", "drop")]
    lost, kept = proxy.frames("t.fault", op="PUB")
    assert (lost.payload, lost.passed, lost.cause) == (b"lost", False, "loss")
    assert (kept.payload, kept.passed, kept.cause) == (b"kept", True, None)
    report = proxy.failure_report()
    assert report.startswith(f"proxy before {proxy.upstream}, seed 5\nfired: loss (drop) c2s t.fault on ")
    assert "fault in force" not in report
    assert "#1 c2s PUB t.fault 'lost' (loss)" in report


@pytest.mark.server
def test_faults_nest_and_end_in_any_order(proxy: TestProxy) -> None:
    with dial(proxy) as sock:
        sock.sendall(b"SUB t.nest.* 1\r\nPING\r\n")
        until(sock, b"PONG\r\n")
        first, second = (
            proxy.fault("drop", subject=f"t.nest.{one}", op="PUB", must_fire=one == "b") for one in "ab"
        )
        first.__enter__()
        with second:
            first.__exit__(None, None, None)
            sock.sendall(b"PUB t.nest.a 1\r\n1\r\nPUB t.nest.b 1\r\n2\r\nPING\r\n")
            received = until(sock, b"PONG\r\n")
    assert b"MSG t.nest.a" in received
    assert b"MSG t.nest.b" not in received


@pytest.mark.server
@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"subject": "ordesr.>"},
            r"it selects .* on ordesr\.>, and there was none; nearest of what passed: PUB orders\.new \(2\)",
        ),
        ({"subject": "orders.>", "op": "MSG"}, "it selects s2c MSG on orders.>, and there was none; nearest"),
        (
            {"subject": "orders.>", "after": 9},
            r"it selected 2 frames, and its gate \(after the first 9\) let",
        ),
        ({"subject": "orders.>", "between": ["+9s"]}, "it selected 2 frames, and its gate .9s to the end"),
    ],
)
def test_a_fault_that_never_fires_fails_its_block(
    proxy: TestProxy, settings: dict[str, Any], says: str
) -> None:
    def program() -> None:
        sock.sendall(b"PUB orders.new 0\r\n\r\n" * 2)

    with dial(proxy) as sock:
        with pytest.raises(FaultNeverFired, match=f"^the fault 'drop-1' never fired: {says}") as caught:  # noqa: SIM117
            with proxy.fault("drop", **settings):
                program()
        assert str(caught.value).endswith("; if that may be, say must_fire=False")
        assert isinstance(caught.value, AssertionError)
        with proxy.fault("drop", must_fire=False, **settings):
            program()
        with pytest.raises(ZeroDivisionError), proxy.fault("drop", **settings):
            _ = 1 / 0


@pytest.mark.server
def test_what_clients_have_sent_when_a_block_ends_still_meets_its_fault(proxy: TestProxy) -> None:
    with dial(proxy) as sock:
        for _ in range(50):
            with proxy.fault("drop", subject="t.late"):
                sock.sendall(b"PUB t.late 0\r\n\r\n")


@pytest.mark.server
def test_a_fault_of_connections_fires_with_one(proxy: TestProxy) -> None:
    with pytest.raises(FaultNeverFired, match="it selects c2s/s2c connections, and there was none; if"):  # noqa: SIM117
        with proxy.fault("pause"):
            pass
    with dial(proxy), proxy.fault("pause"):
        pass
    with proxy.fault("latency", delay="1ms"), dial(proxy):
        pass


@pytest.mark.server
def test_a_fault_that_leaves_frames_as_they_were_has_not_fired(nats_server: NatsServer) -> None:
    frame = b"PUB t.large 2000\r\n" + b"x" * 2000 + b"\r\n"
    with TestProxy(nats_server.url) as proxy, dial(proxy) as sock:
        with pytest.raises(FaultNeverFired, match="it selected 1 frame, which it left alone"):  # noqa: SIM117
            with proxy.fault("truncate", subject="t.large", keep="1MiB"):
                sock.sendall(frame)
        with proxy.fault("truncate", subject="t.large", keep="1KiB"):
            sock.sendall(frame)


@pytest.mark.server
@pytest.mark.parametrize(
    ("fault", "settings", "subjects"),
    [
        ("drop", {"probability": 1.2}, "^fault: rule 'drop-1': probability must be a number from 0 to 1"),
        ("dorp", {}, "^fault: rule 'dorp-1': .* did you mean 'drop'"),
        ("latency", {"dealy": "1s"}, "^fault: .* did you mean 'delay'"),
        ("drop", {"name": "first"}, "a fault named 'first' is in force already"),
    ],
)
def test_a_bad_fault_changes_nothing(
    proxy: TestProxy, fault: str, settings: dict[str, Any], subjects: str
) -> None:
    """One sentence, and the rules stay as they were."""
    with proxy.fault("drop", subject="x", name="first", must_fire=False):
        with pytest.raises(ConfigError, match=subjects), proxy.fault(fault, **settings):
            pass
        proxy.barrier()
        assert proxy.failure_report().count("fault in force") == 1


@pytest.mark.server
def test_rules_are_in_force_from_the_start(nats_server: NatsServer) -> None:
    rules = [{"name": "loss", "kind": "drop", "subject": ["t.rules"], "op": ["PUB"]}]
    with TestProxy(nats_server.url, rules=rules) as proxy, dial(proxy) as sock:
        sock.sendall(b"PUB t.rules 0\r\n\r\n")
        assert [frame.cause for frame in proxy.wait_for("t.rules")] == ["loss"]


@pytest.mark.parametrize(
    ("rules", "subjects"),
    [
        ([{"name": "x", "kind": "dorp"}], "drop"),
        ([{"kind": "drop"}], "name"),
        ([{"name": "x", "kind": "drop"}, {"name": "x", "kind": "deny", "subject": ["a"]}], "x"),
    ],
)
def test_bad_rules_are_refused_before_anything_starts(rules: list[dict[str, object]], subjects: str) -> None:
    with pytest.raises(ConfigError, match=subjects):
        TestProxy("nats://127.0.0.1:1", rules=rules)


# -- waiting


@pytest.mark.server
def test_waiting_from_a_plain_test(proxy: TestProxy) -> None:
    with dial(proxy) as sock:
        later = threading.Thread(target=sock.sendall, args=[b"PUB t.wait 1\r\n2\r\n"])
        sock.sendall(b"PUB t.wait 1\r\n1\r\n")
        later.start()
        found = proxy.wait_for("t.wait", op="PUB", direction="c2s", count=2)
        assert [frame.payload for frame in found] == [b"1", b"2"]
        with pytest.raises(WaitTimeout, match=r"waited 0\.05 s for 3 of t\.wait, saw 2; the last frames:"):
            proxy.wait_for("t.wait", count=3, timeout=0.05)
        later.join()


@pytest.mark.server
async def test_waiting_from_trio(proxy: TestProxy) -> None:
    address = read_server(proxy.url).address
    async with await trio.open_tcp_stream(address.host, address.port) as stream:
        await stream.send_all(HELLO + b"PUB t.trio 2\r\nhi\r\n")
        (frame,) = await proxy.wait_for_async("t.trio")
        assert frame.payload == b"hi"
        await proxy.barrier_async()
    with pytest.raises(WaitTimeout, match=r"t\.never"):
        await proxy.wait_for_async("t.never", timeout=0.05)


@pytest.mark.server
async def test_blocking_calls_inside_a_loop_raise_at_once(proxy: TestProxy) -> None:
    with pytest.raises(BlockingCall, match=r"block trio's event loop .*: await wait_for_async\(\)"):
        proxy.wait_for("t.x")
    with pytest.raises(BlockingCall, match=r"block trio's event loop .*: await barrier_async\(\)"):
        proxy.barrier()


@pytest.mark.server
def test_a_barrier_covers_what_was_sent_before_on_all_connections(proxy: TestProxy) -> None:
    with dial(proxy) as one, dial(proxy) as other:
        for sock in (one, other):
            sock.sendall(b"PUB t.barrier 0\r\n\r\n" * 50)
        proxy.barrier()
        assert len(proxy.frames("t.barrier")) == 100


def test_a_barrier_without_an_answer_is_given_up() -> None:
    """The server greets, and says nothing more."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        TestProxy(f"127.0.0.1:{server.getsockname()[1]}") as proxy,
        socket.create_connection(("127.0.0.1", int(proxy.url.rpartition(":")[2])), timeout=5) as client,
        server.accept()[0] as silent,
    ):
        silent.sendall(b"INFO {}\r\n")
        until(client, b"\r\n")
        client.sendall(HELLO)
        proxy.wait_for(op="CONNECT")
        with pytest.raises(WaitTimeout, match=r"a barrier did not return within 0\.1 s"):
            proxy.barrier(timeout=0.1)


@pytest.mark.server
async def test_it_serves_asyncio_and_trio_with_async_with(nats_server: NatsServer) -> None:
    async def hold() -> str:
        async with TestProxy(nats_server.url) as proxy:
            await proxy.barrier_async()
            return proxy.url

    assert (await hold()).startswith("nats://127.0.0.1:")
    assert (await trio.to_thread.run_sync(lambda: asyncio.run(hold()))).startswith("nats://127.0.0.1:")


@pytest.mark.server
def test_firings_are_joined_to_their_frames(proxy: TestProxy) -> None:
    """Of drops one by one, of a batch of them, and of a rule with a role."""
    sock = dial(proxy)
    with (
        proxy.fault(drop(), subject="all.>"),
        proxy.fault(drop(only={"c2s raw/1": [2]}), op="PUB", subject="one.>"),
        proxy.fault(drop(), role="api"),
    ):
        batch = b"PUB all.a 0\r\n\r\nHPUB all.b 12 12\r\nNATS/1.0\r\n\r\n\r\n" * 4
        one = b"PUB one.a 1\r\n1\r\nPUB one.b 1\r\n2\r\nPUB one.c 1\r\n3\r\n"
        sock.sendall(batch + one + b"PUB $JS.API.INFO _INBOX.a 0\r\n\r\nPING\r\n")
        until(sock, b"PONG\r\n")
        proxy.barrier()
    sock.close()
    frames = {(one.conn, one.direction, one.ordinal): one for one in proxy.frames()}
    assert len(frames) == len(proxy.frames())
    each = [one for firing in proxy.firings for one in firing.each()]
    assert len(each) == 10
    for firing in each:
        assert firing.ordinal is not None
        frame = frames[firing.conn, firing.direction, firing.ordinal]
        assert (frame.op, frame.subject, frame.cause) == (firing.op, firing.subject, firing.rule)
        assert frame.t == firing.t
    assert {(one.subject, one.role) for one in each} == {
        ("all.a", ""),
        ("all.b", ""),
        ("one.b", ""),
        ("$JS.API.INFO", "api"),
    }


def test_a_firing_on_the_link_names_no_frame(proxy: TestProxy) -> None:
    with proxy.fault(latency("1ms")):
        dial(proxy).close()
    (firing,) = proxy.firings
    assert (firing.op, firing.role, firing.ordinal) == ("", "", None)
