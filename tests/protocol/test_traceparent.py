"""The header that carries a trace: the standard's own examples, and what it calls invalid."""

from __future__ import annotations

import pytest

from natsproxy.protocol import headers
from natsproxy.protocol.traceparent import SpanContext, context_of, parse

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CONTEXT = SpanContext(bytes.fromhex(TRACE), bytes.fromhex(SPAN))


@pytest.mark.parametrize(
    "value",
    [f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00", f"cc-{TRACE}-{SPAN}-01-more", CONTEXT.value.decode()],
)
def test_a_context(value: str) -> None:
    assert parse(value.encode()) == CONTEXT


@pytest.mark.parametrize(
    "value",
    [
        "",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
    ],
)
def test_no_context(value: str) -> None:
    assert parse(value.encode()) is None


@pytest.mark.parametrize("name", ["traceparent", "Traceparent", "TRACEPARENT"])
def test_a_header_block_in_any_letter_case(name: str) -> None:
    block = headers.build([(b"X-Other", b"1"), (name.encode(), CONTEXT.value)])
    assert context_of(block) == CONTEXT


def test_a_header_block_without_it() -> None:
    """Not in a value, and not as a part of another name."""
    block = headers.build([(b"X-Said", b"traceparent"), (b"X-traceparent", CONTEXT.value)])
    assert (context_of(block), context_of(b"")) == (None, None)
