"""The proof of blocks: what nats-server said when the recorded clients were replayed with them.

A line is needed if the replay without it meets a violation that the line would have prevented.  A violation
with all lines there fails the block, with two exceptions, which are told: a response whose request did not
come, since whoever asked is not in the recording; and a publish that is among the choices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from natsproxy.permissions.needs import ClientNeeds
from natsproxy.permissions.templates import MappedPermission
from natsproxy.permissions.uses import VERBS_OF_ERRORS, Verb
from natsproxy.printable import printable
from natsproxy.protocol.errors import classify, quote
from natsproxy.protocol.subjects import compile_pattern

RESPONSES: Final = MappedPermission(Verb.PUBLISH, b"")
"""Stands for `allow_responses` where a line is named."""


class Violation(NamedTuple):
    """A permissions violation.  text: that of the server's -ERR."""

    label: str
    place: MappedPermission
    text: str


def violation(label: str, text: str) -> Violation | None:
    """Return the violation in the text of an -ERR; None for another error."""
    found = classify(text)
    verb = VERBS_OF_ERRORS.get(found.kind)
    return (
        None if verb is None else Violation(label, MappedPermission(verb, found.subject, found.queue), text)
    )


class LineVerdict(StrEnum):
    """The verdict on a line."""

    NEEDED = "needed"
    UNNEEDED = "unneeded"
    UNPROVED = "not proved"


class LineProof(NamedTuple):
    """The verdict on a line of a block, with its reason."""

    label: str
    line: MappedPermission
    verdict: LineVerdict
    reason: str

    def __str__(self) -> str:
        """Return one line for people."""
        entry = (
            "allow_responses"
            if self.line == RESPONSES
            else f"{self.line.verb} {quote(str(self.line).encode())}"
        )
        return printable(f"{self.verdict}: {self.label} {entry}: {self.reason}")


@dataclass(slots=True)
class PermissionProof:
    """The proof of the blocks of some captures.

    responses: the subjects of the recorded responses, by label.  server: its version.  frames: those that
    were sent.  violations: those that fail the block.  unasked: responses whose requests did not come.
    chosen: publishes that are among the choices.
    """

    responses: set[tuple[str, bytes]] = field(default_factory=set)
    server: str = ""
    frames: int = 0
    connections: int = 0
    violations: list[Violation] = field(default_factory=list)
    unasked: set[tuple[str, bytes]] = field(default_factory=set)
    chosen: dict[tuple[str, bytes], str] = field(default_factory=dict)
    lines: list[LineProof] = field(default_factory=list)

    def saw(self, found: Violation, need: ClientNeeds) -> None:
        """Sort a violation of the whole block."""
        choice = next((one for one in need.choices if _covers(one.place, found.place)), None)
        if choice is not None:
            self.chosen[found.label, choice.subject] = found.text
        elif (found.label, found.place.subject) in self.responses:
            self.unasked.add((found.label, found.place.subject))
        elif found not in self.violations:
            self.violations.append(found)

    def texts(self) -> Iterator[str]:
        """Yield lines for people."""
        played = f"{self.frames} frames of {self.connections} connections, on nats-server {self.server}"
        yield f"proof: {'failed' if self.violations else 'no permissions violation'} in {played}"
        for one in self.violations:
            yield printable(f"violation: {one.label}: {one.text}")
        for (label, subject), text in sorted(self.chosen.items()):
            yield printable(f"choice: {label} needed {quote(subject)} in the replay: {text}")
        yield from map(str, self.lines)

    def facts(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "passed": not self.violations,
            "server": self.server,
            "frames": self.frames,
            "connections": self.connections,
            "violations": [{"of": one.label, "text": one.text} for one in self.violations],
            "lines": [
                {
                    "of": one.label,
                    "verb": str(one.line.verb),
                    "entry": str(one.line) or "allow_responses",
                    "verdict": str(one.verdict),
                    "reason": one.reason,
                }
                for one in self.lines
            ],
        }


def prevents(need: ClientNeeds, line: MappedPermission, found: Violation) -> bool:
    """Tell whether a line of a block would have prevented a violation."""
    return need.label == found.label and _covers(line, found.place)


def _covers(line: MappedPermission, used: MappedPermission) -> bool:
    same = line.verb == used.verb and line.queue == used.queue
    return same and bool(compile_pattern(line.subject)(used.subject))


def unneeded(need: ClientNeeds, line: MappedPermission) -> LineProof:
    """Return the verdict on a line without which the replay met no violation."""
    others = [
        str(one)
        for one in need.of(line.verb)
        if one != line and one.queue in (b"", line.queue) and compile_pattern(one.subject)(line.subject)
    ]
    if others:
        reason = f"{', '.join(others)} allows it"
    elif line.verb == Verb.PUBLISH and line != RESPONSES and need.responses is not None:
        reason = "allow_responses allows it, as long as it comes in time"
    else:
        reason = "the replay without it met no violation"
    return LineProof(need.label, line, LineVerdict.UNNEEDED, reason)
