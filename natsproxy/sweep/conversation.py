"""The end of a run's conversation as lines of text: the frame of the fault, and the last ones before the end.

A line has the time since the recording began, the connection, the direction, the op, what the frame is about,
and what the proxy did with it.  Everything that a peer chose is escaped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from natsproxy.capture.format.records import CloseRecord, OpenRecord
from natsproxy.capture.listing.choice import Choice, listed
from natsproxy.capture.listing.listing import Event, Listed
from natsproxy.capture.read.frames import remarks
from natsproxy.capture.read.reader import open_capture
from natsproxy.events import Firing
from natsproxy.printable import printable
from natsproxy.protocol.meaning import shown, subject_text
from natsproxy.units import SECOND, short_duration
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, MESSAGE_OPS

_LAST: Final = 40
_WIDTH: Final = 120
_ARROWS: Final = {C2S: "→"}
_FROM_SERVER: Final = "←"
_FAULT: Final = "  ◀ the fault"


def conversation(path: Path, firings: Collection[Firing] = (), last: int = _LAST) -> str:
    """Return the last lines of a recording, and the frame of a fault if it came before them.

    Raises CaptureError where the recording cannot be read.
    """
    hit = {(one.conn, one.direction, one.ordinal) for one in firings if one.acted}
    shown_last: deque[tuple[bool, str]] = deque(maxlen=last)
    first: tuple[int, str] | None = None
    count, begin = 0, None
    for found in listed(open_capture(path), Choice()):
        wall = found.one.wall if isinstance(found, Listed) else found.wall
        begin = wall if begin is None else begin
        text = _text(found)
        if not text:
            continue
        count += 1
        struck = isinstance(found, Listed) and _place(found) in hit
        line = f"{(wall - begin) / SECOND:10.4f}  {text}" + (_FAULT if struck else "")
        if struck and first is None:
            first = count, line
        shown_last.append((struck, line))
    return "\n".join(_with_gap(count, first, [line for _, line in shown_last])) + "\n"


def _with_gap(count: int, first: tuple[int, str] | None, lines: list[str]) -> Iterator[str]:
    left_out = count - len(lines)
    if first is not None and first[0] <= left_out:
        yield first[1]
        left_out -= first[0]
    if left_out:
        yield f"… {left_out} lines"
    yield from lines


def _place(found: Listed) -> tuple[int, str, int | None]:
    return found.one.conn.number, found.one.direction.label, found.one.in_ordinal


def _text(found: Listed | Event) -> str:
    return printable(_frame(found) if isinstance(found, Listed) else _event(found))


def _event(event: Event) -> str:
    item = event.item
    label = f"#{event.conn}  {event.client}".rstrip()
    if isinstance(item, OpenRecord):
        return f"{label}  connected"
    if isinstance(item, CloseRecord):
        detail = item.info.get("detail")
        return f"{label}  closed: {item.cause}{f', {detail}' if detail else ''}"
    return ""


def _frame(found: Listed) -> str:
    one = found.one
    frame, arrow = one.head, _ARROWS.get(one.direction, _FROM_SERVER)
    parts = [f"#{one.conn}", found.client, arrow]
    if frame is None:
        return "  ".join([*filter(None, parts), "a part of a control line"])
    about = " ".join(filter(None, _about(found, frame)))
    marks = f"  [{'; '.join(remarks(one))}]" if remarks(one) else ""
    return f"{'  '.join(filter(None, parts))} {frame.op.label:<5} {_cut(about)}".rstrip() + marks


def _cut(text: str) -> str:
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]}…"


def _about(found: Listed, frame: Frame) -> Iterator[str]:
    said = found.meaning
    if said is None or "subject" not in said.covers:
        yield shown(frame.subject)
    if frame.sid and frame.op not in MESSAGE_OPS:
        yield f"sid {shown(frame.sid)}"
    if said is not None:
        yield said.text
    if found.request is not None:
        yield f"(answer to {subject_text(found.request.subject)} after "
        yield f"{short_duration(found.one.wall - found.request.wall)})"
    if frame.reply and (said is None or "reply" not in said.covers):
        yield f"reply {shown(frame.reply)}"
    if frame.op in MESSAGE_OPS and (said is None or "body" not in said.covers):
        yield shown(frame.body[:_WIDTH])
