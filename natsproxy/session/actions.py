"""Actions that a session asks for, in order."""

from __future__ import annotations

from typing import NamedTuple

from natsproxy.capture.format.records import Item
from natsproxy.events import Event
from natsproxy.wire.ops import Direction


class Send(NamedTuple):
    """Write bytes: C2S to the server leg, S2C to the client leg."""

    direction: Direction
    data: bytes | memoryview


class Finish(NamedTuple):
    """No more bytes in this direction: half-close the leg that it goes to."""

    direction: Direction


class Record(NamedTuple):
    """Give an item to the recorder."""

    item: Item


class Emit(NamedTuple):
    """Give an event to its subscribers."""

    event: Event


class Authenticate(NamedTuple):
    """Check the password of a client, and call `Session.authenticated` with the result.

    The client's frames wait meanwhile.
    """

    user: str
    password: str

    def __repr__(self) -> str:
        return f"Authenticate({self.user!r})"


class End(NamedTuple):
    """End the connection.

    Flush the bytes sent, half-close the client leg and drain it, then close both; `reset`: RST on both, now;
    with `flush` when the peers have the bytes sent before.
    """

    cause: str
    detail: str = ""
    reset: bool = False
    flush: bool = False


Action = Send | Finish | Record | Emit | Authenticate | End


class Actions(list[Action]):
    """The pending actions of a session; all of its parts append here."""

    __slots__ = ()

    def take(self) -> list[Action]:
        """Remove and return them."""
        taken = self.copy()
        self.clear()
        return taken
