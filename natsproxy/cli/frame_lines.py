"""Listed frames as lines of a terminal, for all commands that show frames to people.

A line has, as far as they fit: the time and the distance to the line before, the connection, the direction,
the op, what the frame is about and means, its size, what the proxy did with it, its headers and its payload.
Date and zone have a line of their own, where they change.  A colour means a direction, an error (red) or the
hand of the proxy (yellow).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import click
from rich.cells import cell_len

from natsproxy.capture.format.connection import ConnectionId
from natsproxy.capture.format.records import (
    CloseRecord,
    FiringRecord,
    GapRecord,
    Note,
    OpaqueRecord,
    OpenRecord,
    Preamble,
)
from natsproxy.capture.listing.listing import Event, Listed
from natsproxy.capture.listing.row import moment
from natsproxy.capture.read.frames import remarks
from natsproxy.cli.payload_lines import cut, one_line, whole
from natsproxy.printable import printable
from natsproxy.protocol.headers import parse as parse_headers
from natsproxy.protocol.meaning import INBOX, Meaning, shown, subject_text
from natsproxy.units import MILLISECOND, SECOND, short_duration, short_size
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, MESSAGE_OPS, S2C, SUBSCRIPTION_OPS, Op

_NO_TERMINAL: Final = 1_000  # columns: what reads a pipe needs whole lines
_NARROW: Final = 80  # columns below which a time is either the clock's or the distance
_WIDE: Final = 120  # columns from which a connection has its client's name
_ROOMY: Final = 160  # columns from which inboxes are written out
_NAME: Final = 12
_INDENT: Final = "    "
_ARROWS: Final = {C2S: "→", S2C: "←"}
# rich imports its table at the first text beyond ASCII; a signal that comes in an import may get lost.
cell_len(_ARROWS[C2S])
Part = tuple[str, str]
"""A text, which may come from a peer, and its style."""
_PLAIN: Final = "plain"
_STRONG: Final = "strong"
_DIM: Final = "dim"
_BAD: Final = "bad"
_OURS: Final = "ours"


def _style(**how: Any) -> tuple[str, str]:
    return click.style("", reset=False, **how), click.style("") if how else ""


_STYLES: Final = {
    C2S.label: _style(fg="green"),
    S2C.label: _style(fg="blue"),
    _PLAIN: _style(),
    _STRONG: _style(bold=True),
    _DIM: _style(dim=True),
    _BAD: _style(fg="red", bold=True),
    _OURS: _style(fg="yellow"),
}
"""The beginning and the end of a style."""


def shown_frames(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options about what is shown of frames; the command gets `payload` and `everything`."""
    payload = click.option(
        "--payload",
        type=click.Choice(["line", "whole", "none"]),
        default="line",
        show_default=True,
        help="Show the start of each payload, all of it (JSON indented, bytes as hex), or none.",
    )
    everything = click.option(
        "--all",
        "everything",
        is_flag=True,
        help="Also show keep-alives and each INFO, and subjects as on the wire.",
    )
    return payload(everything(command))


def terminal_width() -> int:
    """Return the columns of the terminal; many where there is none."""
    return shutil.get_terminal_size((_NO_TERMINAL, 0)).columns


