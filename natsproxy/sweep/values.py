"""The values of a sweep: places, faults at places, runs of the program and their verdicts.

A position is what a selector and a gate can name, so that each has a rule: the n-th frame on a connection
(by its key, `worker/1`: the first connection of client "worker"; `#2`: the second one, unnamed), in a
direction, with a role or an op, on a subject pattern.
A place is a position with what the recording of the baseline knows of it.  A trial is a fault at a place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple

from natsproxy.events import Firing

_SHOWN: Final = 500
"""Characters of a line of output that are shown."""


class Position(NamedTuple):
    """A frame in every run of the program.

    connection: the connection key.  direction: "c2s" or "s2c".  what: a role (`natsproxy rules list`) or an
    op.  subject: the pattern of the client's subject, "" for any (of a reply with history: of its request).
    n: the number among the frames of the connection that the other fields select, from 1.
    """

    connection: str
    direction: str
    what: str
    subject: str
    n: int


class Place(NamedTuple):
    """A position as the baseline has it.

    state: of the conversation there, in words that are equal where a program should do the same.
    t: ns since the start of the recording.  ordinal: the frame's number on its connection and direction.
    size: bytes of its payload.  reply: it asks for an answer.  by_clock: a clock decides if and when it
    comes (PING, heartbeats, empty pulls).  of: for people: the stream and consumer or the subject template.
    acked: it is a publish that JetStream acks.
    """

    position: Position
    state: str
    t: int = 0
    ordinal: int = 0
    size: int = 0
    reply: bool = False
    by_clock: bool = False
    of: str = ""
    acked: bool = False


class Trial(NamedTuple):
    """A fault at a place, and what puts it there.

    fault: a name of the table in `faults.py` with its variant ("cut-head").  rules: tables of a rules file;
    the first of them marks the place: the fault took place if it fired.  restart: the server is stopped when
    the first rule fires, and started again: "keep" its streams, or "lose" them; "" for no restart.
    depth: 2 for a fault in the recovery from another one, `after`, whose rules stand behind its own.
    """

    fault: str
    place: Place
    rules: tuple[dict[str, Any], ...]
    restart: str = ""
    depth: int = 1
    after: str = ""


class OpenConnection(NamedTuple):
    """A connection that was open when a run's time was over.

    key: its connection key.  subscriptions: the number that live.  alive: the client answered a PING of the
    proxy; None where it was not asked.  unread: bytes that its socket has and the program has not read; None
    where the system does not tell.
    """

    key: str
    subscriptions: int = 0
    alive: bool | None = None
    unread: int | None = None


@dataclass(slots=True)
class ProgramRun:
    """One run of the program.

    code: its exit code, 128 and the number of the signal that ended it; None where it did not end in time.
    seconds: it took.  limit: seconds that it had.  capture: the recording of the proxy before the server.
    firings: of the rules, in order.  check_code, check_output: of the user's own check; None: none was run.
    stack: where the program hung, as its runtime says it; "" for nothing.  output: the end of what it
    printed, both streams.  open: connections when the time was over.  problem: a sentence where the run says
    nothing of the program: the server did not start, the check could not be run; "" for none.
    """

    code: int | None
    seconds: float
    limit: float
    capture: Path
    firings: list[Firing] = field(default_factory=list)
    check_code: int | None = None
    check_output: str = ""
    stack: str = ""
    output: str = ""
    open: list[OpenConnection] = field(default_factory=list)
    problem: str = ""

    @property
    def printed(self) -> str:
        """The end of a sentence about the run: the last line of its output, "" for none."""
        last = self.output.strip().rpartition("\n")[2][:_SHOWN]
        return f"; it printed: {last}" if last else ""


class Verdict(Enum):
    """The judgement on a run of the program, in a word."""

    PASSED = "passed"
    FAILED_LOUDLY = "failed loudly"
    WRONG = "wrong"
    HUNG = "hung"
    DEAF = "deaf"
    FLAKY = "flaky"
    NOT_REACHED = "not reached"
    """The fault's place did not come: the program has said nothing."""

    @property
    def found(self) -> bool:
        """True for those that are findings."""
        return self in (Verdict.WRONG, Verdict.HUNG, Verdict.DEAF)

    @property
    def meaning(self) -> str:
        """The verdict in a clause."""
        return _MEANINGS[self]


_MEANINGS: Final = {
    Verdict.PASSED: "it did the same as without the fault, but for what NATS does not promise",
    Verdict.FAILED_LOUDLY: "it ended with another exit code: it knew of the fault",
    Verdict.WRONG: "it ended as if all were well, but its check or its messages are not as in clean runs",
    Verdict.HUNG: "it did not end",
    Verdict.DEAF: "it did not end, and took nothing from a connection that it kept",
    Verdict.FLAKY: "it did not do the same in each run",
    Verdict.NOT_REACHED: "the place of the fault did not come, or the run itself failed",
}


class Judgement(NamedTuple):
    """A verdict, and its reasons: a sentence each, the one that decided first."""

    verdict: Verdict
    reasons: tuple[str, ...] = ()
