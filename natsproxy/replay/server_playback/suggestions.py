"""Suggestions for a mismatch: the recorded frames that come nearest to a live one."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from natsproxy.capture.format.connection import ConnectionId
from natsproxy.replay.conversation.difference import Difference
from natsproxy.replay.conversation.exchanges import Exchange, RecordedConnection, key_of
from natsproxy.replay.conversation.frame_text import changed_lines, frame_text
from natsproxy.replay.conversation.lesson import Lesson
from natsproxy.replay.conversation.matching import Matcher
from natsproxy.replay.conversation.recorded_conversation import RecordedConversation
from natsproxy.replay.server_playback.actions import Candidate
from natsproxy.replay.server_playback.remedies import remedy
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Op

_SHOWN: Final = 3
_COMPARED: Final = 64 << 10  # bytes of a payload whose lines are compared
_LOOKED_AT: Final = 2000  # candidates: a mismatch must not stop the traffic of the other clients
_BYTES: Final = 8 << 20  # of them
# The later the field that differs, the nearer the frame: `Matcher.differs` compares the subject first.
_ORDER: Final = {"": 0, "body": 1, "headers": 2, "reply": 3, "queue": 3, "subject": 4}


class Suggestions(NamedTuple):
    """The nearest frames.

    compared, used: how many of the same kind and subject there were and were used.  acked: a stream answered
    the nearest of them.
    """

    candidates: tuple[Candidate, ...]
    compared: int
    used: int
    acked: bool


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


def suggest(
    frame: Frame, recorded: RecordedConnection | None, conversation: RecordedConversation, matcher: Matcher
) -> Suggestions:
    """Return up to three recorded frames of the same op that are nearest to `frame`, the nearest first."""
    ranked: list[tuple[tuple[int, int, int, int, int], int, Exchange, Difference | None]] = []
    key = key_of(frame)
    compared = used = 0
    size = 0
    for exchange in _candidates(frame, conversation):
        size += exchange.frame.wire_size
        if size > _BYTES:
            break
        difference = _difference(matcher, exchange, frame)
        field = "" if difference is None else difference.field
        common = _common(exchange.frame.subject, frame.subject)
        same_kind = exchange.key == key
        compared += same_kind
        used += same_kind and exchange.matched is not None
        if field == "subject" and not common:
            continue
        elsewhere = recorded is None or exchange.conn != recorded.conn
        # A frame of another object, whose identifier is known already, is further away.
        conflict = difference is not None and bool(difference.note)
        rank = (_ORDER[field], -common, conflict + 0, elsewhere + 0, (exchange.matched is not None) + 0)
        ranked.append((rank, exchange.seq, exchange, difference))
    ranked.sort(key=lambda entry: entry[:2])
    if ranked and ranked[0][0][0] < _ORDER["subject"]:  # those of other subjects are far from it
        ranked = [entry for entry in ranked if entry[0][0] < _ORDER["subject"]]
    own = None if recorded is None else recorded.conn
    nearest = [_shown(exchange, frame, found, own) for _, _, exchange, found in ranked[:_SHOWN]]
    if nearest and nearest[0].difference is not None and nearest[0].difference.field != "subject":
        nearest[0] = replace(
            nearest[0], changed=_changed(matcher.counted(ranked[0][2].frame), matcher.counted(frame))
        )
    acked = bool(ranked) and ranked[0][2].key == key and ranked[0][2].acked
    return Suggestions(tuple(nearest), compared, used, acked)


def _changed(recorded: Frame, live: Frame) -> tuple[str, ...]:
    """Return the lines in which two frames differ, none where the first difference is the only one."""
    if max(recorded.size, live.size) > _COMPARED:
        return ()
    lines = changed_lines(frame_text(recorded), frame_text(live), alike=True)
    return tuple(lines) if sum(line[0] in "-+" for line in lines) > 2 else ()


def _difference(matcher: Matcher, exchange: Exchange, frame: Frame) -> Difference | None:
    recorded = exchange.frame
    if exchange.matched is not None and recorded.reply and frame.reply:
        # Its reply subject is another request's now: that is not what makes the two differ.
        recorded, frame = recorded._replace(reply=b""), frame._replace(reply=b"")
    return matcher.differs(recorded, frame, Lesson())


def _shown(
    exchange: Exchange, frame: Frame, difference: Difference | None, own: ConnectionId | None
) -> Candidate:
    used = exchange.matched is not None
    accepted = remedy(exchange.frame, frame, difference, used=used)
    text = None if difference is None else difference.text
    early = difference is None and not used and exchange.conn == own
    return Candidate(preview(exchange.frame), text, used, exchange.conn, accepted, early=early)


def _candidates(frame: Frame, conversation: RecordedConversation) -> list[Exchange]:
    kind, _ = key_of(frame)
    found = [one for one in conversation.used if one.key[0] == kind]
    for recorded in conversation.connections.values():
        for (other, _), queue in recorded.exchanges.items():
            if other == kind:
                found.extend(queue)
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
