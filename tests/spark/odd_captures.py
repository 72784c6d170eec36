"""Captures that are hard to read: one value has nearly all rows, a block is damaged, payloads are no text."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import msgpack

from natsproxy.capture.format.records import OpenRecord
from natsproxy.wire.ops import C2S, S2C
from tests.kit.captures import MONO, Scribe, write


def skewed(path: Path) -> Path:
    """Write a capture in which one reply subject, one subject and one connection have nearly everything."""
    scribe = Scribe()
    scribe.items.append(OpenRecord(1, MONO, {"client": "10.0.0.1:1"}))
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


def payloads() -> dict[str, bytes]:
    """Return payloads that are no text, or no whole one, by what they are."""
    noise = random.Random(7)
    told = '{"error":{"code":400,"err_code":10071,"description":"' + "\u00e9" * 200 + '"}}'
    return {
        **{f"random-{n}": noise.randbytes(n) for n in (1, 4, 5, 300)},
        "every-byte": bytes(range(256)),
        "json-at-first-sight": b'{"stream":"S\xff","seq":1,' + noise.randbytes(40),
        "error-at-first-sight": b'{"error":{"err_code":10071,"description":"\xc3\xed\xa0\x80\xf5 no"}}',
        "cut-in-a-letter": told.encode(),
        "surrogates": b'{"stream":"\xed\xa0\x80","seq":3}',
        "ack-at-first-sight": b"+ACK\xff",
        "nak-at-first-sight": b"-NAK \xfe\xff",
        "term-at-first-sight": b"+TERM\x80",
        "next-at-first-sight": b"+NXT\xc0",
        "msgpack": msgpack.packb({"id": 2**40, "price": -1.5, "raw": bytes(range(128, 160))}),
        "gzip": gzip.compress(b'{"stream":"S","seq":1}' * 20, mtime=0),
        "protobuf": b"\x08\x96\x01\x12\x04\xff\xfe\xfd\xfc\x1a\x02{}",
    }


def binary(path: Path) -> Path:
    """Write a capture whose requests, replies, publishes, acks and headers hold bytes that are no text."""
    scribe = Scribe()
    for n, (kind, raw) in enumerate(payloads().items()):
        t, name, size = n * 1_000_000, kind.encode(), len(raw)
        for way, conn, line in (
            (C2S, 1, b"PUB bin.%s _INBOX.bin.%d %d" % (name, n, size)),
            (S2C, 2, b"MSG bin.%s 1 _INBOX.bin.%d %d" % (name, n, size)),
            (C2S, 2, b"PUB _INBOX.bin.%d %d" % (n, size)),
            (S2C, 1, b"MSG _INBOX.bin.%d 9 %d" % (n, size)),
            (C2S, 1, b"PUB stored.%s _INBOX.stored.%d %d" % (name, n, size)),
            (S2C, 2, b"MSG stored.%s 3 $JS.ACK.BIN.worker.1.%d.%d.1.0 %d" % (name, n, n, size)),
            (C2S, 2, b"PUB $JS.ACK.BIN.worker.1.%d.%d.1.0 %d" % (n, n, size)),
            (C2S, 1, b"PUB $JS.API.CONSUMER.CREATE.BIN.c%d _INBOX.api.%d %d" % (n, n, size)),
            (S2C, 1, b"MSG _INBOX.api.%d 9 %d" % (n, size)),
        ):
            scribe.frame(t, conn, way, b"%s\r\n%s\r\n" % (line, raw))
            t += 1_000
        ack = b'{"stream":"BIN", "seq":%d}' % (n + 1)
        scribe.frame(t, 1, S2C, b"MSG _INBOX.stored.%d 9 %d\r\n%s\r\n" % (n, len(ack), ack))
        block = b"NATS/1.0\r\nNats-Msg-Id: m\r\nRaw: %s\r\n\r\n" % raw[:3].replace(b"\n", b"").replace(
            b"\r", b""
        )
        sizes = b"%d %d" % (len(block), len(block) + size)
        scribe.frame(t + 1_000, 1, C2S, b"HPUB lines.bin %s\r\n%s%s\r\n" % (sizes, block, raw))
    return write(path, scribe.items)
