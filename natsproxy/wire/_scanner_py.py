"""The scanner in pure Python, with the guarantees of `wire/scanner.py`.

Strategy.  One regular expression per direction takes message frames with an ordinary control line (the fast
path); `grammar.py` reads all other frames (the general path).  `next()` walks frames until somebody
wants one, and returns the frames before it as a run.  `_input_py.py` keeps unfinished input.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, MutableMapping
from typing import ClassVar

from natsproxy.wire import awaited
from natsproxy.wire._input_py import Input
from natsproxy.wire._interest_py import Interest
from natsproxy.wire.frames import NO_LIMIT, Body, Frame, FramingFault, Malformed, Need, Opaque, Run, Segment
from natsproxy.wire.grammar import (
    NO_TERMINATOR,
    NeedBytes,
    NotFramed,
    UnknownServerOp,
    payload_end,
    read_control_line,
    streamed_payload,
)
from natsproxy.wire.ops import C2S, MESSAGE_OPS, OPS, Direction, Op

S2C_LINE_LIMIT = 1 << 20

_FAST_C2S = re.compile(
    rb"[Pp][Uu][Bb][ \t]+([^ \t\r\n]+)[ \t]+(?:([^ \t\r\n]+)[ \t]+)?([0-9]{1,9})[ \t]*\r?\n"
)
_FAST_S2C = re.compile(
    rb"[Mm][Ss][Gg][ \t]+([^ \t\r\n]+)[ \t]+([^ \t\r\n]+)[ \t]+"
    rb"(?:([^ \t\r\n]+)[ \t]+)?([0-9]{1,9})[ \t]*\r?\n"
)
_SUBSCRIPTION = re.compile(
    rb"[Ss][Uu][Bb][ \t]+([^ \t\r\n]+)[ \t]+(?:([^ \t\r\n]+)[ \t]+)?([^ \t\r\n]+)[ \t]*\r?\n"
    rb"|[Uu][Nn][Ss][Uu][Bb][ \t]+([^ \t\r\n]+)[ \t]*\r?\n"
)
_SYSTEM = b"$SYS."


class Scanner(Input):
    """The scanner of one direction of one connection.

    Table: the class of the tables that it reads for each frame; the compiled twin has its own.
    """

    Table: ClassVar[type[MutableMapping[bytes, int]]] = dict

    def __init__(
        self,
        direction: Direction,
        interest: Interest,
        *,
        line_limit: int = 4096,
        hold: int = 65536,
        buffer_limit: int = 8 << 20,
    ) -> None:
        super().__init__(line_limit if direction == C2S else S2C_LINE_LIMIT, hold, buffer_limit)
        self.direction = direction
        self.interest = interest
        self.watch_ops = 0
        self.watch_sids = self.Table()
        self.watch_subjects = self.Table()
        self.max_payload = 0
        self.counts = [0] * len(OPS)
        self.tallies = self.Table()
        self.awaited: MutableMapping[bytes, int] | None = None
        self.meter: awaited.Meter | None = None
        self.most = NO_LIMIT
        self.odd = False
        self.ordinal = 0
        self._missing = 0
        self._opaque = False
        self._queued: Frame | None = None

    @property
    def mid_frame(self) -> bool:
        """True after a `Frame` whose `Body` is not complete."""
        return self._missing > 0

    @property
    def idle(self) -> bool:
        """True if it is between two frames and holds no bytes."""
        return self._pos == len(self._buf) and not (
            self._missing or self._chunks or self._ahead or self._queued or self._dead or self._opaque
        )

    @property
    def lacking(self) -> int:
        """The bytes that an unfinished frame still lacks, its CRLF included; 0 if that is not known."""
        if self._missing or self._want_line or self.idle:
            return self._missing
        return max(0, self._want - self.held)

    @property
    def line_limit(self) -> int:
        """The longest control line allowed, in bytes."""
        return self._limit

    def skip(self, frames: int, size: int, ops: Iterable[tuple[int, int]]) -> None:
        """Count frames that bypassed it while it was idle: their number, bytes, and how many of each op."""
        self.ordinal += frames
        self._base += size
        for op, count in ops:
            self.counts[op] += count

    def skip_into(self, missing: int) -> None:
        """Continue in the payload of the last frame that bypassed it: `missing` bytes follow as `Body`."""
        self._missing = missing

    def next(self) -> Segment | None:
        """Return the next segment, or None when more bytes are needed."""
        segment = self._next()
        while segment is None and self._ahead and not self._dead:
            self._go_ahead()
            segment = self._next()
        return segment

    def _next(self) -> Segment | None:
        if self._queued is not None:
            frame, self._queued = self._queued, None
            return self._take(frame)
        if self._dead or self._chunks:
            return None
        if self._pos == len(self._buf):
            self._let_go()
            return None
        if self._opaque:
            start, self._pos = self._pos, len(self._buf)
            return Opaque(self._buf, start, self._pos)
        if self._missing:
            return self._body()
        return self._walk()

    def more(self, most: int) -> list[Frame]:
        """Return the whole message frames that follow at once and are wanted, `most` at most."""
        found: list[Frame] = []
        if self._queued is None and not (self._dead or self._chunks or self._opaque or self._missing):
            self._pos = self._wanted(self._pos, found, min(most, self.most))
            self.ordinal += len(found)
        return found

    def subscriptions(self, most: int) -> tuple[Run, list[tuple[bytes, bytes, bytes]]] | None:
        """Return the plain SUBs and UNSUBs that follow at once, `most` at most, as a run and one by one."""
        if self._queued is not None or self._dead or self._chunks or self._opaque or self._missing:
            return None
        found: list[tuple[bytes, bytes, bytes]] = []
        start = self._pos
        self._pos = self._lines(start, found, min(most, self.most))
        if not found:
            return None
        ended = sum(not subject for _, subject, _ in found)
        self.counts[Op.SUB] += len(found) - ended
        self.counts[Op.UNSUB] += ended
        self.ordinal += len(found)
        ops = (Op.SUB.bit if ended < len(found) else 0) | (Op.UNSUB.bit if ended else 0)
        return Run(self._buf, start, self._pos, len(found), ops), found

    def _lines(self, at: int, into: list[tuple[bytes, bytes, bytes]], most: int) -> int:
        """Put sid, subject (`b""` for an UNSUB) and queue of plain lines into a list; return the end."""
        buf, limit, match = self._buf, self._limit, _SUBSCRIPTION.match
        while len(into) < most:
            found = match(buf, at)
            if found is None or found.end() - at > limit:
                break
            subject, queue, sid, ended = found.groups(b"")
            if subject.startswith(_SYSTEM):
                break
            into.append((sid or ended, subject, queue))
            at = found.end()
        return at

    def untake(self, frames: list[Frame]) -> None:
        """Take back the last frames of `more`, which nobody has handled."""
        counted = frames if self._queued is None else [self._queued]  # never both
        self._queued = None
        if frames:
            self._pos = frames[0].start
            self.ordinal -= len(frames)
        for frame in counted:
            self.counts[frame.op] -= 1
            if frame.sid in self.tallies and frame.op in MESSAGE_OPS and not frame.no_responders:
                self.tallies[frame.sid] -= 1

    def _take(self, frame: Frame) -> Frame:
        self._pos = frame.end
        self._missing = frame.missing
        self.ordinal += 1
        return frame

    def _walk(self) -> Segment | None:
        buf, start = self._buf, self._pos
        at, frames, ops, wanted = self._fast(start, self.most)
        stop: Malformed | Opaque | None = None
        while wanted is None and at < len(buf) and frames < self.most:
            try:
                frame, want = self._frame(at)
            except NeedBytes as need:
                self._want, self._want_line = need.size, need.line
                break
            except NotFramed as no:
                offset = self._base + no.end - 1
                stop = Malformed(buf, no.start, no.end, no.fault, no.reason, offset)
                break
            except UnknownServerOp:
                stop = Opaque(buf, at, len(buf))
                break
            if want:
                wanted = frame
                break
            more_at, more, more_ops, wanted = self._fast(frame.end, self.most - frames - 1)
            frames += 1 + more
            ops |= 1 << frame.op | more_ops
            at = more_at
        if frames:
            self._pos = at
            self.ordinal += frames
            self._queued = wanted
            return Run(buf, start, at, frames, ops)
        if wanted is not None:
            return self._take(wanted)
        if isinstance(stop, Malformed):
            self._dead = True
            self._pos = stop.start
        elif stop is not None:
            self._opaque = True
            self._pos = stop.end
        return stop

    def _fast(self, at: int, most: int) -> tuple[int, int, int, Frame | None]:
        """Pass over whole ordinary message frames from `at` on, `most` at most, as far as nobody wants them.

        Returns the place where it stopped, the number of frames and the ops that it passed, and the wanted
        frame if it knows one.  It leaves every other frame to `_frame`.
        """
        buf, frames, length, limit = self._buf, 0, len(self._buf), self._limit
        fast = (_FAST_S2C if self.direction else _FAST_C2S).match
        op, size_group = (Op.MSG, 4) if self.direction else (Op.PUB, 3)
        interest = self.interest
        blind = not (interest.wants(op) or self.watch_subjects or self.watch_sids or self.watch_ops >> op & 1)
        while at < length and frames < most:
            match = fast(buf, at)
            if match is None or match.end() - at > limit:
                break
            end = match.end() + int(match[size_group]) + 2
            if end > length or buf[end - 2 : end] != b"\r\n":
                break
            self.odd |= buf.startswith(_SYSTEM, match.start(1))
            if not blind and (interest.need(op, match[1]) or self._watched(op, match[1], match[2])):
                break
            if self.tallies and match[2] in self.tallies:
                self.tallies[match[2]] += 1
            if self.awaited is not None:
                awaited.update(self.awaited, self.direction, match[1], match[2], self.meter)
            frames += 1
            at = end
        self.counts[op] += frames
        return at, frames, 1 << op if frames else 0, None

    def _wanted(self, at: int, into: list[Frame], most: int) -> int:
        """Put whole ordinary frames from `at` on into a list while they are wanted; return the end."""
        buf, length, limit = self._buf, len(self._buf), self._limit
        fast = (_FAST_S2C if self.direction else _FAST_C2S).match
        op = Op.MSG if self.direction else Op.PUB
        while at < length and len(into) < most:
            match = fast(buf, at)
            if match is None or match.end() - at > limit:
                break
            subject, *sids, reply, size = match.groups(b"")
            sid = sids[0] if sids else b""
            end = match.end() + int(size) + 2
            if end > length or buf[end - 2 : end] != b"\r\n":
                break
            self.odd |= subject.startswith(_SYSTEM)
            if not (self.interest.need(op, subject) or self._watched(op, subject, sid)):
                break
            if 0 < self.max_payload < int(size):
                break
            if sid in self.tallies:
                self.tallies[sid] += 1
            if self.awaited is not None:
                awaited.update(self.awaited, self.direction, subject, reply, self.meter)
            self.counts[op] += 1
            into.append(Frame(buf, at, end, match.end(), op, subject, reply, sid, size=int(size)))
            at = end
        return at

    def _watched(self, op: Op, subject: bytes, sid: bytes) -> int:
        if self.watch_ops >> op & 1:
            return Need.LINE
        need = self.watch_subjects.get(subject, Need.NONE) if self.watch_subjects else Need.NONE
        if self.direction and self.watch_sids:
            need = max(need, self.watch_sids.get(sid, Need.NONE))
        return need

    # -- the general path: one frame of any shape

    def _frame(self, start: int) -> tuple[Frame, bool]:
        """Return the frame at `start` and whether it is to be returned as one.

        Raises what `grammar` raises for bytes that are not a frame, or not yet one.
        """
        spec, line_end, fields, stray = read_control_line(self._buf, start, self.direction, self._limit)
        subject, sid = fields.get("subject", b""), fields.get("sid", b"")
        self.odd |= stray or subject.startswith(_SYSTEM)
        size, header_size = int(fields.get("size", b"0")), int(fields.get("header_size", b"0"))
        if header_size > size:
            reason = "the header size is larger than the total size"
            raise NotFramed(start, line_end, FramingFault.SILENT, reason)
        need = max(self.interest.need(spec.op, subject), self._watched(spec.op, subject, sid))
        end, missing, short = line_end, 0, False
        if spec.payload:
            end, missing, short = self._extent(start, line_end, header_size, size, need)
        self.counts[spec.op] += 1
        frame = Frame(
            self._buf,
            start,
            end,
            line_end,
            spec.op,
            subject,
            fields.get("reply", b""),
            sid,
            fields.get("queue", b""),
            fields.get("args", b""),
            header_size,
            size,
            missing,
            short,
        )
        if sid in self.tallies and spec.payload and not frame.no_responders:
            self.tallies[sid] += 1
        if self.awaited is not None and spec.payload:
            reply, lost = frame.reply, frame.no_responders
            awaited.update(self.awaited, self.direction, subject, reply, self.meter, no_responders=lost)
        return frame, bool(need) or missing > 0

    def _extent(self, start: int, line_end: int, head: int, size: int, need: int) -> tuple[int, int, bool]:
        """Return the end of the frame's bytes, the number that is missing, and whether too few have come."""
        # The receiver closes as soon as it reads such a control line: no use in waiting for the payload.
        if 0 < self.max_payload < size:
            return line_end, size + 2, need > Need.LINE
        length, end = len(self._buf), payload_end(self._buf, start, line_end, size)
        if end <= length:
            return end, 0, False
        if end <= length + len(self._ahead) - self._ahead_at:
            raise NeedBytes(end - start)
        ends: dict[int, int] = {Need.HEADERS: line_end + head, Need.PAYLOAD: end}
        required = ends.get(need, line_end)
        if end - start <= self.hold or (required > length and required - start <= self.buffer_limit):
            raise NeedBytes((end if end - start <= self.hold else required) - start)
        # Never end inside the terminator: Body checks it.
        here = min(length, end - 2)
        return here, end - here, required > length

    def _body(self) -> Segment:
        buf, start = self._buf, self._pos
        at, left = streamed_payload(buf, start, self._missing)
        if at == start:
            self._dead = True
            self._missing = 0
            return Malformed(buf, at, at + 1, FramingFault.TERMINATOR, NO_TERMINATOR, self._base + at, True)
        self._pos = at
        self._missing = left
        return Body(buf, start, at, left == 0)
