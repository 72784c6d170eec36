"""The native plane by itself, between sockets and a relay that is only a list of what it was told."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from natsproxy.capture.format.records import Frames
from natsproxy.capture.read.segment import decode_items
from natsproxy.capture.write.builder import BlockBuilder
from natsproxy.wire.interest import Clause
from natsproxy.wire.ops import C2S, S2C, Direction, Op, op_mask
from natsproxy.wire.scanner import COMPILED, Interest, Scanner

if not COMPILED:
    pytest.skip("not compiled", allow_module_level=True)
_plane: Any = pytest.importorskip("natsproxy.net._plane")

FRAME = b"PUB a 1\r\nx\r\n"
IDLE, MORE, LOOP = range(3)
RULES = ("rules",)
"""What a relay notes where rules have acted."""
ROOM = 1 << 20  # bytes of open frames that each thread records
LONG = 1 << 60  # ns: a step ends when nothing is left to do


class Relay:
    """Notes its calls; `then` is called at each, once only."""

    def __init__(self, plane: Any, client: socket.socket, server: socket.socket) -> None:
        self.sockets = (client, server)
        self.told: list[Any] = []
        self.then: Callable[[], None] | None = None
        self.connection = plane.adopt(self, 1, client, server, _plane.NativeLeg)

    def clear(self, *ops: Op, recording: bool = False) -> None:
        """Let frames of all ops but these go past."""
        clauses = (Clause(op_mask(*ops)),) if ops else ()
        for direction in (C2S, S2C):
            pipe = SimpleNamespace(full=False, swallowing=False, pending=False, whole=0, out_next=0)
            pipe.scanner = Scanner(direction, Interest(clauses))
            self.connection.update_flow(direction, True, pipe, recording)

    def leave(self) -> None:
        self.connection.remove()
        for sock in self.sockets:
            sock.close()

    def _note(self, *told: Any) -> None:
        self.told.append(told)
        if self.then is not None:
            then, self.then = self.then, None
            then()

    def received(self, direction: Direction, data: bytes) -> None:
        self._note(direction, data)

    def report(self) -> None:
        self._note("rules")

    def ended(self, direction: Direction) -> None:
        self._note(direction, "ended")

    def leg_lost(self, leg: Any) -> None:
        self._note(leg, "lost")

    def flushed(self, leg: Any) -> None:
        self._note("flushed")

    def failed(self, error: BaseException) -> None:
        self._note(error)


class Rig:
    """A plane, and the peers of its connections."""

    def __init__(self, workers: int = 0) -> None:
        self.plane = _plane.Plane(0, ROOM * (1 + workers), 2 * ROOM, workers, 1)
        self.plane.recorded = lambda: None
        self._open: list[socket.socket] = []

    def sockets(self) -> list[socket.socket]:
        """Return our ends of two connections, and the peers' ends: client, server, client, server."""
        pairs = [socket.socketpair() for _ in range(2)]
        found = [pair[end] for end in range(2) for pair in pairs]
        for sock in found:
            sock.setblocking(False)
        self._open += found
        return found

    def connect(self) -> tuple[Relay, socket.socket, socket.socket]:
        """Return a new relay and its two peers."""
        client, server, *peers = self.sockets()
        return Relay(self.plane, client, server), peers[0], peers[1]

    def step(self, most: int = LONG) -> bool:
        return bool(self.plane.step(most, 0, -1))

    def run(self) -> None:
        """Step until nothing is left to do."""
        while self.step():
            pass

    def close(self) -> None:
        self.plane.close()
        for sock in self._open:
            sock.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.close()


