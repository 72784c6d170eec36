"""The frame scanner: one direction's bytes in, segments out, never a byte lost or seen twice.

There are two scanners with the same interface and results: `_scanner` (compiled from Cython) and
`_scanner_py` (pure Python).  The compiled one is used where it was built; `NATSPROXY_PURE=1` or a machine
without a C compiler chooses the other.  Tests compare the two.

Use::

    scanner.feed(data)
    while (segment := scanner.next()) is not None:
        ...  # may change scanner.interest, .watch_sids, .hold: in force from the next segment

Rules of the scanner
1. Segments are contiguous: each starts where the last one ended.  Bytes that belong to no segment yet (an
   unfinished control line, a frame being held) are kept and come first in the next `feed`.
2. A frame is *wanted* by `interest` (by op and subject), by `watch_ops` (an op bitmask, at `Need.LINE`), by
   `watch_sids` (MSG, HMSG) or by `watch_subjects` (the subject, byte for byte).  Frames that are not wanted
   are joined into runs; a run holds whole frames only.
3. An unfinished frame whose control line is complete is held until it is whole if its wire size is at most
   `hold`; a wanted one until its need is there (line, header block, all) as long as that is at most
   `buffer_limit`.  Otherwise it is returned as a `Frame` with `missing > 0` (wanted or not), and the rest as
   `Body` segments of one byte or more.  A frame that is larger than `max_payload` (0: no limit) is not held,
   and a wanted one is returned without its payload: its receiver acts on its control line alone.
4. The limits are the server's: `line_limit` counts the argument part of c2s control lines as
   nats-server does (after op and leading blanks, before CRLF; on unfinished lines too); s2c lines end at
   1 MiB.  Numbers have one to nine ASCII digits, in both directions.
5. The grammar is nats-server's, c2s and s2c from one table (`wire/ops.py`): ops in any letter case, any run
   of blanks, LF alone ends a control line, CRLF alone ends a payload.  A wrong byte in an op is found as it
   arrives, not at the end of the line.
6. After `Malformed` the scanner is dead: `next()` returns None, `feed` ignores its argument.
7. `more`, just after a whole message `Frame`, returns the frames that follow at once and would be returned
   alone as well, as far as they are whole and ordinary: many for the price of one call.  It may return fewer
   than there are.  They are wanted by what was in force at the call.
8. `subscriptions`, just after a SUB or an UNSUB, does the same for those that follow, without a max and not
   on a subject of the system: for a client that makes a hundred thousand.
9. c2s: an unknown op is `Malformed`.  s2c: from an unknown op on, everything is `Opaque`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, MutableMapping
from typing import TYPE_CHECKING, Protocol

from natsproxy.wire.awaited import Meter
from natsproxy.wire.frames import Frame, Need, Run, Segment
from natsproxy.wire.interest import Clause
from natsproxy.wire.ops import Direction


class InterestLike(Protocol):
    """Compiled clauses (see `wire/interest.py`).  Immutable, shared."""

    def __init__(self, clauses: tuple[Clause, ...] = ()) -> None: ...

    @property
    def clauses(self) -> tuple[Clause, ...]:
        """The clauses it was compiled from."""
        ...

    def wants(self, op: int) -> bool:
        """Tell whether any clause wants any frame of `op`."""
        ...

    def need(self, op: int, subject: bytes = b"") -> Need:
        """Return the part of a frame of `op` on `subject` that is wanted."""
        ...


class ScannerLike(Protocol):
    """The scanner of one direction of one connection; sizes in bytes.

    interest, watch_ops, watch_sids, watch_subjects, hold, buffer_limit, most: may be changed between two
    calls of `next()`; lower limits of bytes are in force from the next `feed`.
    counts: frames so far, by op (a list with an entry for each op), each from its whole control line on.
    tallies: the same by sid (s2c), for the sids that are in it; 503s without a reply do not count.
    awaited: the reply subjects of requests without an answer (`wire/awaited.py`), one table that the scanners
    of both directions share; None: they are not tracked.  meter: is told of requests and of their answers, by
    both; None: nobody is.
    most: the most frames of one run, or of one call of `more`.
    odd: True after a frame that a recorder must look at for secrets: on a subject of the system (`$SYS.`), or
    a PING, PONG or +OK with bytes behind it.
    ordinal: the number of frames returned so far, runs included: the ordinal of the next frame.
    offset: the stream offset of the first byte that no segment has covered yet.
    """

    interest: InterestLike
    watch_ops: int
    watch_sids: MutableMapping[bytes, int]
    watch_subjects: MutableMapping[bytes, int]
    hold: int
    buffer_limit: int
    max_payload: int
    counts: list[int]
    tallies: MutableMapping[bytes, int]
    awaited: MutableMapping[bytes, int] | None
    meter: Meter | None
    most: int
    odd: bool
    ordinal: int

    def __init__(
        self,
        direction: Direction,
        interest: InterestLike,
        *,
        line_limit: int = 4096,
        hold: int = 65536,
        buffer_limit: int = 8 << 20,
    ) -> None: ...

    def feed(self, data: bytes) -> None:
        """Add bytes as they were received."""
        ...

    def next(self) -> Segment | None:
        """Return the next segment, or None when more bytes are needed."""
        ...

    def more(self, most: int) -> list[Frame]:
        """Return the whole message frames that follow at once and are wanted, `most` at most."""
        ...

    def subscriptions(self, most: int) -> tuple[Run, list[tuple[bytes, bytes, bytes]]] | None:
        """Return the plain SUBs and UNSUBs that follow at once, `most` at most, whoever wants them.

        One by one they are sid, subject (`b""` for an UNSUB) and queue.  None where there is none.
        """
        ...

    def untake(self, frames: list[Frame]) -> None:
        """Take back the last frames of `more`, which nobody has handled.

        Much may change before the next `next`, so it asks again for each frame whether it is wanted.
        """
        ...

    @property
    def idle(self) -> bool:
        """True if it is between two frames and holds no bytes."""
        ...

    @property
    def lacking(self) -> int:
        """The bytes that an unfinished frame still lacks, its CRLF included; 0 if that is not known."""
        ...

    @property
    def line_limit(self) -> int:
        """The longest control line allowed, in bytes."""
        ...

    def skip(self, frames: int, size: int, ops: Iterable[tuple[int, int]]) -> None:
        """Count frames that bypassed it while it was idle: their number, bytes, and how many of each op."""
        ...

    def skip_into(self, missing: int) -> None:
        """Continue in the payload of the last frame that bypassed it: `missing` bytes follow as `Body`."""
        ...

    @property
    def offset(self) -> int:
        """The stream offset of the first byte that no segment has covered yet."""
        ...

    @property
    def held(self) -> int:
        """The number of bytes held for later."""
        ...

    @property
    def mid_frame(self) -> bool:
        """True after a `Frame` whose `Body` is not complete: nothing may be injected here."""
        ...

    def rest(self) -> bytes:
        """Return and drop the held bytes, an incomplete frame: for EOF."""
        ...


COMPILED = False
"""True where the compiled twin is in use."""

if not TYPE_CHECKING and os.environ.get("NATSPROXY_PURE", "") in ("", "0"):
    try:
        from natsproxy.wire._interest import Interest
        from natsproxy.wire._scanner import Scanner

        COMPILED = True
    except ImportError:  # not built: use the pure twin
        from natsproxy.wire._interest_py import Interest
        from natsproxy.wire._scanner_py import Scanner
else:
    from natsproxy.wire._interest_py import Interest
    from natsproxy.wire._scanner_py import Scanner


def byte_table() -> MutableMapping[bytes, int]:
    """Return an empty table for a scanner's `watch_sids`, `watch_subjects`, `tallies` or `awaited`.

    The compiled scanner takes no dict there: it reads the table without the interpreter lock.
    """
    return Scanner.Table()


__all__ = ["COMPILED", "Interest", "InterestLike", "Scanner", "ScannerLike", "byte_table"]
