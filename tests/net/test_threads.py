"""Threads of the plane: busy connections are spread over them, and nothing else is different."""

from __future__ import annotations

import os
import random
import re
import selectors
import signal
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from natsproxy.capture.format.records import Frames, OpenRecord, Preamble
from natsproxy.capture.read.reader import open_capture
from natsproxy.config.settings import OPTIONS
from natsproxy.errors import ConfigError
from natsproxy.net import plane
from natsproxy.wire.ops import C2S, S2C, Op
from natsproxy.wire.parse import frames as frames_in
from natsproxy.wire.scanner import COMPILED
from tests.kit.process import ProxyProcess

if not COMPILED:
    pytest.skip("there is no native plane", allow_module_level=True)

INFO = b'INFO {"server_id":"x","version":"2.15.1","headers":true,"max_payload":1048576}\r\n'
HELLO = b'CONNECT {"verbose":false,"headers":true,"protocol":1}\r\nSUB a 1\r\nPING\r\n'
ROUNDS = 40
TIMEOUT = 30
GUESTS = 24  # clients that come and go at once
VISITS = 60  # of each of them
HARMLESS = (
    'kind = "drop"\nsubject = "nobody"\n',
    'kind = "latency"\nsubject = "a"\ndelay = "1ms"\n',
    'kind = "limit"\nsubject = "a"\nmessages = "1000000/s"\nper = "proxy"\naction = "drop"\n',
)
"""Rules that cost no client a message; the last one has a bucket from which all threads take."""
SPOKEN = re.compile(rb"PUB a \d+\r\n([^\r]*)\r\n|(PING)\r\n|(?:CONNECT|SUB) [^\n]*\n")


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let connections go to the threads as soon as they may."""
    monkeypatch.delenv("NATSPROXY_PLANE", raising=False)
    monkeypatch.setenv("NATSPROXY_PLANE_THREADS", "2")


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let connections go to the threads as they do for users."""
    monkeypatch.delenv("NATSPROXY_PLANE", raising=False)
    monkeypatch.delenv("NATSPROXY_PLANE_THREADS", raising=False)


@contextmanager
def listening() -> Iterator[socket.socket]:
    """Yield a server's listening socket."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        listener.settimeout(TIMEOUT)
        yield listener


def pair(listener: socket.socket, port: int, stack: ExitStack) -> tuple[socket.socket, socket.socket]:
    """Connect one client with one server through the proxy, to the first PONG."""
    client = stack.enter_context(socket.create_connection(("127.0.0.1", port), TIMEOUT))
    server = stack.enter_context(listener.accept()[0])
    server.settimeout(TIMEOUT)
    server.sendall(INFO)
    client.sendall(HELLO)
    until(server, b"PING\r\n")
    server.sendall(b"PONG\r\n")
    until(client, b"PONG\r\n")
    return client, server


def until(sock: socket.socket, mark: bytes) -> bytes:
    """Read until a mark is at the end, and return all of it."""
    seen = bytearray()
    while not seen.endswith(mark):
        data = sock.recv(1 << 16)
        assert data, "cut off"
        seen += data
    return bytes(seen)


def processor(pid: int) -> Counter[str]:
    """Return the processor time (ns) of the threads of a process by their numbers."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return Counter({task.name: int((task / "schedstat").read_text().split()[0]) for task in tasks})


def exchange(client: socket.socket, server: socket.socket, number: int, rounds: int) -> None:
    """Send both ways: frames that pass, and among them some for the session."""
    for at in range(rounds):
        body = b"%d.%d" % (number, at)
        up = b"PUB a %d\r\n%s\r\n" % (len(body), body) * 50
        down = b"MSG a 1 %d\r\n%s\r\n" % (len(body), body) * 50
        if at % 5 == 4:
            up += b"SUB b.%d %d\r\n" % (at, at + 2)
            down += b"PING\r\n"
        client.sendall(up)
        server.sendall(down)
        assert until(server, up[-8:]) == up
        assert until(client, down[-8:]) == down


