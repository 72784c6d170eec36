"""Actions that the playback requests from its driver, and its mismatches: plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Send(NamedTuple):
    """Send whole frames to a client."""

    client_id: int
    data: bytes


class EndConnection(NamedTuple):
    """End a client's connection once everything before was sent."""

    client_id: int


class Forward(NamedTuple):
    """Pass a client's frame to the real server behind it."""

    client_id: int
    data: bytes


Action = Send | EndConnection | Forward


@dataclass(frozen=True, slots=True)
class Candidate:
    """A recorded client frame near to a mismatch: its text, the field that differs, whether it was used."""

    text: str
    field: str
    used: bool
    conn: int


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A live client frame without a recorded exchange, and the nearest recorded frames."""

    client_id: int
    name: str
    text: str
    candidates: tuple[Candidate, ...] = ()

    def __str__(self) -> str:
        who = f"client {self.name!r}" if self.name else f"connection {self.client_id}"
        lines = [f"{who} sent a frame that was never recorded: {self.text}"]
        for candidate in self.candidates:
            if candidate.field == "":
                lines.append(f"  recorded, but already used: {candidate.text}")
            else:
                state = "already used" if candidate.used else "not used"
                lines.append(f"  nearest ({candidate.field} differs, {state}): {candidate.text}")
        if not self.candidates:
            lines.append("  no similar frame was recorded")
        return "\n".join(lines)
