"""Mismatches: live frames that were never recorded, with the recorded frames nearest to them, and advice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from natsproxy.capture.format.connection import ConnectionId
from natsproxy.printable import printable
from natsproxy.protocol.template import template
from natsproxy.replay.conversation.difference import Difference, DifferenceText
from natsproxy.replay.conversation.exchanges import RecordedExchange, key_of
from natsproxy.replay.conversation.frame_text import changed_lines, frame_text
from natsproxy.replay.conversation.matching import Matcher
from natsproxy.replay.server_playback.advice import Advice, Advisor, difference_of
from natsproxy.replay.server_playback.client import Client
from natsproxy.replay.server_playback.progress import ConnectionProgress, Progress
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Op

_SHOWN: Final = 3
_COMPARED: Final = 64 << 10  # bytes of a payload whose lines are compared
_LOOKED_AT: Final = 2000  # candidates: finding the nearest must not hold up the other clients
_BYTES: Final = 8 << 20  # of them
# The later the field that differs, the nearer the frame: `Matcher.differs` compares the subject first.
_ORDER: Final = {"": 0, "body": 1, "headers": 2, "reply": 3, "queue": 3, "subject": 4}


NOT_NATS: Final = "bytes that are not NATS"
"""Stands for the frame in a mismatch of bytes that are no frame."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A recorded client frame that is near to a mismatch.

    difference: None for a frame that agrees, but was used, is another client's, or (early) comes after others
    on its subject.  accepted: the option under which the live frame would have matched.  changed: the lines
    that differ, if there are several.
    """

    text: str
    difference: DifferenceText | None
    used: bool
    conn: ConnectionId
    accepted: Advice | None = None
    changed: tuple[str, ...] = ()
    early: bool = False

    def lines(self) -> list[str]:
        """Return its lines in a report."""
        if self.difference is not None:
            lines = [f"  nearest ({'used already' if self.used else 'not used'}): {self.text}"]
            lines.append(f"    {self.difference}")
        elif self.used:
            lines = [f"  recorded, but used already: {self.text}"]
        elif self.early:
            lines = [f"  recorded, but after others on its subject: {self.text}"]
        else:
            lines = [f"  recorded for another client (connection {self.conn}): {self.text}"]
        if self.accepted is not None:
            lines.append(f"    {self.accepted}")
        if self.changed:
            lines += [
                "    all differences except identifiers and times:",
                *(f"    {one}" for one in self.changed),
            ]
        return lines


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A live client frame without a recorded exchange, and the nearest recorded frames.

    frame: its op and subject; text: a preview of all of it.  compared, used: how many recorded frames of that
    kind and subject were compared with it, and how many of these were already used.  acked: the nearest one
    was a publish to a stream.
    """

    client_id: int
    name: str
    frame: str
    text: str
    candidates: tuple[Candidate, ...] = ()
    compared: int = 0
    used: int = 0
    acked: bool = False

    @property
    def who(self) -> str:
        """The name or number of the client, for a message."""
        return f"client {self.name!r}" if self.name else f"connection {self.client_id}"

    @property
    def kind(self) -> str:
        """The op and subject template of the frame, which hold no value of it."""
        op, blank, subject = self.frame.partition(" ")
        subject = template(subject.encode()).decode(errors="replace")
        return self.frame if self.frame == NOT_NATS else f"{op}{blank}{subject}"

    @property
    def difference(self) -> str:
        """The difference from the nearest recorded frame on its subject, `""` without one."""
        nearest = self.candidates[0].difference if self.candidates else None
        return "" if nearest is None or nearest.field == "subject" else str(nearest)

    @property
    def summary(self) -> str:
        """The difference in one line, with the values first."""
        if self.difference:
            return printable(f"{self.difference}: {self.frame} of {self.who}")
        nearest = self.candidates[0].difference if self.candidates else None
        more = "" if nearest is None else f" ({nearest})"
        return printable(f"{self.who} sent {self.frame}, {self._wrong()}{more}")

    def _wrong(self) -> str:
        if self.frame == NOT_NATS:
            return "which no server takes"
        if not self.candidates or self.candidates[0].difference is not None:
            return "which was never recorded"
        if self.candidates[0].early:
            return "before its turn"
        return "more often than recorded" if self.candidates[0].used else "which another client sent"

    def __str__(self) -> str:
        lines = [f"{self.who} sent a frame {self._wrong().replace('which', 'that')}: {self.text}"]
        lines += [line for candidate in self.candidates for line in candidate.lines()]
        if self.frame == NOT_NATS:
            pass
        elif self.compared:
            lines.append(f"  recorded on this subject: {self.compared} frames, {self.used} of them used")
        else:
            lines.append("  recorded on this subject: nothing")
        return "\n".join(map(printable, lines))


