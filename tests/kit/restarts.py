"""Recordings that span restarts of a proxy: each run of it counts its connections from 1 again."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from natsproxy.addresses import split_host_port
from natsproxy.capture.format.records import Frames, Item
from natsproxy.capture.write.builder import BlockBuilder
from natsproxy.capture.write.writer import CaptureWriter, SegmentInfo
from natsproxy.testing import TestProxy
from tests.kit.servers import NatsServer

WALL = 1_767_225_600_000_000_000  # 2026-01-01T00:00:00Z
CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"lang":"raw","version":"1","name":"shop"}\r\n'


def visit(url: str, number: int) -> None:
    """Be a client that subscribes, publishes its number, hears it again, and leaves."""
    host, port = split_host_port(url.removeprefix("nats://"))
    with socket.create_connection((host, port or 4222), timeout=30) as client:
        stream = client.makefile("rb")
        client.sendall(CONNECT + b"SUB prices 1\r\nPING\r\n")
        _read_to(stream.readline, b"PONG\r\n")
        client.sendall(b"PUB prices 1\r\n%d\r\n" % number)
        _read_to(stream.readline, b"%d\r\n" % number)


def _read_to(readline: Callable[[], bytes], wanted: bytes) -> None:
    while (line := readline()) != wanted:
        if not line or line.startswith(b"-ERR"):
            raise AssertionError(f"{line!r} where {wanted!r} was expected")


def record_runs(path: Path, runs: int = 4) -> None:
    """Record `runs` lives of a proxy before a server to one path, with one client each."""
    with NatsServer() as server:
        for number in range(1, runs + 1):
            with TestProxy(server.url, record=path) as proxy:
                visit(proxy.url, number)


def write_run(
    path: Path,
    recorder: bytes,
    items: Sequence[Item],
    *,
    start: int = 0,
    mono: int = 0,
    segment: int = 0,
    per_block: int = 1_000,
) -> Path:
    """Write a segment of a run that began `start` ns after `WALL`, at `mono` of its monotonic clock.

    The times of the items count from the start of the run.
    """
    info = SegmentInfo(recorder, recorder[::-1], WALL + start, mono, seed=1)
    scratch = path.with_name(f"{path.stem}.{os.urandom(4).hex()}.ncap")
    writer = CaptureWriter(scratch, info)
    writer.segment = segment - 1
    written = writer.open_segment()
    for at in range(0, len(items), per_block):
        builder = BlockBuilder()
        builder.begin(mono, WALL + start)
        for item in items[at : at + per_block]:
            builder.add(_shifted(item, mono))
        writer.write(builder.seal())
    writer.close()
    return written.rename(path)


def _shifted(item: Item, by: int) -> Item:
    if isinstance(item, Frames):
        return item._replace(in_t=(item.in_t or 0) + by, out_t=(item.out_t or 0) + by)
    return item._replace(t=item.t + by)


if __name__ == "__main__":
    for text in sys.argv[1:]:
        visit(os.environ["NATS_URL"], int(text))
