"""The first subject tokens of a block, by which a reader passes over blocks that it need not open.

Runs hold thousands of frames that nobody else looks at, so only the compiled code looks into them; the few
records that are something else (a CONNECT, a cut frame) are read by the pure parser.  Without compiled code
the tokens are not known, and no block is passed over for its subjects.
"""

from __future__ import annotations

import os
from typing import Any, Final

from natsproxy.capture.format.records import Flags, Frames
from natsproxy.errors import ProtocolError
from natsproxy.protocol.subjects import tokens
from natsproxy.wire.ops import S2C
from natsproxy.wire.parse import frames, head

MOST: Final = 64
"""The most tokens that a summary holds, and the most bytes of one token."""

_native: Any = None
if os.environ.get("NATSPROXY_PURE", "") in ("", "0"):
    try:
        from natsproxy.capture.write import _tokens as _native  # type: ignore[attr-defined, no-redef, unused-ignore]
    except ImportError:  # not built: no tokens
        _native = None


class FirstTokens:
    """The first tokens of the subjects of one block's frames."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: set[bytes] | None = None if _native is None else set()

    def add(self, item: Frames) -> None:
        """Take the frames of a record."""
        found = self._found
        if found is None:
            return
        whole = not item.flags & ~Flags.REDACTED
        if not (whole and _native.gather(item.data, item.direction == S2C, found, MOST)):
            found.update(_parsed(item, whole))
        if len(found) > MOST or any(len(token) > MOST for token in found):
            self._found = None

    def summary(self) -> list[bytes] | None:
        """Return them sorted; None where they are too many, too long, or not known."""
        return None if self._found is None else sorted(self._found)


def _parsed(item: Frames, whole: bool) -> set[bytes]:
    """Return the first tokens of a record by the pure parser, as far as it can be read."""
    data = bytes(item.data)
    if not whole:
        first = head(data, item.direction)
        return {tokens(first.subject)[0]} if first is not None and first.subject else set()
    found = set()
    try:
        for frame in frames(data, item.direction):
            if frame.subject:
                found.add(tokens(frame.subject)[0])
    except ProtocolError:
        return found  # a reader of the block stops at the same place
    return found