def test_a_frame_has_no_time_at_which_its_sender_still_had_it(rig: Rig) -> None:
    """Its body is the sender's clock just before; the plane and the sender run at once."""
    builder, count, recorded = BlockBuilder(), 8_000, 0
    rig.plane.set_builder(builder)
    relay, peer, behind = rig.connect()
    relay.clear(recording=True)
    peer.setblocking(True)

    def send() -> None:
        for _ in range(count):
            peer.send(b"PUB a 20\r\n%020d\r\n" % time.monotonic_ns())

    sender = threading.Thread(target=send)
    sender.start()
    deadline = time.monotonic() + 60
    while recorded < count and time.monotonic() < deadline:
        rig.step(100_000)
        with suppress(BlockingIOError):
            behind.recv(1 << 20)
        block = builder.seal() if builder.begun else None
        for item in [] if block is None else decode_items(b"".join(block.buffers), block.summary[0]):
            assert isinstance(item, Frames)
            recorded += item.frames
            assert item.in_t is not None
            assert item.in_t >= int(bytes(item.data)[-22:-2])
    sender.join()
    assert recorded == count


def fill(relay: Relay, peer: socket.socket) -> None:
    """Write to the client of a relay until the kernel takes no more, and wait for the rest to go."""
    while not relay.connection.client.backlog:
        relay.connection.client.write_all([bytes(1 << 16)])
    relay.connection.client.expect_flush()


def test_an_event_of_a_batch_is_not_for_a_connection_that_ended_in_it(rig: Rig) -> None:
    """Nor for one that has its descriptors by then."""
    (first, first_peer, _), (second, second_peer, _) = rig.connect(), rig.connect()
    fill(first, first_peer)
    rig.run()
    later: list[Relay] = []

    def replace() -> None:
        descriptors = [sock.fileno() for sock in second.sockets]
        second.leave()
        relay, peer, _ = rig.connect()
        assert set(descriptors) & {sock.fileno() for sock in relay.sockets}
        peer.send(b"for the later one")
        later.append(relay)

    first.then = replace
    reads = rig.plane.reads
    first_peer.recv(1 << 20)  # room for the backlog: an event, before the second's
    second_peer.send(b"for the one that ended")
    rig.run()
    while not later:
        first_peer.recv(1 << 20)
        rig.run()
    assert ("flushed",) in first.told
    assert second.told == []
    assert later[0].told == [(C2S, b"for the later one")]
    assert rig.plane.reads == reads + 3  # of the first one and the later one: a flow that ended reads nothing


def test_a_connection_that_leaves_in_its_own_call_makes_room_for_another(rig: Rig) -> None:
    first, peer, _ = rig.connect()
    later: list[Relay] = []

    def replace() -> None:
        first.leave()
        relay, next_peer, _ = rig.connect()
        next_peer.send(b"b")
        later.append(relay)

    first.then = replace
    peer.send(b"a")
    rig.run()
    assert first.told == [(C2S, b"a")]
    assert later[0].told == [(C2S, b"b")]


def test_a_leg_that_was_not_adopted_is_not_read(rig: Rig) -> None:
    client, server, peer, _ = rig.sockets()
    server.close()
    peer.send(b"for nobody")
    with pytest.raises(OSError, match="Bad file descriptor"):
        Relay(rig.plane, client, server)
    rig.run()
    assert client.recv(100) == b"for nobody"


def test_a_step_ends_after_its_time_whoever_is_ready(rig: Rig) -> None:
    """After the flow that it serves: with no time at all, one flow has its turn in each step."""
    relays = []
    for _ in range(10):
        relay, peer, _ = rig.connect()
        peer.send(b"a")
        relays.append(relay)
    served = []
    while rig.step(0):
        served.append(sum(len(relay.told) for relay in relays))
    assert [relay.told for relay in relays] == [[(C2S, b"a")]] * 10
    assert set(range(1, 10)) <= set(served)


def test_a_step_goes_on_while_the_loop_has_nothing_to_do(rig: Rig) -> None:
    """And Python code was not called; here with no time of its own."""
    loop, _ = rig.sockets()[::2]
    targets = []
    for _ in range(10):
        relay, peer, target = rig.connect()
        relay.clear()
        rig.run()
        peer.send(FRAME)
        targets.append(target)
    assert rig.plane.step(0, LONG, loop.fileno()) == IDLE
    assert [target.recv(100) for target in targets] == [FRAME] * 10


def test_a_step_ends_where_the_loop_has_an_event(rig: Rig) -> None:
    loop, peer_of_loop = rig.sockets()[::2]
    relay, peer, target = rig.connect()
    relay.clear()
    rig.run()
    peer_of_loop.send(b"x")
    peer.send(FRAME)
    assert rig.plane.step(LONG, LONG, loop.fileno()) == LOOP
    assert target.recv(100) == FRAME


