"""The records of a silent client are deferred: most silent clients are health probes, which no capture needs.

The first records of a connection (its opening, the INFO that its client was given) wait until the client
sends something, or until the connection ends for another reason than that the client left.  The records of a
probe are dropped: nothing of it is in the capture.
"""

from __future__ import annotations

from collections.abc import Callable

from natsproxy.capture.format.records import Item, Open
from natsproxy.session import close_reasons
from natsproxy.session.session import Session

_CLIENT_LEFT = (close_reasons.CLIENT_CLOSED, close_reasons.CLIENT_LOST)


class DeferredRecords:
    """Passes the records of one connection on to `record`, once its client has sent something."""

    __slots__ = ("_deferred", "_record", "_session")

    def __init__(self, session: Session, record: Callable[[Item], None]) -> None:
        self._session = session
        self._record = record
        self._deferred: list[Item] | None = []  # None: nothing is deferred any more

    def __call__(self, item: Item) -> None:
        """Record an item, now or later."""
        if self._deferred is None:
            self._record(item)
            return
        self._deferred.append(item)
        if self._session.client_spoke:
            self._release()

    @property
    def deferring(self) -> bool:
        """True if the capture does not have this connection yet."""
        return self._deferred is not None

    def discard(self) -> None:
        """Drop the deferred items and record the later ones: a preamble says the same in a new capture."""
        self._deferred = None

    def close(self, item: Item, cause: str) -> None:
        """Record the last item of a connection, unless it ended as the connection of a probe does."""
        if self._deferred is None or self._session.client_spoke or cause not in _CLIENT_LEFT:
            self(item)
            self._release()

    def _release(self) -> None:
        deferred, self._deferred = self._deferred, None
        for item in deferred or ():
            if isinstance(item, Open):  # it was made before anybody knew who the client is
                item = item._replace(info=item.info | self._session.connection.login())
            self._record(item)
