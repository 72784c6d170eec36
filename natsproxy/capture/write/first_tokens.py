"""The first subject tokens of a block, by which a reader skips blocks without opening them.

Runs hold thousands of unparsed frames, so only the compiled code reads them (`_first_tokens.pxd`); the few
other records (a CONNECT, a cut frame) are read here, by the pure parser.  Without compiled code the tokens
are not known, and no block is skipped for its subjects.
"""

from __future__ import annotations

from typing import Final

from natsproxy.capture.format.records import Flags
from natsproxy.errors import ProtocolError
from natsproxy.protocol.subjects import tokens
from natsproxy.wire.ops import Direction
from natsproxy.wire.parse import frames, head

MOST: Final = 64
"""The most tokens that a summary holds, and the most bytes of one token."""


def parsed(data: bytes, direction: int, flags: int) -> set[bytes]:
    """Return the first tokens in the data of a record, as far as it can be read."""
    if flags & ~Flags.REDACTED:
        first = head(data, Direction(direction))
        return {tokens(first.subject)[0]} if first is not None and first.subject else set()
    found = set()
    try:
        for frame in frames(data, Direction(direction)):
            if frame.subject:
                found.add(tokens(frame.subject)[0])
    except ProtocolError:
        return found  # a reader of the block stops at the same place
    return found
