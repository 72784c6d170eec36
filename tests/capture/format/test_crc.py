"""The checksum of blocks is zlib's, however it is computed."""

from __future__ import annotations

import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.capture.format.blocks import crc32

seeds = st.integers(0, (1 << 32) - 1)


@given(st.binary(max_size=400), seeds)
def test_any_data_on_top_of_any_checksum(data: bytes, before: int) -> None:
    assert crc32(data, before) == zlib.crc32(data, before)


@pytest.mark.parametrize("size", [*range(150), 1 << 14, (1 << 20) + 13])
def test_any_size_at_any_place_in_memory(size: int) -> None:
    data = memoryview(random.Random(size).randbytes(size + 16))
    for start in range(16):
        piece = data[start : start + size]
        assert crc32(piece, size) == zlib.crc32(piece, size)
    assert crc32(bytearray(data)) == crc32(bytes(data), 0)