def exchange_all(pairs: list[tuple[socket.socket, socket.socket]], rounds: int) -> None:
    """Let all pairs exchange frames at once."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            exchange(*pairs[number], number, rounds)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(pairs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def close_all(pairs: list[tuple[socket.socket, socket.socket]]) -> None:
    """Close all clients and servers."""
    for client, server in pairs:
        client.close()
        server.close()


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("max 100000", 8), ("150000 100000", 2), ("50000 100000", 1), ("9900000 100000", 8), ("", 8)],
)
def test_auto_is_a_thread_for_each_core_that_may_be_used(
    quota: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.setattr(plane, "_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert plane.cores() == expected


@pytest.mark.parametrize("value", ["0", "65", "-1", "many", "1.5", ""])
def test_numbers_of_threads_that_are_refused(value: str) -> None:
    option = next(option for option in OPTIONS if option.key == "threads")
    with pytest.raises(ValueError, match="must be a whole number of at most 64 and at least 1, or auto"):
        option.type.read(value)


def test_threads_need_the_compiled_plane(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are refused where only the plane in Python is there; `auto` means one then."""
    monkeypatch.setenv("NATSPROXY_PLANE", "python")
    with pytest.raises(ConfigError, match="needs the compiled plane"):
        plane.check_threads(2)
    for threads in (0, 1):
        plane.check_threads(threads)


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("3", 3),
        pytest.param("auto", plane.cores(), marks=pytest.mark.long),
        pytest.param("1", 1, marks=pytest.mark.long),
    ],
)
def test_the_log_says_how_many_there_are(value: str, expected: int) -> None:
    with ProxyProcess("nats://127.0.0.1:1", "--threads", value) as proxy:
        line = proxy.wait_for(lambda line: line["event"] == "listening")
    assert line["threads"] == expected


