"""The turns of recorded polls: which recorded answers are right for a client now.

Polls may come more or less often than recorded, or at other times.  A client's own next poll is due once the
client has made all changes before it, whatever other clients do meanwhile.  Exceptions:

- A read of a subject is right while its answer shows the last write on that subject.
- A client that polls again without a change of its own waits for the changes of the others: else it would get
  an answer from the future.
- Reads before updates (compare-and-set loops) keep their order: each leads to the update that was recorded
  after it, which succeeds or fails as it did then, even if several tasks of one client do that concurrently.
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
_LAST: Final = 16  # writes on similar subjects that are searched


class Turns:
    """Decides whose turn it is.  clients: the numbers of the live clients."""

    def __init__(self, progress: Progress, clients: Collection[int]) -> None:
        self._progress = progress
        self._clients = clients

    def is_due(self, poll: RecordedExchange) -> bool:
        """Return whether the recorded answer to a poll is right at this moment."""
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
        """Return whether a client has made a change since its last poll, and all before this one."""
        return client.has_acted_since(poll.key) and self._is_next(poll)

    def _is_next(self, poll: RecordedExchange) -> bool:
        """Return whether all changes of its own connection before a poll were made."""
        change = self._progress.connections[poll.conn].next_change()
        return change is None or poll.seq < change.seq

    def due(
        self, playing: ConnectionProgress, seen: Frame, kind: FrameKind, identifiers: IdentifierMap
    ) -> Iterator[RecordedExchange]:
        """Yield the recorded polls that may stand for a live one, although it is not the next of its client.

        A pull with another batch size may be due when the equal one is not, and a later one of equal reads.
        """
        if kind is not FrameKind.READ:
            yield from itertools.takewhile(self._is_next, playing.unused.by_key.get(key_of(seen), ()))
            return
        yield from filter(self.is_due, playing.unused.equal(seen, identifiers))

    def _is_for_an_update(self, read: RecordedExchange) -> bool:
        """Return whether its client later updates what it reads, on condition of the last sequence."""
        if not read.reads:
            return False
        writes = self._progress.connections[read.conn].unused.by_key.get((Op.PUB, masked(read.reads)), ())
        return any(
            one.seq > read.seq and one.frame.subject == read.reads and _is_update(one.frame)
            for one in itertools.islice(reversed(writes), _LAST)
        )


def _is_update(frame: Frame) -> bool:
    return frame.header_size > 0 and headers.get(frame.headers, _EXPECTED) is not None
