"""The errors that natsproxy raises on purpose, and the exit codes that its commands end with.

One flat family.  Each message is a sentence that names the mistake, its place and the remedy.
Any other exception that leaves the sans-I/O floors (wire, protocol, rules, session, capture) is a bug.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path

from natsproxy.printable import printable


class Exit(IntEnum):
    """The exit codes, which mean the same for every command."""

    OK = 0
    """The command did its work; so did a service that a signal ended in good order."""
    FOUND_WRONG = 1
    """The command found a fault: damage, a difference, a mistake in a rules file, an expectation that is not
    met, a rule that never fired, or clients that sent frames which were not recorded."""
    COULD_NOT_RUN = 2
    """The command could not do its work: wrong usage, a missing or unreadable file, nobody at the address."""
    PARTLY = 3
    """Some frames are lost: `capture recover` wrote what was whole, `run` could not write the end of its
    capture."""
    STOPPED = 130
    """SIGINT or SIGTERM interrupted the work."""
    NOBODY_READS = 141
    """The reader of the output has gone."""


class NatsproxyError(Exception):
    """The base of every error that natsproxy raises on purpose.  Its text is safe on a terminal."""

    def __str__(self) -> str:
        return printable(super().__str__(), keep="\n")


class Stopped(NatsproxyError):
    """A signal interrupted the work."""


_SHOWN = 50  # a list of rules that a program wrote may have tens of thousands of mistakes


class ConfigError(NatsproxyError):
    """A setting, a rule or a command-line value that cannot be used.

    mistakes: a sentence each; the text has the first `_SHOWN`, one on a line, and the number of the others.
    """

    def __init__(self, *mistakes: str) -> None:
        more = len(mistakes) - _SHOWN
        super().__init__("\n".join([*mistakes[:_SHOWN], *([f"{more} more mistakes"] if more > 0 else [])]))
        self.mistakes = mistakes


class Mistakes:
    """Goes on after a mistake, so that somebody who has to mend several sees all of them at once.

    found: a sentence each.
    """

    def __init__(self) -> None:
        self.found: list[str] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note the mistakes of a ConfigError that ends the block."""
        try:
            yield
        except ConfigError as error:
            self.found += error.mistakes

    def refuse(self) -> None:
        """Raise ConfigError with all mistakes, if there are any."""
        if self.found:
            raise ConfigError(*self.found)


def first_error(group: BaseExceptionGroup[NatsproxyError]) -> NatsproxyError:
    """Return the first error of a group."""
    error = group.exceptions[0]
    return first_error(error) if isinstance(error, BaseExceptionGroup) else error


def place_of(error: Exception) -> str:
    """Return the type and the place of a bug, the first innermost one of a group.

    Its text is left out: it may quote the bytes of a peer, and secrets in them.
    """
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}"


class ProtocolError(NatsproxyError):
    """Bytes that are not NATS, from the peer that sent them.

    direction: "c2s" or "s2c".  offset: position in that direction's stream, in bytes.
    reason: a short clause.
    """

    def __init__(self, direction: str, offset: int, reason: str) -> None:
        super().__init__(f"{direction} byte {offset}: {reason}")
        self.direction = direction
        self.offset = offset
        self.reason = reason


class CaptureError(NatsproxyError):
    """A capture that cannot be read or written.  offset: position in the file in bytes, if known."""

    def __init__(self, message: str, *, path: Path | str | None = None, offset: int | None = None) -> None:
        where = "" if path is None else f"{path}: "
        at = "" if offset is None else f" (at byte {offset})"
        super().__init__(f"{where}{message}{at}")
        self.path = path
        self.offset = offset


class UnreadableCapture(CaptureError):
    """A capture that is missing, that may not be read, or whose format is newer than this reader."""


class MissingCapture(UnreadableCapture):
    """A segment that was deleted before it was read: its recorder keeps only so many."""


class TruncatedCapture(CaptureError):
    """A capture that ends inside a block.  Everything before `offset` is whole."""
