"""The fuzz target runs: on its first corpus, and on streams with something wrong in them."""

from __future__ import annotations

import random

import pytest

from natsproxy.wire.scanner import COMPILED

if not COMPILED:
    pytest.skip("there is one reader only", allow_module_level=True)

from tests.fuzz.choice import RECORDING
from tests.fuzz.seeds import seeds
from tests.fuzz.wire_target import new_plane, one_input


def test_the_readers_agree_on_the_first_corpus() -> None:
    plane = new_plane()
    for data in seeds():
        one_input(plane, data)


def test_the_plane_records() -> None:
    plane = new_plane()
    one_input(plane, bytes([RECORDING, 0]) + b"PUB b 1\r\nx\r\n")
    assert plane.frames == 1


def test_headers_looked_at_before_a_wrong_end() -> None:
    """The plane looks at the headers of a frame that streams; a reader that holds the frame never does."""
    line = b"HMSG FOO 503.BAZZZZZZZZZZZZZZZ6 34 45\r\n"
    headers = b"NATS/1.0\r\nFoodGroup:" + bytes(14) + b"u\0\0 vegetable\r\n\r\n"
    one_input(new_plane(), b"\x0f\x02\x00\x07\x00\x45" + line + headers + b"Hello World\r\nHMSG FO\xc6")


def test_the_readers_agree_on_mutations() -> None:
    plane, rng, corpus = new_plane(), random.Random(1), list(seeds())
    for _ in range(1_000):
        data = bytearray(rng.choice(corpus) + rng.choice(corpus)[2:])
        data[1] = rng.randrange(9)
        for _ in range(rng.randrange(3)):
            at = rng.randrange(2, len(data))
            data[at : at + rng.randrange(3)] = rng.choices(b"\r\n \t019PUBMSGH.$x", k=rng.randrange(3))
        one_input(plane, bytes(data))
