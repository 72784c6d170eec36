"""What a replay asks of its player, and what it has to say: values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Send(NamedTuple):
    """Send whole frames on a live connection."""

    live: int
    data: bytes


class EndConnection(NamedTuple):
    """End a live connection once everything before was sent."""

    live: int


class Forward(NamedTuple):
    """Pass a client frame to the real server behind a live connection."""

    live: int
    data: bytes


Action = Send | EndConnection | Forward


@dataclass(frozen=True, slots=True)
class Candidate:
    """A recorded client frame that comes near: where it is, the field that differs, whether it was used."""

    text: str
    field: str
    used: bool
    conn: int


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A live client frame that the capture has no exchange for, and what came near."""

    live: int
    name: str
    text: str
    candidates: tuple[Candidate, ...] = ()

    def __str__(self) -> str:
        who = f"client {self.name!r}" if self.name else f"connection {self.live}"
        lines = [f"{who} sent what was never recorded: {self.text}"]
        for near in self.candidates:
            if near.field == "":
                lines.append(f"  recorded, but already used: {near.text}")
            else:
                state = "already used" if near.used else "not used"
                lines.append(f"  nearest ({near.field} differs, {state}): {near.text}")
        if not self.candidates:
            lines.append("  nothing like it was recorded")
        return "\n".join(lines)
