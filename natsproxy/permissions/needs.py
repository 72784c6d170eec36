"""The needs of each client of a recording: the lines of its block, its responses, and its choices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from natsproxy.capture.read.reader import Tell
from natsproxy.errors import NatsproxyError
from natsproxy.permissions.choices import PossibleNeed, choices
from natsproxy.permissions.rows import RESPOND, PermissionRow
from natsproxy.permissions.templates import DISTINCT, WORDS, Evidence, MappedPermission, Room, Templates
from natsproxy.permissions.uses import By, ClientDetails, Use, Verb, clients, opened, uses
from natsproxy.units import MINUTE, SECOND

_EXPIRES: Final = (10 * SECOND, 2 * MINUTE, 10 * MINUTE, 60 * MINUTE, 24 * 60 * MINUTE)
"""The times that `allow_responses` gets: the first one of at least twice the longest that was seen."""
CLIENTS: Final = 10_000
"""Labels for which blocks are made at most, where nobody says another number."""
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
class ClientNeeds:
    """The needs of the clients of one label.

    clients: the facts about them.  responses: None without any.
    """

    label: str
    clients: set[ClientDetails]
    lines: dict[MappedPermission, Evidence]
    responses: Responses | None
    choices: list[PossibleNeed]

    def of(self, verb: Verb) -> list[MappedPermission]:
        """Return the lines of a verb."""
        return [place for place in self.lines if place.verb == verb]

    def permissions(self, without: MappedPermission | None = None, responses: bool = True) -> dict[str, Any]:
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
    def __init__(self, distinct: int, words: int, room: Room) -> None:
        self.templates = Templates(distinct, words, room)
        self.responses = Responses()
        self.clients: set[ClientDetails] = set()

    def join(self, row: PermissionRow) -> None:
        """Add a row of the table."""
        if row.verb == RESPOND:
            self.responses.evidence.join(row.evidence())
            self.responses.most = max(self.responses.most, row.most or 0)
            self.responses.longest = max(self.responses.longest, row.longest_ns or 0)
        elif row.verb is not None:
            self.templates.join(Verb(row.verb), (row.queue or "").encode(), row.tokens(), row.evidence())


class _All:
    """The uses of all clients, by label; as many labels as `most`."""

    def __init__(self, by: By, distinct: int, words: int, most: int) -> None:
        self._by, self._distinct, self._words, self._most = by, distinct, words, most
        self._room = Room()
        self._found: dict[str, _Gathered] = {}

    def of(self, client: ClientDetails) -> _Gathered:
        """Return what its label has.  Raises NatsproxyError for one more than `most`."""
        label = client.label(self._by)
        one = self._found.get(label)
        if one is None:
            if len(self._found) >= self._most:
                raise NatsproxyError(
                    f"there are more than {self._most:,} clients by {self._by}: "
                    "choose --by account, fewer captures, or a larger --clients"
                )
            one = self._found[label] = _Gathered(self._distinct, self._words, self._room)
        one.clients.add(client)
        return one

    def needs(self) -> list[ClientNeeds]:
        """Return the needs of all labels, in their order."""
        return [_need(label, self._found[label]) for label in sorted(self._found)]


def needs_of(
    captures: Iterable[Path],
    by: By = By.USER,
    *,
    distinct: int = DISTINCT,
    words: int = WORDS,
    most: int = CLIENTS,
    lost: Tell | None = None,
) -> list[ClientNeeds]:
    """Return the needs of all clients, by their labels.

    distinct, words: as in `Templates`.  most: labels.  lost: as in `open_capture`.  Raises CaptureError, and
    NatsproxyError for more labels or lines than fit.
    """
    reader = opened(captures, lost)
    known = clients(reader)
    found = _All(by, distinct, words, most)
    for client in known.values():
        found.of(client)
    for use in uses(reader, known):
        one = found.of(use.client)
        if use.denied or use.response is None:
            one.templates.add(use)
        else:
            one.responses.add(use)
    return found.needs()


def needs_of_rows(
    rows: Iterable[PermissionRow],
    by: By = By.USER,
    *,
    distinct: int = DISTINCT,
    words: int = WORDS,
    most: int = CLIENTS,
) -> list[ClientNeeds]:
    """Return the needs of all clients in the table `permissions`, by their labels; in any order.

    distinct: at most `rows.FOLDED`.  words: as in `Templates`.  most: labels.  Raises NatsproxyError for more
    labels or lines than fit.
    """
    found = _All(by, distinct, words, most)
    for row in rows:
        found.of(row.client).join(row)
    return found.needs()


def _need(label: str, one: _Gathered) -> ClientNeeds:
    found = one.templates.lines()
    lines = {place: evidence for place, evidence in found.items() if evidence.denied < evidence.frames}
    denied = [place for place in found if place not in lines]
    responses = one.responses if one.responses.most else None
    langs = {client.lang for client in one.clients}
    flow = [place.subject for place, evidence in found.items() if evidence.flow_control]
    return ClientNeeds(label, one.clients, lines, responses, choices(lines, langs, flow, denied))
