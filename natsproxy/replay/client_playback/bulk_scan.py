"""Bulk scan: count received messages without looking at each one.

The playback of clients waits for a count of messages on each subscription, and for the few messages that name
something: answers and requests (by their inboxes), deliveries of JetStream (by their ack subjects), statuses.
Statuses carry headers and are never counted.  The others carry a reply subject or arrive on one.  So the
first tokens of all recorded reply subjects are searched for in the raw bytes: a run of plain messages in
which none occurs, be it in a payload, is counted as a whole.

One subscription of a connection is counted that way, the one that gets most.  Messages of the others are
looked at one by one, so that each count is exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from natsproxy.errors import ProtocolError
from natsproxy.wire import parse
from natsproxy.wire.frames import Frame, Malformed, Need, Run
from natsproxy.wire.interest import Clause
from natsproxy.wire.ops import ALL_OPS, S2C, Op
from natsproxy.wire.parse import EVERYTHING
from natsproxy.wire.scanner import Interest, Scanner

SidCount = tuple[bytes, int]
"""A subscription (sid) and a number of messages."""
_MOST: Final = 16  # tokens: each one is a search of its own
_WATCHED: Final = 10_000  # subscriptions looked at one by one
_BUSY: Final = 256  # messages after which another subscription is counted in bulk
_LINE: Final = rb"PUB[ \t]+%b([^ \t\r\n]+)[ \t]+(\d{1,9})[ \t]*\r\n"
PLAIN: Final = re.compile(_LINE % b"")
"""The control line of a publish without a reply: its groups are subject and size."""
_UNLIMITED: Final = 1 << 30  # bytes: more than any frame has
_NEVER: Final = re.compile(rb"(?!)")


class BulkSearch:
    """The search for the first tokens of reply subjects, `_INBOX.` and `$JS.` among them.

    interest: for a scanner of s2c, the frames that must not be counted as a whole.  plain: as `PLAIN`, for
    publishes on subjects without such a token.
    """

    def __init__(self) -> None:
        self._tokens: set[bytes] = {b"$JS.", b"_INBOX."}
        self._make()

    def _make(self) -> None:
        patterns = tuple(token + b">" if token.endswith(b".") else token for token in self._tokens)
        self.interest = Interest(
            (
                Clause(ALL_OPS & ~Op.MSG.bit, Need.PAYLOAD),
                Clause(Op.MSG.bit, Need.PAYLOAD, patterns),
            )
        )
        named = b"|".join(map(re.escape, self._tokens))
        self.plain = re.compile(_LINE % (b"(?!%b)" % named))

    def learn(self, reply: bytes) -> None:
        """Note a recorded reply subject."""
        head, dot, _ = reply.partition(b".")
        token = head + dot
        if token in self._tokens or len(self._tokens) > _MOST:
            return
        self._tokens.add(token)
        # Too many tokens, or no fixed bytes to search for: look at every message.
        if len(self._tokens) > _MOST or head in (b"", b"*", b">"):
            self.interest, self.plain = EVERYTHING, _NEVER
            self._tokens.update(b"%d" % n for n in range(_MOST))
        else:
            self._make()

    def names(self, subject: bytes) -> bool:
        """Return whether messages on a subject are looked at one by one anyway."""
        return any(subject.startswith(token) for token in self._tokens)

    def within(self, buffer: bytes, start: int, end: int) -> bool:
        """Return whether one of the tokens occurs in a range of bytes."""
        return any(buffer.find(token, start, end) >= 0 for token in self._tokens)


class BulkScanner:
    """Scans the messages that one connection receives, recorded or live."""

    def __init__(self, search: BulkSearch) -> None:
        self._search = search
        self._scanner = Scanner(S2C, search.interest, hold=_UNLIMITED, buffer_limit=_UNLIMITED)
        self._busy: bytes | None = None
        self._one_by_one = False
        self._counts: dict[bytes, int] = {}

    @property
    def held(self) -> int:
        """The bytes of an unfinished frame that are kept."""
        return self._scanner.held

    def subscribed(self, sid: bytes, subject: bytes) -> None:
        """Note a subscription before its first message."""
        watched = self._scanner.watch_sids
        if self._search.names(subject) or sid in watched:
            return
        if self._busy is None or sid == self._busy:
            self._busy = sid
        elif len(watched) < _WATCHED:
            watched[sid] = Need.PAYLOAD
        else:
            self._one_by_one = True

    def scan(self, data: bytes) -> Iterator[Frame | SidCount]:
        """Yield frames, and counts of messages that name nothing, from bytes of the server.

        Raises ProtocolError for bytes that are not NATS.
        """
        scanner, search = self._scanner, self._search
        scanner.interest = EVERYTHING if self._one_by_one else search.interest
        scanner.feed(data)
        while (segment := scanner.next()) is not None:
            if isinstance(segment, Frame):
                yield segment
                if segment.sid in scanner.watch_sids:
                    self._compare(segment.sid)
            elif isinstance(segment, Run):
                buffer, start, end, frames, _ = segment
                if self._busy is None or search.within(buffer, start, end):
                    yield from parse.frames(buffer[start:end], S2C)
                else:
                    yield self._busy, frames
            else:
                reason = segment.reason if isinstance(segment, Malformed) else "an operation unknown to NATS"
                raise ProtocolError(S2C.label, scanner.offset, reason)

    def _compare(self, sid: bytes) -> None:
        """Count a message that was looked at; a busier subscription becomes the one counted in bulk."""
        count = self._counts[sid] = self._counts.get(sid, 0) + 1
        if count >= _BUSY and self._busy is not None:
            self._counts.clear()
            del self._scanner.watch_sids[sid]
            self._scanner.watch_sids[self._busy] = Need.PAYLOAD
            self._busy = sid
