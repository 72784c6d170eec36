"""Captures that are hard to read: one value has nearly all rows, a block is damaged."""

from __future__ import annotations

from pathlib import Path

from natsproxy.capture.format.records import Open
from natsproxy.wire.ops import C2S, S2C
from tests.kit.captures import MONO, Scribe, write


def skewed(path: Path) -> Path:
    """Write a capture in which one reply subject, one subject and one connection have nearly everything."""
    scribe = Scribe()
    scribe.items.append(Open(1, MONO, {"client": "10.0.0.1:1"}))
    for n in range(2_000):
        scribe.frame(n * 1_000, 1, C2S, b"PUB hot _INBOX.hot 1\r\nq\r\n")
        scribe.frame(n * 1_000 + 300, 1, S2C, b"MSG _INBOX.hot 9 1\r\na\r\n")
    scribe.frame(0, 2, C2S, b"PUB cold _INBOX.cold 1\r\nq\r\n")
    return write(path, scribe.items)


def damaged(path: Path) -> Path:
    """Write a capture with a block that cannot be read: its row has no time, and so no day."""
    scribe = Scribe()
    for n in range(30):
        scribe.frame(n * 1_000, 1, C2S, b"PUB orders.%d 1\r\nx\r\n" % n)
    raw = bytearray(write(path, scribe.items, per_block=3).read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    path.write_bytes(raw)
    return path
