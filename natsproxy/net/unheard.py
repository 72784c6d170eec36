"""A client that has said nothing yet is not recorded yet: most of them are probes that never will.

What there is to record of it (that it came, the INFO it was given) waits until it speaks, or until its
connection ends otherwise than by its own leaving without a word.
"""

from __future__ import annotations

from collections.abc import Callable

from natsproxy.capture.format.records import Item
from natsproxy.session import close_reasons
from natsproxy.session.session import Session
from natsproxy.wire.ops import C2S

_LEFT = (close_reasons.CLIENT_CLOSED, close_reasons.CLIENT_LOST)


class Unheard:
    """Passes the items of one connection on, once its client has said something."""

    def __init__(self, session: Session, record: Callable[[Item], None]) -> None:
        self._session = session
        self._record = record
        self._waiting: list[Item] | None = []  # None: nothing waits any more

    def __call__(self, item: Item) -> None:
        """Take an item."""
        if self._waiting is None:
            self._record(item)
            return
        self._waiting.append(item)
        if self._session.pipes[C2S].in_bytes:
            self._release()

    @property
    def waiting(self) -> bool:
        """Whether the capture does not know of this connection yet."""
        return self._waiting is not None

    def forget(self) -> None:
        """Record what comes from now on; what waits is told otherwise, by a preamble."""
        self._waiting = None

    def close(self, item: Item, cause: str) -> None:
        """Take the last item; the client of a connection that ended for this cause may have been a probe."""
        if self._waiting is None or self._session.pipes[C2S].in_bytes or cause not in _LEFT:
            self(item)
            self._release()

    def _release(self) -> None:
        waiting, self._waiting = self._waiting, None
        for item in waiting or ():
            self._record(item)
