"""The turns of recorded polls: which of them may be answered to a client now.

Polls may come more or less often than recorded, or at other times.  A client's own next one comes first, once
the client has made all changes before it; what others do meanwhile takes nothing from it.  But:

- A read of a subject that shows the last write there is right, whatever else is left to do.
- A client that asks again without a change of its own waits for those of the others: else the answer would
  come from the future.
- Reads for updates, as of compare-and-set loops, keep their order, whatever else happens: each leads to the
  update that was recorded for it, which wins or loses as it did then, even where several tasks of one client
  do that side by side.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from typing import Final

from natsproxy.protocol import headers
from natsproxy.replay.conversation.exchanges import RecordedExchange, key_of
from natsproxy.replay.conversation.frame_kind import FrameKind
from natsproxy.replay.conversation.identifier_map import IdentifierMap, masked
from natsproxy.replay.server_playback.client import Client
from natsproxy.replay.server_playback.progress import ConnectionProgress, Progress
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Op

_EXPECTED: Final = b"Nats-Expected-Last-Subject-Sequence"
_LAST: Final = 16  # writes on a subject and its like that are looked at


class Turns:
    """Tells the turns of polls.  clients: the numbers of the live clients."""

    def __init__(self, progress: Progress, clients: Collection[int]) -> None:
        self._progress = progress
        self._clients = clients

    def is_due(self, poll: RecordedExchange) -> bool:
        """Return whether the answer to a poll is right now."""
        if poll.kind is FrameKind.READ:
            if self._is_for_an_update(poll):
                return True
            shown = self._progress.writes.shows_last(poll)
            if shown is not None:
                return shown
            change = self._progress.next_change(self._clients)
            return change is None or poll.seq < change
        return self._is_next(poll)

    def is_own_next(self, client: Client, poll: RecordedExchange) -> bool:
        """Return whether a client's next poll follows a change of its own, and all of those before it."""
        return client.has_acted_since(poll.key) and self._is_next(poll)

    def _is_next(self, poll: RecordedExchange) -> bool:
        """Return whether the changes before a poll, of its own connection, were made."""
        change = self._progress.connections[poll.conn].next_change()
        return change is None or poll.seq < change.seq

    def due(
        self, playing: ConnectionProgress, seen: Frame, kind: FrameKind, identifiers: IdentifierMap
    ) -> Iterator[RecordedExchange]:
        """Yield the polls that may take the place of a client's next one.

        A pull that asked for another number of messages may be due where the one that is equal is not, and of
        reads that are equal a later one.
        """
        if kind is not FrameKind.READ:
            yield from itertools.takewhile(self._is_next, playing.unused.by_key.get(key_of(seen), ()))
            return
        yield from filter(self.is_due, playing.unused.equal(seen, identifiers))

    def _is_for_an_update(self, read: RecordedExchange) -> bool:
        """Return whether its client later updates what it reads, with no other write in between."""
        if not read.reads:
            return False
        writes = self._progress.connections[read.conn].unused.by_key.get((Op.PUB, masked(read.reads)), ())
        return any(
            one.seq > read.seq and one.frame.subject == read.reads and _is_update(one.frame)
            for one in itertools.islice(reversed(writes), _LAST)
        )


def _is_update(frame: Frame) -> bool:
    return frame.header_size > 0 and headers.get(frame.headers, _EXPECTED) is not None
