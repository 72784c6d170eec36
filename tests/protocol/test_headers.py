"""Header blocks: parse, the server's look-up, and edits that keep every other byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.protocol import headers

NAMES = st.text("ABab-9", min_size=1, max_size=4).map(str.encode)
VALUES = st.text("xyz 1:", max_size=5).map(lambda text: text.strip().encode())
PAIRS = st.lists(st.tuples(NAMES, VALUES), max_size=5)


def test_multi_value_case_and_order_are_kept() -> None:
    """Names keep their case, repeated ones their order."""
    read = headers.parse(b"NATS/1.0\r\nFoo: a\r\nfoo:b\r\nFoo:\tc \r\n\r\n")
    assert read.pairs == ((b"Foo", b"a"), (b"foo", b"b"), (b"Foo", b"c"))
    assert read.all(b"Foo") == (b"a", b"c")
    assert read.first(b"Foo") == b"a"
    assert read.first(b"FOO") is None
    assert read.odd == ()


@pytest.mark.parametrize(
    ("line", "code", "description", "status"),
    [
        (b"NATS/1.0", b"", b"", None),
        (b"NATS/1.0 503", b"503", b"", 503),
        (b"NATS/1.0 100 Idle Heartbeat", b"100", b"Idle Heartbeat", 100),
        (b"NATS/1.0 408 Request Timeout  ", b"408", b"Request Timeout", 408),
        (b"NATS/1.0  404\tNo Messages", b"404", b"No Messages", 404),
    ],
)
def test_status_line(line: bytes, code: bytes, description: bytes, status: int | None) -> None:
    """The status line gives a code and a description."""
    read = headers.parse(line + b"\r\n\r\n")
    assert (read.code, read.description, read.status, read.odd) == (code, description, status, ())


@pytest.mark.parametrize(
    ("block", "pairs", "odd"),
    [
        (b"NATS/1.0\nA: 1\n\n", ((b"A", b"1"),), "a line that ends in LF alone"),
        (b"NATS/1.0\r\nA: 1\r\n", ((b"A", b"1"),), "no blank line at the end"),
        (b"NATS/1.0\r\nA: 1", ((b"A", b"1"),), "a last line without a line end"),
        (b"A: 1\r\n\r\n", ((b"A", b"1"),), "no NATS/1.0 line"),
        (b"garbage\r\nA: 1\r\n\r\n", ((b"A", b"1"),), "no NATS/1.0 line"),
        (b"NATS/1.0\r\nnope\r\nA: 1\r\n\r\n", ((b"A", b"1"),), "a line without a colon"),
        (b"NATS/1.0\r\nA : 1\r\n\r\n", ((b"A ", b"1"),), "a name with other than printable ASCII"),
        (b"NATS/1.0\r\n: 1\r\n\r\n", ((b"", b"1"),), "a name with other than printable ASCII"),
        (b"NATS/1.0\r\n\r\nrest", (), "bytes after the blank line"),
        (b"NATS/1.0 5x3\r\n\r\n", (), "a status that is not three digits"),
        (b"NATS/1.0503\r\n\r\n", (), "no blank after NATS/1.0"),
        (b"\r\n", (), "no NATS/1.0 line"),
    ],
)
def test_lenient_parsing_lists_the_deviations(
    block: bytes, pairs: tuple[tuple[bytes, bytes], ...], odd: str
) -> None:
    """A block that is not as the grammar has it is still read, and says how."""
    read = headers.parse(block)
    assert read.pairs == pairs
    assert odd in read.odd


@given(st.binary(max_size=60))
def test_parse_takes_any_bytes(block: bytes) -> None:
    """No block of bytes makes `parse` fail, and none that is odd passes for a proper one."""
    read = headers.parse(block)
    assert read.odd or block == b"" or block.startswith(b"NATS/1.0")


def test_no_block_is_no_headers() -> None:
    """A frame without headers has none, and nothing odd."""
    assert headers.parse(b"") == headers.NO_HEADERS


@given(PAIRS)
def test_build_then_parse(pairs: list[tuple[bytes, bytes]]) -> None:
    """What was built reads back."""
    read = headers.parse(headers.build(pairs, code=b"409", description=b"Consumer Deleted"))
    assert read == headers.Headers(b"409", b"Consumer Deleted", tuple(pairs))


@pytest.mark.parametrize(
    "pair", [(b"", b""), (b"a b", b""), (b"a:b", b""), (b"\xc3", b""), (b"a", b"x\r\ny: 1")]
)
def test_build_refuses_bytes_that_would_break_the_block(pair: tuple[bytes, bytes]) -> None:
    """No name or value can smuggle a line in."""
    with pytest.raises(ValueError, match="header"):
        headers.build([pair])
    with pytest.raises(ValueError, match="line end"):
        headers.build(description=b"x\r\nA: 1")


LOOKUP = b"NATS/1.0\r\nNats-Msg-Id:   one\r\nNats-Msg-Id: two\r\nTab:\tx\r\nEmpty:\r\n\r\n"


@pytest.mark.parametrize(
    ("name", "value"),
    [(b"Nats-Msg-Id", b"one"), (b"nats-msg-id", None), (b"Tab", b"\tx"), (b"Empty", b""), (b"Msg-Id", None)],
)
def test_get_finds_the_value_that_the_server_finds(name: bytes, value: bytes | None) -> None:
    """Exact bytes, first occurrence, spaces skipped and TABs not."""
    assert headers.get(LOOKUP, name) == value


def test_get_does_not_see_lf_only_lines() -> None:
    """The server finds no header in a block of LF-only lines."""
    assert headers.get(b"NATS/1.0\nA: 1\n\n", b"A") is None


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (b"", b"NATS/1.0\r\nB: 2\r\n\r\n"),
        (b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\nB: 2\r\n\r\n"),
        (b"NATS/1.0 503\r\nA:  1 \r\n\r\n", b"NATS/1.0 503\r\nA:  1 \r\nB: 2\r\n\r\n"),
        (b"NATS/1.0\r\nB:1\r\nA:  1\r\nB: 9\r\n\r\n", b"NATS/1.0\r\nB: 2\r\nA:  1\r\n\r\n"),
        (b"NATS/1.0\nA: 1\n\n", b"NATS/1.0\nA: 1\nB: 2\r\n\n"),
        (b"NATS/1.0\r\nA: 1", b"NATS/1.0\r\nA: 1\r\nB: 2\r\n\r\n"),
        (b"NATS/1.0\r\nb: 1\r\n\r\n", b"NATS/1.0\r\nb: 1\r\nB: 2\r\n\r\n"),
    ],
)
def test_set_header(block: bytes, expected: bytes) -> None:
    """Setting a header changes its own lines and no other byte."""
    assert headers.set_header(block, b"B", b"2") == expected
    assert headers.parse(expected).first(b"B") == b"2"


def removed(block: bytes, name: bytes) -> bytes:
    editor = headers.HeaderEditor(block, frozenset({name}))
    while not editor.read_on():
        pass
    editor.remove(name)
    while not editor.write_on():
        pass
    return editor.block()


def test_removing_a_header() -> None:
    """Removing a header takes all its lines and no other byte."""
    block = b"NATS/1.0 100 x\r\nA: 1\r\nB:  A: 3\r\nA: 2\r\n\r\n"
    assert removed(block, b"A") == b"NATS/1.0 100 x\r\nB:  A: 3\r\n\r\n"
    assert removed(block, b"C") == block


@given(PAIRS, NAMES, VALUES)
def test_set_then_remove(pairs: list[tuple[bytes, bytes]], name: bytes, value: bytes) -> None:
    """After a set there is one value, after a remove none, and the others are as before."""
    block = headers.build(pairs)
    changed = headers.set_header(block, name, value)
    others = tuple(pair for pair in pairs if pair[0] != name)
    assert headers.get(changed, name) == value
    assert headers.parse(changed).all(name) == (value,)
    assert headers.parse(removed(changed, name)) == headers.Headers(b"", b"", others)
