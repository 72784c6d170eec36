"""The choice of listed frames: the conditions of a `Query`, and those that need context.

Blocks without frames of the query are skipped, unless they name the clients of a block that is read.
So an answer may not know its request if that is in a skipped block, except where a condition needs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from natsproxy.capture.format.records import Frames, Item
from natsproxy.capture.listing.exchanges import Exchanges
from natsproxy.capture.listing.listing import Event, Listed, Listing
from natsproxy.capture.read.frames import Query
from natsproxy.capture.read.reader import CaptureReader
from natsproxy.capture.read.runs import CaptureRun
from natsproxy.capture.read.segment import BlockRef, CaptureFile
from natsproxy.protocol.headers import parse as parse_headers
from natsproxy.protocol.subjects import matches
from natsproxy.rules.model.roles import Role
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import ALL_OPS, Op


@dataclass(frozen=True)
class Choice:
    """A choice of frames; an empty field selects all.

    roles: a frame has one of them; as in rules, the subjects of those about answers are the requests'.
    clients: shell patterns of the client's name.  headers: name (in any letter case) and shell pattern of a
    value, None for any; a frame has all of them.  exchange: include the rest of its exchange.  header_bytes:
    the first bytes of headers that are searched, None for all: a peer may send a hundred thousand.
    """

    query: Query = field(default_factory=Query)
    roles: tuple[Role, ...] = ()
    clients: tuple[str, ...] = ()
    headers: tuple[tuple[bytes, str | None], ...] = ()
    exchange: bool = False
    header_bytes: int | None = None

    @property
    def around(self) -> bool:
        """True if frames that are not chosen must be seen to choose others."""
        return self.exchange or any(role.requests is not None for role in self.roles)

    @property
    def blocks(self) -> Query:
        """The query for blocks and records."""
        return Query(self.query.start, self.query.end) if self.around else self.query

    def wants(self, listed: Listed) -> bool:
        """Tell whether a frame matches, regardless of its exchange."""
        if self.clients and not any(fnmatchcase(listed.client, glob) for glob in self.clients):
            return False
        if self.roles:
            if not any(self._has(role, listed) for role in self.roles):
                return False
        elif not self.query.wants(listed.one):
            return False
        return not self.headers or self._has_headers(listed.one.head)

    def wants_event(self, event: Event) -> bool:
        """Tell whether the choice includes all frames at the time and on the connection of an event."""
        query = self.query
        if self.exchange or self.roles or self.headers or query.subjects or query.ops != ALL_OPS:
            return False
        if query.direction is not None or (query.start is not None and event.wall < query.start):
            return False
        if query.end is not None and event.wall > query.end:
            return False
        if self.clients and not any(fnmatchcase(event.client, glob) for glob in self.clients):
            return False
        return not query.conns or (event.conn is not None and event.conn in query.conns)

    def _has(self, role: Role, listed: Listed) -> bool:
        one, frame = listed.one, listed.one.head
        if frame is None or one.direction != role.direction or not role.ops >> frame.op & 1:
            return False
        if role.requests is None:
            return role.admits(frame) and self.query.wants(one)
        if listed.request is None:
            return False
        subject = listed.request.subject
        if not _any(role.requests, subject) or _any(role.unless, subject) or not role.matches(frame):
            return False
        subjects = self.query.subjects
        return (not subjects or _any(subjects, subject)) and replace(self.query, subjects=()).wants(one)

    def _has_headers(self, frame: Frame | None) -> bool:
        if frame is None or not frame.headers:
            return False
        pairs = [
            (name.lower(), value) for name, value in parse_headers(frame.headers[: self.header_bytes]).pairs
        ]
        return all(
            any(
                key == name.lower() and (glob is None or fnmatchcase(value.decode("utf-8", "replace"), glob))
                for key, value in pairs
            )
            for name, glob in self.headers
        )


def _any(patterns: tuple[bytes, ...], subject: bytes) -> bool:
    return any(matches(pattern, subject) for pattern in patterns)


class Chooser:
    """The state of a choice: it takes items in order, and remembers their context."""

    def __init__(self, choice: Choice) -> None:
        self.choice = choice
        self._listing = Listing()
        self._exchanges = Exchanges() if choice.exchange else None
        self._begun: set[tuple[bytes, int]] = set()

    def read(self, file: CaptureFile, ref: BlockRef) -> Iterator[Listed | Event]:
        """Yield the result of `see` for each item of a block, which comes as a capture grows."""
        segment = (ref.segment.recorder, ref.segment.number)
        if self.choice.blocks.wants_block(ref):
            for item in file.items(ref):
                yield from self.see(ref, item)
        elif segment not in self._begun or ref.summary.ops & Op.CONNECT.bit:
            for item in file.items(ref):
                self.note(ref, item)
        self._begun.add(segment)

    def note(self, ref: BlockRef, item: Item) -> None:
        """Remember the client that an item names; none of its frames is chosen."""
        if isinstance(item, Frames) and b"CONNECT" not in bytes(item.data).upper():
            return
        for _ in self._listing.see(ref, item):
            pass

    def see(self, ref: BlockRef, item: Item) -> Iterator[Listed | Event]:
        """Yield the chosen frames of an item, and those of earlier ones that belong to them."""
        choice = self.choice
        if isinstance(item, Frames) and not choice.blocks.wants_connection(ref, item):
            return
        for one in self._listing.see(ref, item):
            if isinstance(one, Event):
                if choice.wants_event(one):
                    yield one
            elif self._exchanges is not None:
                if choice.blocks.wants(one.one):
                    yield from self._exchanges.add(one, choice.wants(one))
            elif choice.wants(one):
                yield one


def listed(reader: CaptureReader, choice: Choice) -> Iterator[Listed | Event]:
    """Yield the chosen frames of a capture, and the events between them, by time."""
    chooser = Chooser(choice)

    def of_run(run: CaptureRun) -> Iterator[tuple[BlockRef, Item, bool]]:
        for file in reader.files(run):
            yield from _items(file, choice.blocks)

    for ref, item, chosen in reader.by_time(of_run, lambda found: found[0].wall(found[1].t)):
        if chosen:
            yield from chooser.see(ref, item)
        else:
            chooser.note(ref, item)


def _items(file: CaptureFile, query: Query) -> Iterator[tuple[BlockRef, Item, bool]]:
    """Yield the items of blocks that may hold frames of a query, and of blocks that name their clients.

    Clients are named by CONNECT, and where a segment begins.
    """
    before: list[BlockRef] = []
    for number, ref in enumerate(file.blocks()):
        if query.wants_block(ref):
            for other in before:
                yield from ((other, item, False) for item in file.items(other))
            before = []
            yield from ((ref, item, True) for item in file.items(ref))
        elif not number or ref.summary.ops & Op.CONNECT.bit:
            before.append(ref)


def listed_frames(reader: CaptureReader, choice: Choice) -> Iterator[Listed]:
    """Yield the chosen frames of a capture."""
    return (one for one in listed(reader, choice) if isinstance(one, Listed))
