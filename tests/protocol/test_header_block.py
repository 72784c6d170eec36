"""A block that is read in parts gives the answers of one that is parsed at once."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from natsproxy.protocol import headers
from natsproxy.protocol.headers import HeaderBlock, HeaderEditor

PIECES = [b"NATS/1.0", b" 503", b"\r\n", b"\n", b"\r", b"A:", b"A: x", b"B:y", b"A", b":", b" ", b"\xff"]
BLOCKS = st.builds(
    bytes.__add__, st.sampled_from([b"", b"NATS/1.0\r\n"]), st.lists(st.sampled_from(PIECES)).map(b"".join)
)


@given(BLOCKS, st.sampled_from([b"A", b"B"]), st.sampled_from([None, "x", "*", "y*", ""]), st.integers(1, 4))
def test_equals_the_whole_parse(block: bytes, name: bytes, glob: str | None, part: int) -> None:
    """And what stands behind the blank line counts only against the one who sends it."""
    found, read = headers.parse(block), HeaderBlock(block, {b"A", b"B"})
    lines = block.split(b"\n")
    lines = [line.removesuffix(b"\r") for line in lines[:-1]] + [lines[-1]]
    lines = lines[1:] if block.startswith(b"NATS/1.0") else lines
    values = [line[2:].strip(b" \t") for line in lines if line.startswith(name + b":")]
    fits = [glob is None or fnmatchcase(value.decode("utf-8", "replace"), glob) for value in values]
    while not read.read_on(part):
        pass
    for every in (False, True):
        while not read.look_on(name, glob, part, every=every):
            pass
    assert read.has(name, glob) is any(fits)
    assert read.all_match(name, glob) is (bool(found.all(name)) and all(fits))
    assert headers.get(block, name) is None or read.has(name, None)
    assert read.status == found.status


def test_a_part_is_no_more_than_was_asked_for() -> None:
    block = HeaderBlock(b"NATS/1.0\r\n" + b"A: %d\r\n" * 1000 + b"\r\n", {b"A"})
    assert [block.read_on(100) for _ in range(11)] == [False] * 10 + [True]
    assert [block.look_on(b"A", "no", 100) for _ in range(10)] == [False] * 9 + [True]
    assert block.look_on(b"A", "no", 100), "an answer is kept"


@pytest.mark.parametrize("name", [b"A", b"B", b"N"])
@given(BLOCKS)
def test_edits_touch_the_lines_of_one_name_only(name: bytes, block: bytes) -> None:
    """Line by line, as a reader does who stops at the first line without anything but CR.

    What stands behind that is cut off where the name is among it.
    """
    lines = block.split(b"\n")
    first = 1 if block.startswith(b"NATS/1.0") and len(lines) > 1 else 0
    blank = next((at for at in range(first, len(lines)) if not lines[at].strip(b"\r")), len(lines))
    places = [at for at in range(first, blank) if lines[at].startswith(name + b":")]
    ended = [line + b"\n" for line in lines[:-1]] + [lines[-1]]
    if any(line.startswith(name + b":") for line in lines[blank + 1 :]):
        ended = ended[: blank + 1]
    kept = b"".join(line for at, line in enumerate(ended) if at not in places)
    assert removed(block, name) == kept
    assert headers.get(kept, name) is None
    if places:
        put = [name + b": v\r\n" if at == places[0] else line for at, line in enumerate(ended)]
        kept = b"".join(line for at, line in enumerate(put) if at not in places[1:])
        assert headers.set_header(block, name, b"v") == kept


def edited(block: bytes, *changes: tuple[bytes, bytes | None], lines: int = 1) -> tuple[bytes, list[bool]]:
    """Return a block after changes (name, value; None: remove), and which of them had an effect."""
    editor = HeaderEditor(block, frozenset({name for name, _ in changes} | {b"B", b"Other"}))
    while not editor.read_on():
        pass
    effects = [
        editor.remove(name) if value is None else editor.set(name, headers.header_line(name, value))
        for name, value in changes
    ]
    while not editor.write_on(lines):
        pass
    return editor.block(), effects


def removed(block: bytes, name: bytes) -> bytes:
    return edited(block, (name, None))[0]


CHANGES = st.tuples(st.sampled_from([b"A", b"B", b"N", b""]), st.sampled_from([None, b"x", b"v"])).filter(
    lambda change: change[0] != b"" or change[1] is None
)


@given(BLOCKS.map(b"NATS/1.0\r\n".__add__), st.lists(CHANGES, min_size=1), st.integers(1, 4))
@example(b"NATS/1.0\r\nA: x", [(b"B", b"x"), (b"A", b"x")], 1)
def test_changes_made_together_equal_those_made_one_by_one(
    block: bytes, changes: list[tuple[bytes, bytes | None]], lines: int
) -> None:
    expected, effects = block, []
    for change in changes:
        before, (expected, effect) = expected, edited(expected, change)
        effects += effect
        assert effect == [expected != before]
    assert edited(block, *changes, lines=lines) == (expected, effects)


@given(BLOCKS, st.sampled_from([b"A", b"B"]))
def test_a_header_that_is_set_is_read_back(block: bytes, name: bytes) -> None:
    found = headers.parse(headers.set_header(block, name, b"v")).all(name)
    assert found[0] == b"v"


@pytest.mark.parametrize("lines", [1, 500, 5000])
@pytest.mark.parametrize("end", [b"", b"\r\n", b"\n", b"\r\r\nA: 5\r\n", b"A", b"A:1"])
def test_blocks_of_several_parts(lines: int, end: bytes) -> None:
    """The end of a part falls on any byte of a line, and is not the end of the headers."""
    for pad in range(8):
        many = (b"Other: " + b"y" * pad + b"\r\n") * lines
        block = b"NATS/1.0\r\n" + b"A: 1\r\n" + many + b"A: 2\r\nB: 3\r\n" + end
        kept = block.replace(b"A: 1\r\n", b"").replace(b"A: 2\r\n", b"").removesuffix(b"A: 5\r\n")
        assert removed(block, b"A") == (kept if end != b"A:1" else kept[:-3])
        assert removed(block, b"Other") == block.replace(many, b"")


def test_a_part_of_the_reading_and_writing_is_small() -> None:
    block = b"NATS/1.0\r\n" + b"A:1\r\nB:2\r\n" * 100_000 + b"\r\n"
    editor = HeaderEditor(block, frozenset({b"A"}))
    calls = 1
    while not editor.read_on():
        calls += 1
    assert calls > 200
    assert editor.remove(b"A")
    assert [editor.write_on(10_000) for _ in range(10)] == [False] * 9 + [True]
    assert editor.block() == b"NATS/1.0\r\n" + b"B:2\r\n" * 100_000 + b"\r\n"


def test_many_lines_of_a_name_are_one_pass() -> None:
    """With a copy of the block for each line this would take minutes."""
    block = b"NATS/1.0\r\n" + b"A: x\r\n" * 150_000 + b"B: y\r\n\r\n"
    assert removed(block, b"A") == b"NATS/1.0\r\nB: y\r\n\r\n"
    assert headers.set_header(block, b"A", b"v") == b"NATS/1.0\r\nA: v\r\nB: y\r\n\r\n"
