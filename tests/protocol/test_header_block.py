"""A block that is read in parts gives the answers of one that is parsed at once."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.protocol import headers
from natsproxy.protocol.headers import HeaderBlock

PIECES = [b"NATS/1.0", b" 503", b"\r\n", b"\n", b"\r", b"A:", b"A: x", b"B:y", b"A", b":", b" ", b"\xff"]
BLOCKS = st.builds(
    bytes.__add__, st.sampled_from([b"", b"NATS/1.0\r\n"]), st.lists(st.sampled_from(PIECES)).map(b"".join)
)


@given(BLOCKS, st.sampled_from([b"A", b"B"]), st.sampled_from([None, "x", "*", "y*", ""]), st.integers(1, 4))
def test_equals_the_whole_parse(block: bytes, name: bytes, glob: str | None, part: int) -> None:
    found, read = headers.parse(block), HeaderBlock(block, {b"A", b"B"})
    expected = any(
        glob is None or fnmatchcase(value.decode("utf-8", "replace"), glob) for value in found.all(name)
    )
    while not read.read_on(part):
        pass
    while not read.look_on(name, glob, part):
        pass
    assert read.has(name, glob) is expected
    assert read.status == found.status


def test_a_part_is_no_more_than_was_asked_for() -> None:
    block = HeaderBlock(b"NATS/1.0\r\n" + b"A: %d\r\n" * 1000 + b"\r\n", {b"A"})
    assert [block.read_on(100) for _ in range(11)] == [False] * 10 + [True]
    assert [block.look_on(b"A", "no", 100) for _ in range(10)] == [False] * 9 + [True]
    assert block.look_on(b"A", "no", 100), "an answer is kept"


@pytest.mark.parametrize("name", [b"A", b"B", b"N"])
@given(BLOCKS)
def test_edits_touch_the_lines_of_one_name_only(name: bytes, block: bytes) -> None:
    """Line by line, as a reader does who stops at the first line without anything but CR."""
    lines = block.split(b"\n")
    first = 1 if block.startswith(b"NATS/1.0") and len(lines) > 1 else 0
    blank = next((at for at in range(first, len(lines)) if not lines[at].strip(b"\r")), len(lines))
    places = [at for at in range(first, blank) if lines[at].startswith(name + b":")]
    ended = [line + b"\n" for line in lines[:-1]] + [lines[-1]]
    kept = b"".join(line for at, line in enumerate(ended) if at not in places)
    assert headers.remove_header(block, name) == kept
    if places:
        put = [name + b": v\r\n" if at == places[0] else line for at, line in enumerate(ended)]
        kept = b"".join(line for at, line in enumerate(put) if at not in places[1:])
        assert headers.set_header(block, name, b"v") == kept


def test_many_lines_of_a_name_are_one_pass() -> None:
    """With a copy of the block for each line this would take minutes."""
    block = b"NATS/1.0\r\n" + b"A: x\r\n" * 150_000 + b"B: y\r\n\r\n"
    assert headers.remove_header(block, b"A") == b"NATS/1.0\r\nB: y\r\n\r\n"
    assert headers.set_header(block, b"A", b"v") == b"NATS/1.0\r\nA: v\r\nB: y\r\n\r\n"
