"""The pairs of values that the comparison of two frames finds, before they count."""

from __future__ import annotations

from typing import NamedTuple

from natsproxy.printable import printable
from natsproxy.replay.conversation.generated_values import is_time

Member = tuple[bytes, bytes]
"""The name of a JSON member and its value, both as JSON."""


class Learned(NamedTuple):
    """A value that was learned: the place for people, and both values."""

    place: str
    recorded: bytes
    live: bytes

    def __str__(self) -> str:
        return printable(f"{self.place} {short(self.recorded)} -> {short(self.live)}")


class Lesson:
    """The pairs that one comparison finds, until it is known whether the frames agree.

    members: live values of JSON members, by name and recorded value, both as JSON.  subject: a pattern of the
    frames, for people.
    """

    __slots__ = ("live", "members", "places", "recorded", "subject", "times")

    def __init__(self) -> None:
        self.live: dict[bytes, bytes] = {}
        self.recorded: dict[bytes, bytes] = {}
        self.times: dict[bytes, bytes] = {}
        self.members: dict[Member, bytes] = {}
        self.places: list[Learned] = []
        self.subject = ""

    def learn_time(self, recorded: bytes, live: bytes, place: str) -> None:
        """Note two times."""
        self.times[recorded] = live
        self.places.append(Learned(place, recorded, live))

    def add(self, other: Lesson) -> None:
        """Take the pairs of another lesson in."""
        self.live |= other.live
        self.recorded |= other.recorded
        self.times |= other.times
        self.members |= other.members
        self.places += other.places

    def copy(self) -> Lesson:
        """Return a lesson of its own with the same pairs."""
        made = Lesson()
        made.add(self)
        return made


def short(identifier: bytes) -> str:
    """Return an identifier as people are shown it."""
    text = identifier.decode(errors="replace")
    return text if len(text) <= 12 or is_time(identifier) else f"{text[:8]}..."
