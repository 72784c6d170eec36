"""The turns of recorded polls: which of them may be answered to a client now.

Polls may come more or less often than recorded, or at other times.  A client's own next one comes first, once
the client has made all changes before it: clients that write one key in turns have a sequence of their own
each, and what the others do meanwhile takes nothing from it.  But:

- A read that shows the last write on its subject is right, whatever else is left to do.  It passes an own
  write there that is left only to show another own one.
- A client that asks again without a change of its own waits for those of the others: else the answer would
  come from the future.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator

from natsproxy.replay.conversation.exchanges import RecordedExchange, key_of
from natsproxy.replay.conversation.frame_kind import FrameKind
from natsproxy.replay.conversation.identifier_map import IdentifierMap, masked
from natsproxy.replay.server_playback.client import Client
from natsproxy.replay.server_playback.progress import ConnectionProgress, Progress
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Op


class Turns:
    """Tells the turns of polls.  clients: the numbers of the live clients."""

    def __init__(self, progress: Progress, clients: Collection[int]) -> None:
        self._progress = progress
        self._clients = clients

    def is_due(self, client: Client, poll: RecordedExchange) -> bool:
        """Tell whether the answer to a poll is right now."""
        if poll.kind is FrameKind.READ:
            shown = self._progress.writes.shows_last(poll)
            if shown is not None:
                return shown
            if not client.has_acted_since(poll.key):
                change = self._progress.next_change(self._clients)
                return change is None or poll.seq < change
        return self.is_next(poll)

    def is_next(self, poll: RecordedExchange) -> bool:
        """Tell whether the changes before a poll, of its own connection, were made."""
        change = self._progress.connections[poll.conn].next_change()
        return change is None or poll.seq < change.seq

    def due(
        self, client: Client, seen: Frame, kind: FrameKind, identifiers: IdentifierMap
    ) -> Iterator[RecordedExchange]:
        """Yield the polls that may take the place of a client's next one.

        A pull that asked for another number of messages may be due where the one that is equal is not, and of
        reads that are equal a later one.
        """
        playing = client.playing
        assert playing is not None
        if kind is not FrameKind.READ:
            yield from itertools.takewhile(self.is_next, playing.unused.by_key.get(key_of(seen), ()))
            return
        for read in playing.unused.equal(seen, identifiers):
            if self.is_due(client, read) and not self._passes_a_write(playing, read):
                yield read

    def _passes_a_write(self, playing: ConnectionProgress, read: RecordedExchange) -> bool:
        """Tell whether a read that shows another client's write is behind an own one that is left."""
        if not read.reads or self._progress.writes.writer(read.reads) == playing.conn:
            return False
        writes = playing.unused.by_key.get((Op.PUB, masked(read.reads)), ())
        return any(
            one.frame.subject == read.reads and one.seq < read.seq for one in itertools.islice(writes, 16)
        )
