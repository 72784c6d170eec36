"""Traffic of any length whose tables are known: telemetry, requests, JetStream, signs of life."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from natsproxy.capture.format.records import CloseRecord, Frames, Item, OpenRecord
from natsproxy.capture.write.builder import BLOCK_SIZE, BlockBuilder
from natsproxy.capture.write.writer import CaptureWriter, SegmentInfo
from natsproxy.wire.ops import C2S, S2C, Direction, Op
from tests.kit.captures import MONO, WALL

MS = 1_000_000
ROUND = 10 * MS
STATION, SERVICE, CLIENT, WORKER, FIRST_SENSOR = 2, 3, 4, 5, 10
SENSORS = 8


class Conversation:
    """Rounds of a conversation, one every 10 ms; known: the counts that the tables must have."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.known: Counter[str] = Counter()
        self._ordinals: dict[tuple[int, Direction], Iterator[int]] = {}
        self._stored = 0

    def _frame(self, t: int, conn: int, way: Direction, op: Op, raw: bytes) -> Frames:
        ordinal = next(self._ordinals.setdefault((conn, way), itertools.count()))
        self.known["frames"] += 1
        return Frames(conn, way, raw, 1, 1 << op, ordinal, MONO + t, ordinal, MONO + t)

    def items(self) -> Iterator[Item]:
        """Yield the items of the whole conversation, in the order of time."""
        conns = (STATION, SERVICE, CLIENT, WORKER, *range(FIRST_SENSOR, FIRST_SENSOR + SENSORS))
        for conn in conns:
            yield OpenRecord(conn, MONO, {"client": f"10.0.0.{conn}:1"})
            yield self._frame(0, conn, C2S, Op.CONNECT, b'CONNECT {"name":"c%d","lang":"go"}\r\n' % conn)
        yield self._frame(0, STATION, C2S, Op.SUB, b"SUB telemetry.> 1\r\n")
        yield self._frame(0, SERVICE, C2S, Op.SUB, b"SUB svc.* workers 1\r\n")
        for number in range(self.rounds):
            t = (number + 1) * ROUND
            yield from self._telemetry(t, number)
            yield from self._requests(t, number)
            yield from self._jetstream(t, number)
            if number % 100 == 0:
                yield self._frame(t + 9 * MS, CLIENT, C2S, Op.PING, b"PING\r\n")
                yield self._frame(t + 9 * MS + 5_000, CLIENT, S2C, Op.PONG, b"PONG\r\n")
                self.known["pings"] += 1
        for conn in conns:
            yield CloseRecord(conn, MONO + (self.rounds + 2) * ROUND, "client-closed", {"c2s_bytes": 1})

    def _telemetry(self, t: int, number: int) -> Iterator[Frames]:
        for place in range(10):
            at = t + place * 100_000
            subject = b"telemetry.%d.temperature" % (number % 50)
            body = b"%016d" % (number * 10 + place)
            sensor = FIRST_SENSOR + (number + place) % SENSORS
            yield self._frame(at, sensor, C2S, Op.PUB, b"PUB %s 16\r\n%s\r\n" % (subject, body))
            yield self._frame(at + 50_000, STATION, S2C, Op.MSG, b"MSG %s 1 16\r\n%s\r\n" % (subject, body))
            self.known["telemetry"] += 1

    def _requests(self, t: int, number: int) -> Iterator[Frames]:
        for place in range(2):
            at, subject = t + (2 + place) * MS, b"svc.%d" % (number % 5)
            reply = b"_INBOX.Ab3dEf6hIj9lMn2pQr5tUv.%d-%d" % (number, place)
            yield self._frame(at, CLIENT, C2S, Op.PUB, b"PUB %s %s 4\r\nping\r\n" % (subject, reply))
            yield self._frame(
                at + 1_000, SERVICE, S2C, Op.MSG, b"MSG %s 1 %s 4\r\nping\r\n" % (subject, reply)
            )
            self.known["requests"] += 1
            if number % 20 == 19 and place:
                self.known["unanswered"] += 1
                continue
            yield self._frame(at + 3_000, SERVICE, C2S, Op.PUB, b"PUB %s 4\r\npong\r\n" % reply)
            yield self._frame(at + 4_000, CLIENT, S2C, Op.MSG, b"MSG %s 7 4\r\npong\r\n" % reply)
            self.known["latency_ns"] += 4_000

    def _jetstream(self, t: int, number: int) -> Iterator[Frames]:
        self._stored += 1
        seq, reply = self._stored, b"_INBOX.Zz3dEf6hIj9lMn2pQr5tUv.js%d" % number
        block = b"NATS/1.0\r\nNats-Msg-Id: m%d\r\n\r\n" % number
        sizes = b"%d %d" % (len(block), len(block) + 5)
        head = b"HPUB orders.new %s %s\r\n" % (reply, sizes)
        yield self._frame(t + 5 * MS, CLIENT, C2S, Op.HPUB, head + block + b"order\r\n")
        ack = b'{"stream":"ORDERS","seq":%d}' % seq
        line = b"MSG %s 7 %d\r\n%s\r\n" % (reply, len(ack), ack)
        yield self._frame(t + 5 * MS + 2_000, CLIENT, S2C, Op.MSG, line)
        self.known["pub_acks"] += 1
        answers = (b"-NAK", b"+ACK") if number % 50 == 0 else (b"+ACK",)
        for times, answer in enumerate(answers, 1):
            subject = b"$JS.ACK.ORDERS.worker.%d.%d.%d.%d.0" % (times, seq, seq, WALL + t)
            at = t + (5 + times) * MS
            head = b"HMSG orders.new 9 %s %s\r\n" % (subject, sizes)
            yield self._frame(at, WORKER, S2C, Op.HMSG, head + block + b"order\r\n")
            yield self._frame(at + 7_000, WORKER, C2S, Op.PUB, b"PUB %s 4\r\n%s\r\n" % (subject, answer))
            self.known["js_acks"] += 1
            self.known["redelivered"] += times > 1


def record(path: Path, conversation: Conversation, *, block: int = BLOCK_SIZE) -> Path:
    """Write a conversation as a capture of blocks of about `block` bytes."""
    writer = CaptureWriter(path, SegmentInfo(os.urandom(16), bytes(16), WALL, MONO))
    writer.open_segment()
    builder = BlockBuilder()
    for item in conversation.items():
        if not builder.begun:
            builder.begin(MONO, WALL)
        builder.add(item)
        if builder.size >= block:
            writer.write(builder.seal())
    if builder.begun:
        writer.write(builder.seal())
    writer.close()
    return path
