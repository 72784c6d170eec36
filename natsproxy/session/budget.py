"""One budget for the bytes that all connections hold: unfinished frames, delayed traffic, recorded bodies.

Each direction charges the bytes that it holds after each read.  When the budget is used up no frame is lost:
large frames stream through instead of being held (a rule that needed them lets them pass with an event, or
closes), recorded frames are cut short with their true size, and directions that hold delayed traffic are not
read.
"""

from __future__ import annotations

from dataclasses import dataclass

SMALL = 65536
"""Bytes that each direction may hold whatever the others do: else one connection could stop all."""


@dataclass(slots=True)
class Budget:
    """The bytes that may be held, and those that are."""

    total: int
    used: int = 0

    @property
    def spent(self) -> bool:
        """True if no byte is left."""
        return self.used >= self.total


UNLIMITED = 1 << 62
