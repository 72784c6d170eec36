"""Actions that the playback requests from its driver, and its mismatches: plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from natsproxy.capture.format.connection import ConnectionId
from natsproxy.printable import printable
from natsproxy.replay.conversation.difference import DifferenceText
from natsproxy.replay.server_playback.remedies import Remedy


class Send(NamedTuple):
    """Send whole frames to a client."""

    client_id: int
    data: bytes


class EndConnection(NamedTuple):
    """End a client's connection once everything before was sent."""

    client_id: int


class Forward(NamedTuple):
    """Pass whole frames of a client to the real server behind it.

    settle: those of clients that begin later wait until the server has handled these.
    """

    client_id: int
    data: bytes
    settle: bool = False


Action = Send | EndConnection | Forward


def join_sends(actions: list[Action]) -> list[tuple[int, bytes | Forward | None]]:
    """Return the client and the bytes of each action, neighbouring sends as one; None ends a connection."""
    if len(actions) == 1 and isinstance(actions[0], Send):  # nearly always
        return [actions[0]]
    made: list[tuple[int, bytes | Forward | None]] = []
    pending: list[bytes] = []
    for index, action in enumerate(actions):
        if isinstance(action, Send):
            pending.append(action.data)
            following = actions[index + 1] if index + 1 < len(actions) else None
            if not (isinstance(following, Send) and following.client_id == action.client_id):
                made.append((action.client_id, b"".join(pending)))
                pending = []
        elif isinstance(action, EndConnection):
            made.append((action.client_id, None))
        else:
            made.append((action.client_id, action))
    return made


@dataclass(frozen=True, slots=True)
class Candidate:
    """A recorded client frame near to a mismatch: its text, the difference, whether it was used.

    difference: None for a frame that agrees, but was used, or is another client's, or (early) comes after
    others on its subject.  accepted: the option that
    would let the two match.  changed: the lines in which they differ, where those are several.
    """

    text: str
    difference: DifferenceText | None
    used: bool
    conn: ConnectionId
    accepted: Remedy | None = None
    changed: tuple[str, ...] = ()
    early: bool = False

    def lines(self) -> list[str]:
        """Return the lines about it in a report."""
        if self.difference is not None:
            lines = [f"  nearest ({'used already' if self.used else 'not used'}): {self.text}"]
            lines.append(f"    {self.difference}")
        elif self.used:
            lines = [f"  recorded, but used already: {self.text}"]
        elif self.early:
            lines = [f"  recorded, but behind others on its subject: {self.text}"]
        else:
            lines = [f"  recorded for another client (connection {self.conn}): {self.text}"]
        if self.accepted is not None:
            lines.append(f"    {self.accepted}")
        if self.changed:
            lines += [
                "    all that differs, but for identifiers and times:",
                *(f"    {one}" for one in self.changed),
            ]
        return lines


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A live client frame without a recorded exchange, and the nearest recorded frames.

    frame: its op and subject; text: more of it.  compared, used: how many recorded frames of that kind and
    subject were compared with it, and how many of them were used before.  acked: the nearest of them was a
    publish to a stream.
    """

    client_id: int
    name: str
    frame: str
    text: str
    candidates: tuple[Candidate, ...] = ()
    compared: int = 0
    used: int = 0
    acked: bool = False

    @property
    def who(self) -> str:
        """The client, for people."""
        return f"client {self.name!r}" if self.name else f"connection {self.client_id}"

    @property
    def difference(self) -> str:
        """The difference from the nearest recorded frame on its subject, `""` without one."""
        nearest = self.candidates[0].difference if self.candidates else None
        return "" if nearest is None or nearest.field == "subject" else str(nearest)

    @property
    def summary(self) -> str:
        """The difference in one line, with the values first."""
        if self.difference:
            return printable(f"{self.difference}: {self.frame} of {self.who}")
        nearest = self.candidates[0].difference if self.candidates else None
        more = "" if nearest is None else f" ({nearest})"
        return printable(f"{self.who} sent {self.frame}, {self._wrong()}{more}")

    def _wrong(self) -> str:
        if not self.candidates or self.candidates[0].difference is not None:
            return "which was never recorded"
        if self.candidates[0].early:
            return "before its turn"
        return "more often than recorded" if self.candidates[0].used else "which another client sent"

    def __str__(self) -> str:
        lines = [f"{self.who} sent a frame {self._wrong().replace('which', 'that')}: {self.text}"]
        lines += [line for candidate in self.candidates for line in candidate.lines()]
        if self.compared:
            lines.append(f"  recorded on this subject: {self.compared} frames, {self.used} of them used")
        else:
            lines.append("  recorded on this subject: nothing")
        return "\n".join(map(printable, lines))
