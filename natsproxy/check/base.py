"""The base of the checks: each sees every frame of a recording, then judges what is still open at its end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from natsproxy.check.history import ClientConnection, History, Moment, Table
from natsproxy.check.statement import CANNOT_SAY, FOUND, ProofFrame, Statement
from natsproxy.wire.ops import C2S, Direction, Op

FORGOT: Final = "more was open at once than a check remembers"
"""The reason where a table was full."""
MOST: Final = 100
"""Findings of one check that are listed; the rest is counted."""


class Check(ABC):
    """One check of one recording.

    name: as in the table of checks.  statements: those made so far.
    from_client, from_server: the ops that it looks at; it sees no others.  needs_payloads: it says nothing of
    messages whose payload is withheld.
    """

    from_client: tuple[Op, ...] = ()
    from_server: tuple[Op, ...] = ()
    needs_payloads = False

    def __init__(self, name: str, history: History) -> None:
        self.name = name
        self.history = history
        self.statements: list[Statement] = []
        self._reasons: dict[str, Statement] = {}
        self._found = 0

    def looks_at(self, direction: Direction, op: Op) -> bool:
        """Tell whether it looks at frames of an op."""
        return op in (self.from_client if direction == C2S else self.from_server)

    @abstractmethod
    def saw(self, moment: Moment) -> None:
        """Take the next frame."""

    def at_end(self) -> None:  # noqa: B027 (most checks leave nothing open)
        """Judge what is still open at the end of the recording."""

    def over(self) -> list[Statement]:
        """Return all statements, at the end of the recording."""
        self.at_end()
        tables = [value for value in vars(self).values() if isinstance(value, Table)]
        if any(table.forgot for table in tables):
            self.cannot_say(FORGOT)
        if self.needs_payloads and self.history.withheld is not None:
            self.cannot_say("payloads are withheld", self.history.withheld)
        if self._found > MOST:
            text = f"{self._found - MOST} more of these were found"
            self.statements.append(Statement(self.name, FOUND, text))
        return [*self.statements, *self._reasons.values()]

    def found(
        self, sentence: str, frames: Sequence[ProofFrame | None], since: int | None, *conns: ClientConnection
    ) -> None:
        """State that something is wrong with connections.

        since: the time from which on a frame that the recording misses could explain it; None: none could.
        """
        proofs = tuple(frame for frame in frames if frame is not None)
        reason = "" if since is None else self.history.missed(since, *conns)
        if reason:
            self.cannot_say(reason, *proofs)
            return
        self._found += 1
        if self._found <= MOST:
            names = tuple(dict.fromkeys(conn.name for conn in conns))
            self.statements.append(Statement(self.name, FOUND, sentence, proofs, names))

    def cannot_say(self, reason: str, *frames: ProofFrame) -> None:
        """State, once for a reason, that the recording is too partial."""
        if reason not in self._reasons:
            text = f"the recording does not tell: {reason}"
            self._reasons[reason] = Statement(self.name, CANNOT_SAY, text, frames)

    def waited(self, conn: ClientConnection, since: int, patience: int) -> bool:
        """Tell whether a connection was seen for so long after a time (ns)."""
        if self.history.until(conn) - since >= patience:
            return True
        if conn.until is None and self.history.cut:
            self.cannot_say("it was cut off while something was open")
        return False
