"""The needs of each client of a recording: the lines of its block, its responses, and its choices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from natsproxy.capture.read.reader import Tell
from natsproxy.permissions.choices import Choice, choices
from natsproxy.permissions.rows import RESPOND, Row
from natsproxy.permissions.templates import DISTINCT, WORDS, Evidence, Place, Templates
from natsproxy.permissions.uses import By, Client, Use, Verb, clients, opened, uses
from natsproxy.units import MINUTE, SECOND

_EXPIRES: Final = (10 * SECOND, 2 * MINUTE, 10 * MINUTE, 60 * MINUTE, 24 * 60 * MINUTE)
"""The times that `allow_responses` gets: the first one of at least twice the longest that was seen."""
NOTHING: Final = ">"
"""The deny entry of a direction without lines: an empty allow list would allow everything."""


@dataclass(slots=True)
class Responses:
    """The responses of a client.

    most: the most for one message.  longest: ns between a message and its last response.
    """

    evidence: Evidence = field(default_factory=Evidence)
    most: int = 0
    longest: int = 0

    def add(self, use: Use) -> None:
        """Add a response."""
        if use.response is not None:
            self.evidence.saw(use.t)
            self.most = max(self.most, use.response.nth)
            self.longest = max(self.longest, use.response.elapsed)

    @property
    def expires(self) -> int:
        """The time (ns) that is allowed."""
        return next((one for one in _EXPIRES if one >= 2 * self.longest), 2 * self.longest)


@dataclass(slots=True)
class Need:
    """The needs of the clients of one label.

    clients: the facts about them.  responses: None without any.
    """

    label: str
    clients: set[Client]
    lines: dict[Place, Evidence]
    responses: Responses | None
    choices: list[Choice]

    def of(self, verb: Verb) -> list[Place]:
        """Return the lines of a verb."""
        return [place for place in self.lines if place.verb == verb]

    def permissions(self, without: Place | None = None, responses: bool = True) -> dict[str, Any]:
        """Return the permission map, as `parse_permissions` takes it.

        without: a line to leave out.  responses: False to leave them out.
        """
        made: dict[str, Any] = {}
        for verb in Verb:
            allow = [str(place) for place in self.of(verb) if place != without]
            made[str(verb)] = {"allow": allow} if allow else {"deny": [NOTHING]}
        if self.responses is not None and responses:
            expires = f"{self.responses.expires // SECOND}s"
            made["allow_responses"] = {"max": self.responses.most, "expires": expires}
        return made


class _Gathered:
    def __init__(self, distinct: int, words: int) -> None:
        self.templates = Templates(distinct, words)
        self.responses = Responses()
        self.clients: set[Client] = set()

    def join(self, row: Row) -> None:
        """Add a row of the table."""
        if row.verb == RESPOND:
            self.responses.evidence.join(row.evidence())
            self.responses.most = max(self.responses.most, row.most or 0)
            self.responses.longest = max(self.responses.longest, row.longest_ns or 0)
        elif row.verb is not None:
            self.templates.join(Verb(row.verb), (row.queue or "").encode(), row.tokens(), row.evidence())


def needs_of(
    captures: Iterable[Path],
    by: By = By.USER,
    *,
    distinct: int = DISTINCT,
    words: int = WORDS,
    lost: Tell | None = None,
) -> list[Need]:
    """Return the needs of all clients, by their labels.

    distinct, words: as in `Templates`.  lost: as in `open_capture`.  Raises CaptureError.
    """
    reader = opened(captures, lost)
    known = clients(reader)
    found: dict[str, _Gathered] = {}
    for client in known.values():
        found.setdefault(client.label(by), _Gathered(distinct, words)).clients.add(client)
    for use in uses(reader, known):
        one = found[use.client.label(by)]
        if use.denied or use.response is None:
            one.templates.add(use)
        else:
            one.responses.add(use)
    return [_need(label, found[label]) for label in sorted(found)]


def needs_of_rows(
    rows: Iterable[Row], by: By = By.USER, *, distinct: int = DISTINCT, words: int = WORDS
) -> list[Need]:
    """Return the needs of all clients in the table `permissions`, by their labels; in any order.

    distinct: at most `rows.FOLDED`.  words: as in `Templates`.
    """
    found: dict[str, _Gathered] = {}
    for row in rows:
        client = row.client
        one = found.setdefault(client.label(by), _Gathered(distinct, words))
        one.clients.add(client)
        one.join(row)
    return [_need(label, found[label]) for label in sorted(found)]


def _need(label: str, one: _Gathered) -> Need:
    found = one.templates.lines()
    lines = {place: evidence for place, evidence in found.items() if evidence.denied < evidence.frames}
    denied = [place for place in found if place not in lines]
    responses = one.responses if one.responses.most else None
    langs = {client.lang for client in one.clients}
    flow = [place.subject for place, evidence in found.items() if evidence.flow_control]
    return Need(label, one.clients, lines, responses, choices(lines, langs, flow, denied))
