"""Hostile blocks against both decoders, in a process of its own: a crash is an exit code, not the end of the
tests.

    python -m tests.capture.fuzz differ SEED COUNT     both decoders on COUNT mutated blocks
    python -m tests.capture.fuzz memory ROUNDS         the growth of memory over many batches, in bytes

Bodies are handed to the decoders as they are, past the checksum: whoever makes a hostile capture makes its
checksums right.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack

from natsproxy.capture.columns import arrow
from natsproxy.capture.columns.table import FIELDS
from natsproxy.capture.format.blocks import Block, BlockKind, Summary
from natsproxy.capture.format.records import Item, encode
from natsproxy.capture.read.segment import BlockRef, Segment, decode_items
from natsproxy.errors import CaptureError
from tests.capture.columns.test_table import QUERIES, generated, others, pure_others, run
from tests.kit.captures import MONO, WALL

SEGMENT = Segment("fuzz.ncap", bytes(16), bytes(16), 0, WALL, MONO, None, None, "", {})
HUGE = [
    *(kind + b"\xff" * width for kind, width in [(b"\xcc", 1), (b"\xcd", 2), (b"\xce", 4), (b"\xcf", 8)]),
    b"\xd0\x80",
    b"\xd1\x80" + bytes(1),
    b"\xd2\x80" + bytes(3),
    b"\xd3\x80" + bytes(7),
    *(kind + b"\x7f\xff\xff\xff" for kind in (b"\xc6", b"\xdb", b"\xdd", b"\xdf", b"\xc9")),
    *(kind + b"\xff\xff\xff\xff" for kind in (b"\xc6", b"\xdb", b"\xdd", b"\xdf", b"\xc9")),
    b"\xcf\x40" + bytes(7),
    b"\xcb\x7f\xf0" + bytes(6),
    b"\xc7\x01\x01\x00",
    b"\xd8" + bytes(17),
    b"\xc1",
    b"\xc0",
    b"\x80",
    b"\x90",
    b"\xa0",
    b"\xc4\x00",
]
"""Values of msgpack at the ends of what it has."""
WORDS = [
    b"99999999999",
    b"999999999",
    b"4294967296",
    b"2147483647",
    b"00000000000",
    b"-1",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\xf0\x90",
    b"\r",
    b"\n",
    b"\r\n",
    b"\r\n\r\n",
    b" ",
    b"\t",
    b"\0",
    b"PUB ",
    b"MSG ",
    b"HMSG ",
    b"NATS/1.0 ",
    b"$JS.ACK.",
    b"_INBOX.",
    b".",
]
"""What frames are made of, in wrong places."""


class Body:
    """What the decoders need of a file: the body of its only block."""

    def __init__(self, body: bytes, summary: Summary) -> None:
        block = Block(100, BlockKind.RECORDS, 0, 0, len(body), 0)
        self._body, self.ref = body, BlockRef(SEGMENT, block, summary)

    def body(self, ref: BlockRef) -> bytes:
        """Return the body."""
        return self._body

    def items(self, ref: BlockRef) -> Iterator[Item]:
        """Yield its items."""
        return decode_items(self._body, ref.summary.mono0, "fuzz.ncap", 100)


def summary(rng: random.Random, length: int) -> Summary:
    """Return a summary; most are true."""
    mono, wall, frames = MONO, WALL, 30
    if rng.random() < 0.1:
        mono = rng.choice([0, -(1 << 62), (1 << 62) - 1, (1 << 64) - 1])
        wall = rng.choice([0, -(1 << 63), (1 << 62) - 1, (1 << 64) - 1])
        frames = rng.choice([-1, 0, 1 << 40])
    return Summary(mono, wall, 0, 0, 1, frames, 0, length, None, None)


def mutated(body: bytes, rng: random.Random) -> bytes:
    """Return a body with something wrong in it."""
    raw = bytearray(body)
    for _ in range(rng.randint(1, 2)):
        at = rng.randrange(len(raw) + 1)
        match rng.randrange(7):
            case 0 if at < len(raw):
                raw[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(raw):
                raw[at] = rng.randrange(256)
            case 2:
                del raw[at : at + rng.choice([1, 2, 9, 60])]
            case 3:
                raw[at:at] = raw[at : at + rng.choice([1, 9, 200])]
            case 4:
                raw[at : at + rng.choice([0, 1, 5])] = rng.choice(HUGE)
            case 5:
                raw[at : at + rng.choice([0, 1, 4])] = rng.choice(WORDS)
            case 6 if rng.random() < 0.3:
                del raw[at:]
    return bytes(raw)


def told(decode: Any, body: Body, names: list[str], payload: int, query: Any) -> Any:
    """Return the batch that a decoder makes, or the text of its error."""
    try:
        made = decode(body, body.ref, names, payload=payload, query=query)
    except CaptureError as error:
        return str(error)
    made.validate(full=True)
    return made


def differ(seed: int, count: int) -> Counter[str]:
    """Give mutated blocks to both decoders; return how many became rows and how many errors."""
    seen: Counter[str] = Counter()
    for number in range(seed, seed + count):
        rng = random.Random(number)
        items = generated(rng.randrange(1_000), rng.choice([0, 1, 4, 8]))
        whole = b"".join(msgpack.packb(encode(item, MONO)) for item in items)
        raw = mutated(whole, rng)
        body: Any = Body(raw, summary(rng, len(raw)))  # as much of a file as decoders need
        names = rng.choice([list(FIELDS), rng.sample(list(FIELDS), rng.randint(0, 5))])
        payload, query = rng.choice([-1, 0, 3, 1 << 40]), rng.choice([None, None, *QUERIES])
        one = told(arrow.batch, body, names, payload, query)
        other = told(arrow.pure_batch, body, names, payload, query)
        same = one == other if isinstance(one, str) or isinstance(other, str) else one.equals(other)
        same &= others(arrow.others, body, body.ref) == others(pure_others, body, body.ref)
        if not same:
            sys.exit(f"mutation {number} is different to the two decoders:\n{one}\n{other}")
        seen["errors" if isinstance(one, str) else "rows" if one.num_rows else "nothing"] += 1
    return seen


def memory(rounds: int) -> int:
    """Return by how many bytes the process grew over so many rounds of batches, after as many to warm up."""
    rng = random.Random(1)
    bodies = []
    for number in range(4):
        whole = b"".join(msgpack.packb(encode(item, MONO)) for item in generated(number, 20))
        way, data, frames = run(b"orders.eu.17", rng)
        ordinary = [0, 1, int(way), 0, frames, 0, 0, 0, 0, "rule", data]
        for raw in (whole, msgpack.packb(ordinary) * 50, whole[:-3], msgpack.packb(ordinary) * 50 + b"\xc1"):
            bodies.append(Body(raw, summary(random.Random(0), len(raw))))
    sizes = []
    for _ in range(2):
        for _ in range(rounds):
            for body in bodies:
                told(arrow.batch, body, list(FIELDS), -1, None)
        sizes.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4096)
    return sizes[1] - sizes[0]


if __name__ == "__main__":
    if sys.argv[1] == "differ":
        print(json.dumps(differ(int(sys.argv[2]), int(sys.argv[3]))))
    else:
        print(memory(int(sys.argv[2])))
