"""The header `traceparent`, which carries the trace of a message: W3C Trace Context, level 1.

    traceparent: 00-<trace id, 32 hex digits>-<span id of the sender, 16>-<flags, 2>

Libraries set it under this name in small letters; NATS compares header names byte for byte, and some write
them capitalized, so any letter case is read.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from natsproxy.protocol import headers

NAME: Final = b"traceparent"
TRACE_BYTES: Final = 16
SPAN_BYTES: Final = 8
# A higher version may have more behind the flags; "ff" is no version.
_VALUE: Final = re.compile(rb"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?", re.DOTALL)


class SpanContext(NamedTuple):
    """The identity of a span.  trace: 16 bytes.  span: 8 bytes."""

    trace: bytes
    span: bytes

    @property
    def value(self) -> bytes:
        """The header's value for messages that this span sends; its trace is sampled."""
        return b"00-%s-%s-01" % (self.trace.hex().encode(), self.span.hex().encode())


def parse(value: bytes) -> SpanContext | None:
    """Return the context in a value of the header; None for an invalid one, which the standard ignores."""
    found = _VALUE.fullmatch(value)
    if found is None or (found[4] is not None and found[1] == b"00"):
        return None
    context = SpanContext(bytes.fromhex(found[2].decode()), bytes.fromhex(found[3].decode()))
    return context if any(context.trace) and any(context.span) else None


def find(block: bytes) -> bytes | None:
    """Return the value of the header in a header block, None without one."""
    if NAME not in block.lower():  # as in most blocks
        return None
    return next((value for name, value in headers.parse(block).pairs if name.lower() == NAME), None)


def context_of(block: bytes) -> SpanContext | None:
    """Return the context that a header block carries, None without a valid one."""
    value = find(block) if block else None
    return None if value is None else parse(value)