def test_a_step_in_which_python_code_ran_ends(rig: Rig) -> None:
    """That code may have given the loop something to do."""
    loop, _ = rig.sockets()[::2]
    relay, peer, _ = rig.connect()
    rig.run()
    peer.send(b"x")
    assert rig.plane.step(LONG, LONG, loop.fileno()) == MORE
    assert relay.told == [(C2S, b"x")]


def test_a_step_that_ends_after_its_time_looks_at_the_loop(rig: Rig) -> None:
    """Else a flood whose every turn is long, and has some Python code in it, would keep the loop waiting."""
    loop, peer_of_loop = rig.sockets()[::2]
    relay, peer, _ = rig.connect()
    rig.run()
    peer_of_loop.send(b"x")
    peer.send(b"x")
    assert rig.plane.step(0, LONG, loop.fileno()) == LOOP
    assert relay.told == [(C2S, b"x")]


def test_bytes_behind_urgent_ones_are_read(rig: Rig) -> None:
    """A read ends before an urgent byte: a short one then does not mean that nothing is left."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = socket.create_connection(listener.getsockname())
        client, _ = listener.accept()
    _, server, _, server_peer = rig.sockets()
    client.setblocking(False)
    with peer, client:
        relay = Relay(rig.plane, client, server)
        relay.clear()
        rig.run()
        peer.send(FRAME)
        peer.send(b"!", socket.MSG_OOB)
        peer.send(FRAME)
        rig.run()
        assert server_peer.recv(100) == FRAME * 2
        relay.connection.remove()


def test_a_look_whether_a_leg_has_bytes_leaves_the_reason_why_it_was_lost(rig: Rig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = socket.create_connection(listener.getsockname())
        client, _ = listener.accept()
    client.setblocking(False)
    with client:
        relay = Relay(rig.plane, client, rig.sockets()[0])
        leg = relay.connection.client
        peer.send(b"x")
        assert leg.readable
        rig.run()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        assert not leg.readable
        rig.run()
        assert relay.told == [(C2S, b"x"), (leg, "lost"), (C2S, "ended")]
        assert leg.lost == "Connection reset by peer"
        relay.connection.remove()


def test_frames_of_the_system_are_the_sessions(rig: Rig) -> None:
    """It searches them for secrets, whether or not anything records."""
    relay, peer, server_peer = rig.connect()
    relay.clear()
    of_the_system = b"PUB $SYS.REQ.x 100\r\nand its payload, of which"
    peer.send(FRAME + of_the_system)
    rig.run()
    assert server_peer.recv(100) == FRAME
    assert relay.told == [(C2S, of_the_system)]


def test_a_failure_ends_the_turns_of_one_connection(rig: Rig) -> None:
    (failing, failing_peer, _), (other, other_peer, _) = rig.connect(), rig.connect()
    error = RuntimeError("a bug")

    def fail() -> None:
        raise error

    failing.then = fail
    for _ in range(2):
        failing_peer.send(b"a")
        other_peer.send(b"b")
        rig.run()
    assert failing.told == [(C2S, b"a"), (error,)]
    assert [data for _, data in other.told] == [b"b", b"b"]


def test_both_legs_end_in_the_same_step(rig: Rig) -> None:
    relay, peer, server_peer = rig.connect()
    relay.clear(*Op)
    peer.send(b"PUB a 1")
    for each in (peer, server_peer):
        each.close()
    rig.run()
    told = sorted(relay.told, key=lambda each: each[0])  # the kernel may report either leg first
    assert told == [(C2S, b"PUB a 1"), (C2S, "ended"), (S2C, "ended")]
    assert relay.connection.remove() == [(b"", True), (b"", True)]


def test_a_backlog_is_sent_before_a_half_close(rig: Rig) -> None:
    relay, peer, _ = rig.connect()
    fill(relay, peer)
    relay.then = relay.connection.client.finish
    received = bytearray()
    while True:
        try:
            data = peer.recv(1 << 20)
        except BlockingIOError:
            rig.run()
            continue
        if not data:
            break
        received += data
    assert relay.told == [("flushed",)]
    assert len(received) % (1 << 16) == 0


class Passing(Relay):
    """Sends on what it is told, and what `beside` has to the other side."""

    beside: bytes = b""

    def received(self, direction: Direction, data: bytes) -> None:
        super().received(direction, data)
        legs = (self.connection.server, self.connection.client)
        legs[direction].write_all([data])
        if self.beside:
            legs[1 - direction].write_all([self.beside])


@pytest.mark.parametrize(
    "parts",
    [
        [b"PING\r\n", FRAME],
        [FRAME, b"PING\r\n"],
        [FRAME, b"PING\r\nSUB a 1\r\n", FRAME * 2, b"UNSUB 1\r\n", FRAME],
        [b"PING\r\n", FRAME * 9_000, b"PING\r\n"],
    ],
)
def test_what_goes_on_of_a_read_goes_out_in_one_write(rig: Rig, parts: list[bytes]) -> None:
    """Whoever has dealt with it; what goes to the other side does not wait for it."""
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
    for pair in pairs:
        for sock in pair:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            sock.setblocking(False)
    (client, peer), (server, server_peer) = pairs
    with peer, server_peer:
        relay = Passing(rig.plane, client, server)
        relay.clear()
        relay.beside = b"+OK\r\n"
        rig.run()
        peer.send(b"".join(parts))
        rig.run()
        assert server_peer.recv(1 << 20) == b"".join(parts)
        told = [data for _, data in relay.told]
        assert told == [part for part in parts if not part.startswith(FRAME)]
        assert [peer.recv(100) for _ in told] == [relay.beside] * len(told)
        with pytest.raises(BlockingIOError):
            server_peer.recv(1)
        relay.leave()


def test_gathered_bytes_are_a_backlog_until_they_go_out(rig: Rig) -> None:
    """So whoever half-closes a leg waits for them."""
    relay, peer, server_peer = rig.connect()
    relay.clear()
    backlogs = []

    def write() -> None:
        relay.connection.server.write_all([b"PING\r\n"])
        backlogs.append(relay.connection.server.backlog)

    relay.then = write
    peer.send(b"PING\r\n" + FRAME)
    rig.run()
    assert backlogs == [6]
    assert relay.connection.server.backlog == 0
    assert server_peer.recv(100) == b"PING\r\n" + FRAME


@pytest.mark.parametrize("begins", ["here", "there"])
def test_the_room_of_open_frames_goes_along_with_a_connection(begins: str) -> None:
    """A frame begins on one thread and ends on another; both have all of their room after it, and no more."""
    rig = Rig(workers=1)
    thread = threading.Thread(target=rig.plane.workers[0].run)
    thread.start()
    try:
        rig.plane.set_builder(builder := BlockBuilder())
        builder.begin(0, 0)
        relay, client, server = rig.connect()
        relay.clear(recording=True)

        def passes(part: bytes) -> None:
            for at in range(0, len(part), 1 << 15):
                client.sendall(piece := part[at : at + (1 << 15)])
                left = len(piece)
                while left:
                    rig.run()
                    assert relay.told == []
                    with suppress(BlockingIOError):
                        left -= len(server.recv(left))

        body = bytes(ROOM // 4)
        head = b"PUB a %d\r\n" % len(body)
        for _ in range(10):  # after a read a connection goes to the worker
            rig.plane.recall_all()
            if begins == "there":
                passes(FRAME)
            passes(head + body)
            if begins == "there":
                rig.plane.recall_all()
            passes(b"\r\n")
        rig.plane.recall_all()
        for size, told in ((ROOM // 2, False), (ROOM + 1, True)):
            head = b"PUB a %d\r\n" % size
            client.sendall(head)
            rig.run()
            rig.plane.recall_all()
            assert relay.told == [(C2S, head)] * told
            if not told:
                passes(bytes(size) + b"\r\n")
                rig.plane.recall_all()
    finally:
        rig.plane.workers[0].stop()
        thread.join()
        rig.close()
