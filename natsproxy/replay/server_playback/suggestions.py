"""Suggestions for a mismatch: the recorded frames that come nearest to a live one."""

from __future__ import annotations

from typing import Final

from natsproxy.replay.conversation.exchanges import Exchange, RecordedConnection, RecordedConversation
from natsproxy.replay.conversation.identifier_map import Lesson
from natsproxy.replay.conversation.matching import Matcher
from natsproxy.replay.server_playback.actions import Candidate
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Op

_SHOWN: Final = 3
_LOOKED_AT: Final = 2000  # candidates: a mismatch must not stop the traffic of the other clients
# The later the field that differs, the nearer the frame: `Matcher.differs` compares the subject first.
_ORDER: Final = {"": 0, "body": 1, "headers": 2, "reply": 3, "queue": 3, "subject": 4}


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
) -> tuple[Candidate, ...]:
    """Return up to three recorded frames of the same op that are nearest to `frame`, the nearest first."""
    ranked: list[tuple[tuple[int, int, int], int, Candidate]] = []
    for exchange in _candidates(frame, conversation):
        difference = matcher.differs(exchange.frame, frame, Lesson())
        field = "" if difference is None else difference.field
        common = _common(exchange.frame.subject, frame.subject)
        if field == "subject" and not common:
            continue
        elsewhere = recorded is None or exchange.conn != recorded.conn
        used = exchange.matched is not None
        rank = (_ORDER[field], -common, elsewhere + 0)
        shown = Candidate(preview(exchange.frame), difference, used, exchange.conn)
        ranked.append((rank, exchange.seq, shown))
    ranked.sort(key=lambda entry: entry[:2])
    return tuple(candidate for _, _, candidate in ranked[:_SHOWN])


def _candidates(frame: Frame, conversation: RecordedConversation) -> list[Exchange]:
    # PUB and HPUB are one kind here: a frame that lost its headers is a near one.
    op = {Op.HPUB: Op.PUB}.get(frame.op, frame.op)
    found: list[Exchange] = [
        x for x in conversation.used if {Op.HPUB: Op.PUB}.get(x.frame.op, x.frame.op) == op
    ]
    for recorded in conversation.connections.values():
        for (kind, _), queue in recorded.exchanges.items():
            if {Op.HPUB: Op.PUB}.get(kind, kind) == op:
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
