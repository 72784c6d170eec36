"""The errors that natsproxy raises on purpose.

One flat family.  Each message is a sentence for a person: what is wrong, where, and how to mend it.
Any other exception that leaves the sans-I/O floors (wire, protocol, rules, session, capture) is a bug.
"""

from __future__ import annotations

from pathlib import Path

from natsproxy.printable import printable


class NatsproxyError(Exception):
    """The base of every error that natsproxy raises on purpose.  Its text is safe on a terminal."""

    def __str__(self) -> str:
        return printable(super().__str__(), keep="\n")


class ConfigError(NatsproxyError):
    """A setting, a rule or a command-line value that cannot be used."""


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


class TruncatedCapture(CaptureError):
    """A capture that ends inside a block.  Everything before `offset` is whole."""