class FramePrinter:
    """The lines of frames, in the order in which a reader gets them.

    payload: `line` for its beginning, `whole`, or `none`.  raw: subjects are as on the wire.
    """

    def __init__(self, width: int, payload: str = "line", *, raw: bool = False) -> None:
        self._width = max(width, 20)
        self._payload = payload
        self._raw = raw
        self._day = self._clock = ""
        self._label = 3  # columns of a connection; those of later runs need more
        self._second: int | None = None
        self._before: int | None = None

    def lines(self, found: Listed | Event) -> Iterator[str]:
        """Yield the lines of a frame or an event; none for an event that says nothing to people."""
        if isinstance(found, Listed):
            one = found.one
            yield from self._line(one.wall, one.conn, found.client, self._frame(found))
            if self._payload == "whole" and one.frame is not None:
                yield from _below(one.frame, self._raw)
        elif (told := _told(found)) is not None:
            yield from self._line(found.wall, found.conn, found.client, [told])

    def _line(self, wall: int, conn: ConnectionId | None, client: str, rest: list[Part]) -> Iterator[str]:
        second = wall // SECOND
        if second != self._second:
            at = moment(wall).astimezone()
            self._second, self._clock = second, f"{at:%H:%M:%S}"
            day = f"{at:%Y-%m-%d} {at.tzname()} {at.isoformat()[-6:]}"
            if day != self._day:
                self._day = day
                yield click.style(day, dim=True)
        label = "" if conn is None else f"#{conn}"
        self._label = max(self._label, len(label))
        label = f"{label:<{self._label}} "
        if self._width >= _WIDE:
            label += f"{cut(printable(client), _NAME):<{_NAME}} "
        yield self._styled([(self._when(wall), _DIM), (label, _PLAIN), *rest])

    def _when(self, wall: int) -> str:
        before, self._before = self._before, wall
        clock = f"{self._clock}.{wall % SECOND // MILLISECOND:03}"
        distance = ""
        if before is not None and before != wall:
            distance = f"{'+' if wall > before else ''}{short_duration(wall - before)}"
        if self._width >= _NARROW:
            return f"{clock} {distance:>7} "
        same = before is not None and before // SECOND == wall // SECOND
        return f"{distance if same else clock:>12} "

    def _styled(self, parts: list[Part]) -> str:
        left, found = self._width, []
        for text, style in parts:
            text = cut(printable(text[: 2 * self._width]), left)
            left -= cell_len(text)
            begin, end = _STYLES[style]
            found.append(f"{begin}{text}{end}")
            if left <= 0:
                break
        return "".join(found).rstrip()

    # -- frames

    def _frame(self, found: Listed) -> list[Part]:
        one, frame = found.one, found.one.head
        arrow, way = _ARROWS[one.direction], one.direction.label
        marks = remarks(one)
        hand = [(f"  [{'; '.join(marks)}]", _OURS)] if marks else []
        number = "" if found.exchange is None else f"({found.exchange}) "
        if frame is None:
            return [(f"{number}{arrow} ", way), ("a part of a control line", _PLAIN), *hand]
        if frame.op == Op.INFO and one.cause == "proxy":  # each INFO is changed: addresses are taken out
            hand = []
        said = found.meaning
        parts = [(f"{number}{arrow} {frame.op.label:<7} ", way), *self._about(found, frame, said)]
        told = said is not None and "body" in said.covers and not self._raw
        if frame.op in MESSAGE_OPS and not told:
            parts.append((f"  {short_size(frame.size)}", _DIM))
        parts += hand
        if self._payload == "line" and one.frame is not None and not told:
            parts += self._content(frame)
        return parts

    def _about(self, found: Listed, frame: Frame, said: Meaning | None) -> Iterator[Part]:
        """Yield what a frame is about, and means."""
        words = [self._subject(found, frame, said)]
        words += [f"queue {shown(frame.queue)}"] if frame.queue else []
        words += self._subscribed(found, frame)
        texts = [("  ".join(filter(None, words)), _PLAIN)]
        request = found.request
        # That the API answered is in the answer itself.
        if said is not None and (said.bad or said.kind != "api-reply" or request is None):
            texts.append((said.text, _BAD if said.bad else _STRONG))
        elif said is None and frame.op not in SUBSCRIPTION_OPS:
            texts.append((shown(frame.args), _PLAIN))
        if request is not None:
            after = short_duration(found.one.wall - request.wall)
            texts.append((f"answer to {subject_text(request.subject)} after {after}", _PLAIN))
        if frame.reply and (self._raw or said is None or "reply" not in said.covers):
            texts.append((f"reply {self._short(frame.reply)}", _DIM))
        texts = [part for part in texts if part[0]]
        yield from ((f"{'  ' if at else ''}{text}", style) for at, (text, style) in enumerate(texts))

    def _subscribed(self, found: Listed, frame: Frame) -> Iterator[str]:
        """Yield what the subscription of a frame adds to its subject."""
        known = found.subscription
        if frame.op in (Op.SUB, Op.UNSUB):
            if frame.op == Op.UNSUB and known is not None:
                yield self._short(known.subject)
            yield f"sid {shown(frame.sid)}"
            if frame.args:
                yield f"after {shown(frame.args)}"
        elif known is not None and not known.subject.startswith(INBOX):
            if known.queue:
                yield f"queue {shown(known.queue)}"
            elif known.subject != frame.subject:
                yield f"sub {shown(known.subject)}"

    def _subject(self, found: Listed, frame: Frame, said: Meaning | None) -> str:
        """Return the subject, unless the rest of the line says it better."""
        answer = found.request is not None and frame.subject.startswith(INBOX)
        if not self._raw and (answer or (said is not None and "subject" in said.covers)):
            return ""
        return self._short(frame.subject)

    def _short(self, subject: bytes) -> str:
        text = shown(subject)
        if self._raw or self._width >= _ROOMY or not subject.startswith(INBOX) or len(text) < 20:
            return text
        return f"{text[:6]}…{text[-6:]}"

    def _content(self, frame: Frame) -> Iterator[Part]:
        if frame.headers:
            pairs = parse_headers(frame.headers[: 8 * self._width]).pairs
            text = " · ".join(f"{shown(name)}: {shown(value)}" for name, value in pairs)
            yield (f"  {text}" if text else ""), _DIM
        if frame.op in MESSAGE_OPS and (body := frame.body):
            yield f"  {one_line(body, self._width)}", _PLAIN


