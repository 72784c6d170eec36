"""The errors that natsproxy raises on purpose, and the exit codes that its commands end with.

One flat family.  Each message is a sentence for a person: what is wrong, where, and how to mend it.
Any other exception that leaves the sans-I/O floors (wire, protocol, rules, session, capture) is a bug.
"""

from __future__ import annotations

import traceback
from enum import IntEnum
from pathlib import Path

from natsproxy.printable import printable


class Exit(IntEnum):
    """What the exit code of a command says: the same of every command."""

    OK = 0
    """It did what it was asked to.  A service that a signal ended in good order did."""
    FOUND_WRONG = 1
    """It looked, and what it looked at is not right: damage, a difference, a mistake in a rules file, clients
    that sent what was not recorded."""
    COULD_NOT_RUN = 2
    """It could not do its work: usage, a file that is missing or cannot be read, nobody at the address."""
    PARTLY = 3
    """`capture recover`: the new file is there, and something was lost."""
    STOPPED = 130
    """SIGINT or SIGTERM broke the work off."""
    NOBODY_READS = 141
    """The reader of its output has gone."""


class NatsproxyError(Exception):
    """The base of every error that natsproxy raises on purpose.  Its text is safe on a terminal."""

    def __str__(self) -> str:
        return printable(super().__str__(), keep="\n")


class Stopped(NatsproxyError):
    """A signal broke the work off."""


class ConfigError(NatsproxyError):
    """A setting, a rule or a command-line value that cannot be used."""


def place_of(error: Exception) -> str:
    """Return the kind and the place of a bug, the innermost of a group.

    Not its text: that may quote what a peer sent, and secrets with it.
    """
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}"


class ProtocolError(NatsproxyError):
    """Bytes that are not NATS, from the peer that sent them.

    direction: "c2s" or "s2c".  offset: position in that direction's stream, in bytes.
    answer: the text of the `-ERR` that nats-server would send, or None where it closes silently.
    """

    def __init__(self, direction: str, offset: int, reason: str, answer: str | None = None) -> None:
        super().__init__(f"{direction} byte {offset}: {reason}")
        self.direction = direction
        self.offset = offset
        self.reason = reason
        self.answer = answer


class CaptureError(NatsproxyError):
    """A capture that cannot be read or written.  offset: position in the file in bytes, if known."""

    def __init__(self, message: str, *, path: Path | str | None = None, offset: int | None = None) -> None:
        where = "" if path is None else f"{path}: "
        at = "" if offset is None else f" (at byte {offset})"
        super().__init__(f"{where}{message}{at}")
        self.path = path
        self.offset = offset


class UnreadableCapture(CaptureError):
    """A capture that is not there, that may not be read, or whose format is newer than this reader."""


class TruncatedCapture(CaptureError):
    """A capture that ends inside a block.  Everything before `offset` is whole."""