def preview(frame: Frame, limit: int = 60) -> str:
    """Return a client frame as one short line: op, subject, queue or reply, headers and body cut short."""
    words = [frame.op.label, frame.subject.decode(errors="replace")]
    if frame.queue:
        words.append(f"queue {frame.queue.decode(errors='replace')}")
    if frame.reply:
        words.append(f"reply {frame.reply.decode(errors='replace')}")
    if frame.header_size:
        words.append(f"headers {frame.header_size} B")
    if frame.op in (Op.PUB, Op.HPUB):
        body = frame.body
        more = "" if len(body) <= limit else f" ... {len(body)} B"
        words.append(repr(body[:limit])[1:] + more)
    return " ".join(words)


def mismatch_of(
    client: Client, frame: Frame, progress: Progress, matcher: Matcher, advisor: Advisor
) -> Mismatch:
    """Return the mismatch of a frame of a client."""

    def advise(near: RecordedExchange, used: bool) -> Advice | None:
        return advisor.advice(client, frame, near, used=used)

    seen = matcher.seen(frame)  # as a recording would show it
    found = nearest(seen, client.playing, progress, matcher, advise)
    head = f"{seen.op.label} {seen.subject.decode(errors='replace')}"
    return Mismatch(client.id, client.connect.name, head, preview(seen), *found)


class Nearest(NamedTuple):
    """The nearest recorded frames.

    compared, used: how many of the same kind and subject there were, and how many were used.  acked: a stream
    acknowledged the nearest one.
    """

    candidates: tuple[Candidate, ...]
    compared: int
    used: int
    acked: bool


class _Ranked(NamedTuple):
    """A recorded frame and its distance from a live one."""

    distance: tuple[int, int, int, int, int]
    exchange: RecordedExchange
    used: bool
    difference: Difference | None


def nearest(
    frame: Frame,
    playing: ConnectionProgress | None,
    progress: Progress,
    matcher: Matcher,
    advise: Callable[[RecordedExchange, bool], Advice | None] = lambda near, used: None,
) -> Nearest:
    """Return up to three recorded frames of the same op that are nearest to `frame`, the nearest first."""
    own = None if playing is None else playing.conn
    ranked: list[_Ranked] = []
    key = key_of(frame)
    compared = used = size = 0
    for exchange, is_used in _candidates(frame, progress):
        size += exchange.frame.wire_size
        if size > _BYTES:
            break
        difference = difference_of(matcher, exchange, frame, used=is_used)
        compared += exchange.key == key
        used += exchange.key == key and is_used
        field = "" if difference is None else difference.field
        common = _common(exchange.frame.subject, frame.subject)
        if field == "subject" and not common:
            continue
        # A frame of another object, whose identifier is known already, is further away.
        conflict = difference is not None and bool(difference.note)
        distance = (_ORDER[field], -common, int(conflict), int(exchange.conn != own), int(is_used))
        ranked.append(_Ranked(distance, exchange, is_used, difference))
    ranked.sort(key=lambda one: (one.distance, one.exchange.seq))
    if ranked and ranked[0].distance[0] < _ORDER["subject"]:  # frames on other subjects are far from it
        ranked = [one for one in ranked if one.distance[0] < _ORDER["subject"]]
    shown = [_shown(one, own, advise(one.exchange, one.used)) for one in ranked[:_SHOWN]]
    if shown and shown[0].difference is not None and shown[0].difference.field != "subject":
        changed = _changed(matcher.counted(ranked[0].exchange.frame), matcher.counted(frame))
        shown[0] = replace(shown[0], changed=changed)
    acked = bool(ranked) and ranked[0].exchange.key == key and ranked[0].exchange.acked
    return Nearest(tuple(shown), compared, used, acked)


def _changed(recorded: Frame, live: Frame) -> tuple[str, ...]:
    """Return the lines in which two frames differ, none if the first difference is the only one."""
    if max(recorded.size, live.size) > _COMPARED:
        return ()
    lines = changed_lines(frame_text(recorded), frame_text(live), alike=True)
    return tuple(lines) if sum(line[0] in "-+" for line in lines) > 2 else ()


def _shown(one: _Ranked, own: ConnectionId | None, accepted: Advice | None) -> Candidate:
    exchange, difference = one.exchange, one.difference
    text = None if difference is None else difference.text
    early = difference is None and not one.used and exchange.conn == own
    return Candidate(preview(exchange.frame), text, one.used, exchange.conn, accepted, early=early)


def _candidates(frame: Frame, progress: Progress) -> list[tuple[RecordedExchange, bool]]:
    """Return recorded frames of the same op, and whether they were used."""
    kind, _ = key_of(frame)
    found = [(one, True) for one in progress.recent if one.key[0] == kind]
    for connection in progress.connections.values():
        for (other, _), queue in connection.unused.by_key.items():
            if other == kind:
                found.extend((one, False) for one in queue)
            if len(found) > _LOOKED_AT:
                return found
    return found


def _common(ours: bytes, theirs: bytes) -> int:
    """Count the tokens in which two subjects agree from the left."""
    count = 0
    for a, b in zip(ours.split(b"."), theirs.split(b"."), strict=False):
        if a != b:
            break
        count += 1
    return count
