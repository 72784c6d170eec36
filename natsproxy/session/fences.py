"""Who owns each PONG that the server will send.

PONGs carry no name and come in the order of the PINGs that went upstream (PROTOCOL 8.3), so a FIFO of owners
is all it takes.  A PING of ours is a *fence*: where its PONG arrives, everything that the server had to say
about earlier frames has arrived too, and what we have to say in the server's place goes out there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Fence:
    """A PING of ours: what to send the client at its PONG, and what to do then.

    end: the cause and detail with which the connection ends there.
    """

    answer: bytearray = field(default_factory=bytearray)
    then: list[Callable[[int], None]] = field(default_factory=list)
    end: tuple[str, str] | None = None
    deadline: int = 0


class PongQueue:
    """The FIFO of PONG owners: a `Fence`, or None for the client."""

    def __init__(self) -> None:
        self._owners: deque[Fence | None] = deque()

    def client_ping(self) -> None:
        """A PING of the client goes upstream."""
        self._owners.append(None)

    def fence(self, fence: Fence) -> None:
        """A PING of ours goes upstream."""
        self._owners.append(fence)

    def pong(self) -> Fence | None:
        """A PONG came: return the fence that it belongs to, None if it is the client's (or nobody's)."""
        return self._owners.popleft() if self._owners else None

    @property
    def waiting(self) -> bool:
        """Whether any PONG is due."""
        return bool(self._owners)

    def fences(self) -> list[Fence]:
        """Return the fences whose PONG has not come."""
        return [owner for owner in self._owners if owner is not None]
