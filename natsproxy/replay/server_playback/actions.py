"""Actions that the playback requests from its driver, and its mismatches: plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from natsproxy.replay.conversation.difference import Difference


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
    """A recorded client frame near to a mismatch: its text, the difference, whether it was used.

    difference: None for a frame that agrees, but was used, or is another client's.
    """

    text: str
    difference: Difference | None
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
            state = "already used" if candidate.used else "not used"
            if candidate.difference is not None:
                lines.append(f"  nearest ({candidate.difference.field} differs, {state}): {candidate.text}")
                lines.append(f"    {candidate.difference}")
            elif candidate.used:
                lines.append(f"  recorded, but already used: {candidate.text}")
            else:
                lines.append(f"  recorded for another client (connection {candidate.conn}): {candidate.text}")
        if not self.candidates:
            lines.append("  no similar frame was recorded")
        return "\n".join(lines)