def _below(frame: Frame, raw: bool) -> Iterator[str]:
    """Yield the headers and the payload of a frame.  raw: the arguments of INFO and CONNECT too."""
    for name, value in parse_headers(frame.headers).pairs:
        yield _INDENT + click.style(printable(f"{shown(name)}: {shown(value)}"), dim=True)
    if frame.op in MESSAGE_OPS:
        yield from (f"{_INDENT}{line}" for line in whole(frame.body))
    elif raw and frame.args and frame.op != Op.ERR:
        yield from (f"{_INDENT}{line}" for line in whole(frame.args))


def _told(event: Event) -> Part | None:
    item = event.item
    if isinstance(item, OpenRecord):
        to = item.info.get("upstream")
        return f"client {item.info.get('client')} connected, server {to}{_who(item.info)}", _PLAIN
    if isinstance(item, Preamble):
        opened = _opened(item)
        return f"client {opened.get('client')} was connected before{_who(opened)}", _PLAIN
    if isinstance(item, CloseRecord):
        detail = item.info.get("detail")
        return f"closed: {item.cause}{f', {detail}' if detail else ''}{_who(item.info)}", _PLAIN
    if isinstance(item, GapRecord):
        info = item.info
        return f"gap: {info.get('frames')} frames not recorded: {info.get('reason')}", _BAD
    if isinstance(item, FiringRecord) and item.info.get("ordinal") is None:
        return f"[{item.info.get('rule')}: {item.info.get('action')}]", _OURS
    if isinstance(item, OpaqueRecord):
        return f"{item.length} bytes that are no frames", _BAD
    return ("the rules have changed", _OURS) if isinstance(item, Note) else None


def _who(info: Mapping[str, object]) -> str:
    """Return who a client is, as far as a record says that."""
    titles = (("user", "user"), ("account", "account"), ("tls_subject", "certificate"))
    return "".join(f", {title} {info[key]}" for key, title in titles if info.get(key))


def _opened(item: Preamble) -> dict[str, object]:
    opened = item.info.get("open")
    return opened if isinstance(opened, dict) else {}