@pytest.mark.usefixtures("plain")
def test_busy_connections_are_spread_over_the_threads() -> None:
    """Each has half of the bytes that pass, and the control thread next to none."""
    frame = b"MSG a 1 1000\r\n" + b"x" * 1000 + b"\r\n"
    block = frame * 4_000
    with listening() as listener, ExitStack() as stack:
        options = ("--threads", "2")
        proxy = stack.enter_context(ProxyProcess(f"nats://127.0.0.1:{listener.getsockname()[1]}", *options))
        pairs = [pair(listener, proxy.port, stack) for _ in range(4)]
        before = processor(proxy.process.pid)

        def drink(client: socket.socket) -> None:
            left = len(block) * 10
            while left:
                left -= len(client.recv(1 << 20))

        threads = [threading.Thread(target=drink, args=(client,)) for client, _ in pairs]
        threads += [
            threading.Thread(target=lambda server=server: [server.sendall(block) for _ in range(10)])
            for _, server in pairs
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        spent = processor(proxy.process.pid)
        spent.subtract(before)
        (_, first), (_, second), *others = spent.most_common()
        assert second > first / 3
        assert sum(time for _, time in others) < second


@pytest.mark.usefixtures("eager")
def test_frames_and_records_are_those_of_one_thread(tmp_path: Path) -> None:
    """Connections go to and fro between the threads; each frame is in the capture once, with its ordinal."""
    with listening() as listener, ExitStack() as stack:
        url = f"nats://127.0.0.1:{listener.getsockname()[1]}"
        proxy = stack.enter_context(ProxyProcess(url, "--record", f"{tmp_path}/c/"))
        pairs = [pair(listener, proxy.port, stack) for _ in range(8)]
        exchange_all(pairs, ROUNDS)
        close_all(pairs)
        proxy.drain()
    ordinals: dict[tuple[int, int], list[int]] = {}
    messages: Counter[tuple[int, bytes]] = Counter()
    for _, item in open_capture(tmp_path / "c").items():
        if isinstance(item, Frames) and item.in_first is not None:
            # In the file they stand in the order in which they came.
            mine = ordinals.setdefault((item.conn, item.direction), [])
            mine.extend(range(item.in_first, item.in_first + item.frames))
            for frame in frames_in(bytes(item.data), item.direction):
                if frame.op in (Op.PUB, Op.MSG):
                    messages[item.direction, frame.raw[len(frame.line) : -2]] += 1
    assert len(ordinals) == 16
    assert all(found == list(range(len(found))) for found in ordinals.values())
    expected = {b"%d.%d" % (number, at) for number in range(8) for at in range(ROUNDS)}
    for direction in (C2S, S2C):
        assert {body for way, body in messages if way == direction} == expected
    assert set(messages.values()) == {50}


@pytest.mark.usefixtures("eager")
def test_each_segment_begins_with_preambles(tmp_path: Path) -> None:
    """A frame that a thread records never stands before the preamble of its connection."""
    with listening() as listener, ExitStack() as stack:
        url = f"nats://127.0.0.1:{listener.getsockname()[1]}"
        options = ("--record", f"{tmp_path}/c/", "--record-rotate", "20KiB", "--record-flush", "1ms")
        proxy = stack.enter_context(ProxyProcess(url, *options, "--record-compression", "none"))
        pairs = [pair(listener, proxy.port, stack) for _ in range(4)]
        deadline = time.monotonic() + TIMEOUT
        while len(list((tmp_path / "c").glob("*.ncap"))) < 5:
            assert time.monotonic() < deadline
            exchange_all(pairs, 5)
        close_all(pairs)
        proxy.drain()
    for segment in (tmp_path / "c").glob("*.ncap"):
        known: set[int] = set()
        for _, item in open_capture(segment).items():
            if isinstance(item, Preamble | OpenRecord):
                known.add(item.conn)
            elif isinstance(item, Frames):
                assert item.conn in known


@pytest.mark.usefixtures("eager")
def test_rules_that_are_swapped_begin_between_two_frames(tmp_path: Path) -> None:
    """Behind the first frame that is dropped none passes, and each is counted."""
    rules = tmp_path / "rules.toml"
    rules.write_text("rules = []\n")
    with listening() as listener, ExitStack() as stack:
        url = f"nats://127.0.0.1:{listener.getsockname()[1]}"
        proxy = stack.enter_context(ProxyProcess(url, "--rules", str(rules), "--log-rate", "0"))
        pairs = [pair(listener, proxy.port, stack) for _ in range(4)]
        counts = [0] * len(pairs)
        stop = threading.Event()

        def send(number: int) -> None:
            client = pairs[number][0]
            while not stop.is_set():
                client.sendall(b"".join(b"PUB a 8\r\n%08d\r\n" % (counts[number] + i) for i in range(100)))
                counts[number] += 100
            client.sendall(b"PUB end 0\r\n\r\n")

        found: dict[int, bytes] = {}
        threads = [threading.Thread(target=send, args=(number,)) for number in range(len(pairs))]
        threads += [
            threading.Thread(
                target=lambda number=number: found.update(
                    {number: until(pairs[number][1], b"PUB end 0\r\n\r\n")}
                )
            )
            for number in range(len(pairs))
        ]
        for thread in threads:
            thread.start()
        rules.write_text('[[rules]]\nname = "r"\nkind = "drop"\nop = "PUB"\nsubject = "a"\n')
        proxy.process.send_signal(signal.SIGHUP)
        proxy.wait_for(lambda line: line["event"] == "reloaded")
        stop.set()
        for thread in threads:
            thread.join()
        close_all(pairs)
        proxy.drain()
        fired: Counter[int] = Counter()
        for line in proxy.lines():
            if line["event"] == "fired":
                fired[line["conn"]] += line["count"]
    for number, received in found.items():
        passed = received.removesuffix(b"PUB end 0\r\n\r\n")
        assert len(passed) % 19 == 0
        assert passed == b"".join(b"PUB a 8\r\n%08d\r\n" % i for i in range(len(passed) // 19))
        assert len(passed) // 19 + fired[number + 1] == counts[number]


@pytest.mark.usefixtures("eager")
def test_descriptors_that_are_used_again_have_their_own_bytes(tmp_path: Path) -> None:
    """Connections come and go while a thread serves them; nobody gets another's bytes."""
    with listening() as listener, ExitStack() as stack:
        url = f"nats://127.0.0.1:{listener.getsockname()[1]}"
        proxy = stack.enter_context(ProxyProcess(url, "--record", f"{tmp_path}/c/"))
        lasting = [pair(listener, proxy.port, stack) for _ in range(2)]
        done = threading.Event()

        def go_on() -> None:
            exchange_all(lasting, 150)
            done.set()

        background = threading.Thread(target=go_on)
        background.start()
        number = 10
        while not done.is_set():
            number += 1
            with ExitStack() as short:
                mine = pair(listener, proxy.port, short)
                exchange(*mine, number, 1)
                begun = b"MSG a 1 1000\r\nnot whole" if number % 2 else b"PUB a 1000\r\nnot whole"
                mine[number % 2].sendall(begun)
            assert background.is_alive() or done.is_set()
        background.join()


@contextmanager
def echoing() -> Iterator[int]:
    """Run a server that delivers to each client what it publishes; yield its port."""
    poll = selectors.DefaultSelector()
    stop, stopped = socket.socketpair()
    begun: dict[socket.socket, bytes] = {}

    def answers(sock: socket.socket) -> bytes:
        data = begun[sock] + sock.recv(1 << 16)
        if len(data) == len(begun[sock]):
            raise ConnectionResetError
        found, at = [], 0
        while (spoken := SPOKEN.match(data, at)) is not None:
            body, ping = spoken.groups()
            if ping:
                found.append(b"PONG\r\n")
            elif body is not None:
                found.append(b"MSG a 1 %d\r\n%b\r\n" % (len(body), body))
            at = spoken.end()
        begun[sock] = data[at:]
        return b"".join(found)

    def serve(listener: socket.socket) -> None:
        while True:
            for key, _ in poll.select():
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                if sock is stopped:
                    return
                if sock is listener:
                    client = sock.accept()[0]
                    begun[client] = b""
                    poll.register(client, selectors.EVENT_READ)
                    with suppress(OSError):  # its end is read
                        client.sendall(INFO)
                    continue
                try:
                    sock.sendall(answers(sock))
                except OSError:
                    poll.unregister(sock)
                    del begun[sock]
                    sock.close()

    with stop, stopped, listening() as listener:
        for sock in (listener, stopped):
            poll.register(sock, selectors.EVENT_READ)
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            stop.sendall(b"x")
            thread.join()
            for left in begun:
                left.close()
            poll.close()


def visit(port: int, name: bytes, rng: random.Random) -> None:
    """Come, publish and hear all of it, and leave in one way or another."""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT) as sock:
        until(sock, b"\r\n")
        sock.sendall(HELLO)
        assert until(sock, b"PONG\r\n") == b"PONG\r\n"
        for at in range(rng.randrange(1, 6)):
            body = b"%b.%d." % (name, at) * rng.choice((1, 1, 3_000))
            count = rng.randrange(1, 10)
            sock.sendall(b"PUB a %d\r\n%b\r\n" % (len(body), body) * count)
            expected = b"MSG a 1 %d\r\n%b\r\n" % (len(body), body) * count
            received = bytearray()
            while len(received) < len(expected):
                received += (data := sock.recv(len(expected) - len(received)))
                assert data, "cut off"
            assert received == expected
        match rng.randrange(4):
            case 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
            case 1:
                sock.sendall(b"PUB a 1000\r\nnot whole")
            case 2:
                sock.shutdown(socket.SHUT_WR)
                assert sock.recv(1) == b""


def watched(pid: int, epoll: int) -> set[int]:
    """Return the descriptors that an epoll of a process watches."""
    found = Path(f"/proc/{pid}/fdinfo/{epoll}").read_text().splitlines()
    return {int(line.split()[1]) for line in found if line.startswith("tfd:")}


@pytest.mark.long
@pytest.mark.usefixtures("eager")
def test_many_come_and_go_while_rules_and_files_change(tmp_path: Path) -> None:
    """Descriptors come back on the other thread; each client hears itself, and the capture has it so."""
    rules = tmp_path / "rules.toml"
    rules.write_text("rules = []\n")
    options = ["--rules", str(rules), "--record", f"{tmp_path}/c/", "--record-rotate", "1MiB"]
    options += ["--log-rate", "0", "--auth-timeout", "30s"]  # on a busy machine guests are late
    visits: Counter[int] = Counter()
    errors: list[BaseException] = []
    with echoing() as server, ProxyProcess(f"nats://127.0.0.1:{server}", *options) as proxy:
        pid = proxy.process.pid
        held = [
            int(entry.name)
            for entry in Path(f"/proc/{pid}/fd").iterdir()
            if "eventpoll" in str(entry.readlink())
        ]
        epolls = sorted(held)[-2:]  # the workers' were the last
        used: tuple[set[int], set[int]] = (set(), set())

        def come_and_go(number: int) -> None:
            rng = random.Random(number)
            try:
                while visits[number] < VISITS and not errors:
                    visit(proxy.port, b"%d.%d" % (number, visits[number]), rng)
                    visits[number] += 1
            except BaseException as error:
                errors.append(error)

        guests = [threading.Thread(target=come_and_go, args=(number,)) for number in range(GUESTS)]
        for guest in guests:
            guest.start()
        turns = 0
        while any(guest.is_alive() for guest in guests):
            for mine, epoll in zip(used, epolls, strict=True):
                mine |= watched(pid, epoll)
            turns += 1
            if turns % 20 == 0:
                rules.write_text('[[rules]]\nname = "r"\n' + HARMLESS[turns // 20 % len(HARMLESS)])
                proxy.process.send_signal(signal.SIGHUP)
            time.sleep(0.01)  # between two looks
        assert not errors, (errors, Counter(line.get("cause") for line in proxy.lines()))
        assert proxy.drain() == 0
        assert "Traceback" not in proxy.log.read_text()
        closed = Counter(line["conn"] for line in proxy.lines() if line["event"] == "closed")
    total = GUESTS * VISITS
    assert closed == Counter(range(1, total + 1))
    assert len(used[0] & used[1]) > GUESTS / 2
    names: dict[int, set[bytes]] = {}
    for segment in sorted((tmp_path / "c").glob("*.ncap")):
        for _, item in open_capture(segment).items():
            if isinstance(item, Frames) and not item.flags:  # a frame that is not whole has one
                for frame in frames_in(bytes(item.data), item.direction):
                    if frame.op in (Op.PUB, Op.MSG) and b"." in frame.raw:
                        body = frame.raw[len(frame.line) : -2]
                        names.setdefault(item.conn, set()).add(b".".join(body.split(b".", 2)[:2]))
    assert len(names) == total
    assert all(len(found) == 1 for found in names.values())


@pytest.mark.usefixtures("eager")
def test_a_client_that_does_not_read_stops_its_server_only() -> None:
    """What waits for it is bounded by the kernel and one read, and comes when it reads again."""
    frame = b"MSG a 1 50000\r\n" + bytes(50_000) + b"\r\n"
    with listening() as listener, ExitStack() as stack:
        proxy = stack.enter_context(ProxyProcess(f"nats://127.0.0.1:{listener.getsockname()[1]}"))
        deaf, server = pair(listener, proxy.port, stack)
        pairs = [pair(listener, proxy.port, stack) for _ in range(3)]
        before = proxy.memory()
        server.setblocking(False)
        sent, quiet = 0, 0
        while quiet < 10:
            try:
                sent += server.send(frame[sent % len(frame) :])
                quiet = 0
            except BlockingIOError:
                exchange(*pairs[quiet % 3], quiet, 2)
                quiet += 1
        assert proxy.memory() - before < 8 << 20
        left = sent
        while left:
            left -= len(deaf.recv(1 << 20))


@pytest.mark.usefixtures("eager")
def test_a_lost_leg_that_a_thread_may_not_read_yet_costs_nothing() -> None:
    """Its client does not read; the loop sleeps meanwhile, and all that was sent before comes in the end."""
    frame = b"MSG a 1 50000\r\n" + bytes(50_000) + b"\r\n"
    with listening() as listener, ExitStack() as stack:
        proxy = stack.enter_context(ProxyProcess(f"nats://127.0.0.1:{listener.getsockname()[1]}"))
        deaf, server = pair(listener, proxy.port, stack)
        exchange(deaf, server, 0, 2)
        server.settimeout(0.2)
        sent = 0
        with suppress(TimeoutError):
            while True:
                sent += server.send(frame[sent % len(frame) :])
        server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        server.close()  # a reset
        loop = str(proxy.process.pid)
        before = processor(proxy.process.pid)[loop]
        time.sleep(0.3)  # in which it could be busy
        assert processor(proxy.process.pid)[loop] - before < 20_000_000
        received = 0
        while data := deaf.recv(1 << 20):
            received += len(data)
        assert 0 < received <= sent


@pytest.mark.long
@pytest.mark.usefixtures("plain")
def test_five_thousand_connections() -> None:
    """All are served by two threads, and all of them end."""
    with listening() as listener, ExitStack() as stack:
        url = f"nats://127.0.0.1:{listener.getsockname()[1]}"
        proxy = stack.enter_context(ProxyProcess(url, "--threads", "2", "--log-rate", "0"))
        pairs = [pair(listener, proxy.port, stack) for _ in range(5_000)]
        for number, (client, server) in enumerate(pairs):
            exchange(client, server, number, 20 if number % 10 == 0 else 1)
        close_all(pairs)
        proxy.wait_for(lambda line: line["event"] == "closed", 5_000)
        assert proxy.drain() == 0


@pytest.mark.usefixtures("eager")
def test_a_proxy_that_is_killed_leaves_a_capture_to_read(tmp_path: Path) -> None:
    """Whole blocks, and of each connection the first frames without a gap."""
    with listening() as listener, ExitStack() as stack:
        url = f"nats://127.0.0.1:{listener.getsockname()[1]}"
        proxy = stack.enter_context(ProxyProcess(url, "--record", f"{tmp_path}/c/", "--record-flush", "1ms"))
        pairs = [pair(listener, proxy.port, stack) for _ in range(4)]
        exchange_all(pairs, ROUNDS)
        os.kill(proxy.process.pid, signal.SIGKILL)
        proxy.process.wait()
    ordinals: dict[tuple[int, int], list[int]] = {}
    for _, item in open_capture(tmp_path / "c").items():
        if isinstance(item, Frames) and item.in_first is not None:
            ordinals.setdefault((item.conn, item.direction), []).extend(
                range(item.in_first, item.in_first + item.frames)
            )
    assert all(found == list(range(len(found))) for found in ordinals.values())
