"""Redaction of recorded frames: secrets are removed before a record reaches a disk.

Theory
1. Every record of a connection goes through its `Secrets`, captures and taps alike.  It cannot be turned off.
2. CONNECT and INFO are redacted by key (`protocol/redaction.py`), or withheld whole where they do not parse.
   Bytes after PING, PONG and +OK are withheld: a server ignores them, and a client may put anything there.
3. Payloads of auth callout are withheld: the requests on `$SYS.REQ.USER.AUTH`, from any sender, their
   answers, and both under any subject that a rule gives them on the other leg.  Pending answers are tracked
   even while nothing records, so a capture may begin between the two (`look`).  A connection with more than
   `MOST` unanswered callouts has all of its later payloads withheld.
4. A record that the end of a connection cut has no op mask, so its bytes are read: the possible beginning of
   a CONNECT or an INFO is withheld, and so are bytes that cannot be framed.  Only bytes known not to be
   secret are kept.
5. Redaction costs a pass over the frames of a record.  `needs_look` tells where it can be skipped: the
   session's scanner has seen every frame already, and the op mask says whether a secret op was among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from natsproxy.capture.format.records import Flags, Frames
from natsproxy.protocol.connect import redact_connect
from natsproxy.protocol.info import redact_info
from natsproxy.wire.frames import NO_LIMIT, Body, Frame, Need, Run, Segment
from natsproxy.wire.interest import Clause
from natsproxy.wire.ops import MESSAGE_OPS, OPS, Direction, Op, op_mask
from natsproxy.wire.parse import head
from natsproxy.wire.scanner import Interest, Scanner, byte_table

SECRET_OPS: Final = op_mask(Op.CONNECT, Op.INFO)
CALLOUT: Final = b"$SYS.REQ.USER.AUTH"
SERVER_INBOX: Final = b"$SYS._INBOX."
WITHHELD: Final = "withheld"
_SYSTEM: Final = b"$SYS."
_LINE: Final = 4096  # first bytes of a changed frame, searched for its subject
_BARE: Final = op_mask(*(spec.op for spec in OPS if spec.gap == "ignored"))
MOST: Final = 4096
"""The most pending answers to callouts that are tracked per connection."""
_LOOK: Final = Interest(
    (
        Clause(SECRET_OPS | _BARE),
        Clause(op_mask(*MESSAGE_OPS), Need.LINE, (CALLOUT, SERVER_INBOX + b">")),
    )
)
_EACH: Final = Interest((Clause(SECRET_OPS | _BARE | op_mask(*MESSAGE_OPS)),))
_LINES: Final = Interest((Clause(op_mask(*Op)),))
_TOKENS: Final = tuple(
    tuple(spec for spec in OPS if (spec.from_server if way else spec.from_client)) for way in Direction
)


class Secrets:
    """The secrets of one connection: `clean` takes them out of its records.

    alert: True once frames that look harmless may be secret, because of frames seen before.
    renamed: returns the subject to which rules would map a client's publish, None where it is random.
    """

    __slots__ = ("_answered", "_answers", "_overflowed", "alert", "renamed")

    def __init__(self) -> None:
        self.alert = False
        self.renamed: Callable[[bytes], bytes | None] = _kept
        self._answers = byte_table()  # reply subjects of callouts
        self._answered: set[bytes] = set()  # those already answered
        self._overflowed = False

    # -- frames as received, recorded or not

    def look(self, direction: Direction, segments: Iterable[Segment]) -> None:
        """Note the callouts and answers among received frames."""
        for segment in segments:
            if isinstance(segment, Frame):
                self._note(segment)
            if not isinstance(segment, Run):
                continue
            scanner = _scanner(direction, _LOOK)
            scanner.watch_subjects = self._answers
            scanner.feed(segment.buffer[segment.start : segment.end])
            while (found := scanner.next()) is not None:
                if isinstance(found, Frame):
                    self._note(found)

    def changed(self, direction: Direction, forms: Iterable[bytes]) -> bool:
        """Note that a frame is forwarded in other forms; return whether one is secret: then all are."""
        raws = list(forms)
        # A search in the first bytes decides on nearly every rewrite: parsing costs far more.
        if not self.alert and all(raw.find(_SYSTEM, 0, _LINE) < 0 for raw in raws):
            return False
        found = [frame for raw in raws if (frame := head(raw, direction)) is not None]
        if not any(map(self._is_secret, found)):
            return False
        for frame in found:
            self._note(frame, secret=True)
        return True

    def _note(self, frame: Frame, *, secret: bool = False) -> None:
        """Note the answer that a frame asks for, or is."""
        if self._overflowed or frame.op not in MESSAGE_OPS or not (secret or self._is_secret(frame)):
            return
        if frame.subject in self._answers:
            self._answered.add(frame.subject)
        if frame.reply:
            self.alert = True
            self._answered.discard(frame.reply)
            if len(self._answers) < MOST or frame.reply in self._answers:
                self._answers[frame.reply] = Need.LINE
            else:
                self._overflowed = True  # any later frame may be an answer that is not tracked

    def forget_answered(self) -> None:
        """Forget answered callouts if many are known; call when no received frame waits to be recorded."""
        # Not at once: a request that was delivered twice has two answers.
        if len(self._answers) > MOST // 2:
            for subject in self._answered:
                del self._answers[subject]
            self._answered.clear()

    def close(self) -> None:
        """Break the reference cycle between rules and connection; call last."""
        self.renamed = _kept

    # -- records

    def clean(self, record: Frames, *, secret: bool = False) -> Iterator[Frames]:
        """Yield a record without its secrets, in parts where payloads are withheld.

        secret: another form of its frame is one (see `changed`).
        """
        if not record.ops:  # the connection ended inside a frame, so the op is unknown
            yield self._cut_off(record, secret)
            return
        if record.flags or secret:
            begun = head(bytes(record.data), record.direction)
            yield _unframed(record, 0) if begun is None else self._one(record, begun, secret)
            return
        scanner = _scanner(record.direction, _EACH if self._overflowed else _LOOK)
        scanner.watch_subjects = self._answers
        for piece, frame in pieces(record, scanner):
            yield piece if frame is None else self._one(piece, frame)

    def _one(self, record: Frames, frame: Frame, secret: bool = False) -> Frames:
        """Return the record of one frame without its secrets."""
        if frame.op in MESSAGE_OPS:
            if not (secret or self._is_secret(frame)):
                return record
            return without_payload(record, frame, WITHHELD)
        clean = _line(frame)
        if clean == frame.raw:
            return record
        return record._replace(data=clean, flags=record.flags | Flags.REDACTED)

    def _is_secret(self, frame: Frame) -> bool:
        subject = frame.subject
        return (
            self._overflowed
            or subject == CALLOUT
            or subject.startswith(SERVER_INBOX)
            or subject in self._answers
        )

    def _would_be(self, frame: Frame) -> bool:
        """Tell whether a frame would be secret if it were whole: rules see only those that are."""
        if frame.op not in (Op.PUB, Op.HPUB):
            return False
        subject = self.renamed(frame.subject)
        return subject is None or self._is_secret(frame._replace(subject=subject))

    def _cut_off(self, record: Frames, secret: bool) -> Frames:
        """Return a record that holds no whole frame, or more than one, without its secrets."""
        data = bytes(record.data)
        begun = head(data, record.direction)
        if (
            begun is not None
            and begun.op in MESSAGE_OPS
            and (secret or self._is_secret(begun) or self._would_be(begun))
        ):
            return without_payload(record, begun, WITHHELD)
        clean = redact_frames(data, record.direction, self._is_secret)
        if clean == data:
            return record
        return record._replace(data=clean, flags=record.flags | Flags.REDACTED)


def _kept(subject: bytes) -> bytes:
    return subject


def redact_frames(data: bytes, direction: Direction, secret: Callable[[Frame], bool] | None = None) -> bytes:
    """Return frames, the last of which may be cut, without their secrets.

    secret: tells whether the payload of a message frame is one; then it is withheld with all bytes after it.
    Bytes that are not a frame, or may become a CONNECT or an INFO, are withheld too.
    """
    kept: list[bytes] = []
    scanner = Scanner(direction, _LINES, line_limit=1 << 20, hold=0, buffer_limit=0)
    scanner.feed(data)
    read = 0
    while (segment := scanner.next()) is not None:
        if isinstance(segment, Body):
            kept.append(segment.buffer[segment.start : segment.end])
        elif not isinstance(segment, Frame):
            return b"".join((*kept, _marker(len(data) - read)))
        elif segment.op in MESSAGE_OPS and secret is not None and secret(segment):
            return b"".join((*kept, segment.line, segment.headers))
        else:
            kept.append(_line(segment))
        read = scanner.offset
    kept.append(_unfinished(data[read:], direction))
    return b"".join(kept)


def _line(frame: Frame) -> bytes:
    """Return a frame without the secrets of its control line."""
    if frame.op == Op.CONNECT:
        return _with_args(frame, redact_connect(frame.args))
    if frame.op == Op.INFO:
        return _with_args(frame, redact_info(frame.args))
    raw = frame.raw
    if not _BARE >> frame.op & 1:
        return raw
    tail = len(OPS[frame.op].token)
    stray = raw[tail:].strip(b" \t\r\n")
    return raw[:tail] + b" " + _marker(len(stray)) + b"\r\n" if stray else raw


def _with_args(frame: Frame, args: bytes) -> bytes:
    raw = frame.raw
    end = len(raw.rstrip(b" \t\r\n"))
    return raw[: end - len(frame.args)] + args + raw[end:] if frame.args else raw


def _unfinished(rest: bytes, direction: Direction) -> bytes:
    """Return the part of an unfinished control line that is known not to be secret."""
    if any(spec.token.startswith(rest.upper()) for spec in _TOKENS[direction]):
        return rest  # nothing but letters of an op
    for spec in _TOKENS[direction]:
        op, args = rest[: len(spec.token)], rest[len(spec.token) :]
        if op.upper() == spec.token:
            if 1 << spec.op & (SECRET_OPS | _BARE):
                return op + b" " + _marker(len(args))
            if args.startswith((b" ", b"\t")):
                return rest
    return _marker(len(rest))


def _marker(length: int) -> bytes:
    return b'"[withheld: %d bytes]"' % length


# -- records in parts


def needs_look(record: Frames) -> bool:
    """Tell whether a record may hold secrets that the scanner did not report."""
    return bool(record.flags or record.ops & SECRET_OPS or not record.ops)


def _scanner(direction: Direction, interest: Interest) -> Scanner:
    return Scanner(direction, interest, line_limit=1 << 20, hold=NO_LIMIT, buffer_limit=NO_LIMIT)


def pieces(record: Frames, scanner: Scanner) -> Iterator[tuple[Frames, Frame | None]]:
    """Yield a record of whole frames in parts: runs, and single frames of interest to the scanner.

    Bytes that cannot be framed become a record of their length.
    """
    data = bytes(record.data)
    scanner.feed(data)
    first = read = 0
    while (segment := scanner.next()) is not None:
        if isinstance(segment, Run):
            yield _part(record, data, segment, segment.frames, segment.ops, first), None
        elif isinstance(segment, Frame):
            yield _part(record, data, segment, 1, 1 << segment.op, first), segment
        else:
            break
        first, read = scanner.ordinal, scanner.offset
    if read < len(data):
        yield _unframed(record, first, len(data) - read), None


def _part(record: Frames, data: bytes, where: Run | Frame, frames: int, ops: int, first: int) -> Frames:
    if frames == record.frames:
        return record
    part = _numbered(record, first)
    return part._replace(data=data[where.start : where.end], frames=frames, ops=ops)


def _unframed(record: Frames, first: int, length: int | None = None) -> Frames:
    extra = {**(record.extra or {}), "size": len(record.data) if length is None else length}
    flags = record.flags | Flags.TRUNCATED | Flags.REDACTED
    return _numbered(record, first)._replace(data=b"", frames=1, ops=0, flags=flags, extra=extra)


def _numbered(record: Frames, first: int) -> Frames:
    """Return a record with its ordinals moved up."""
    return record._replace(
        in_first=None if record.in_first is None else record.in_first + first,
        out_first=None if record.out_first is None else record.out_first + first,
    )


def without_payload(record: Frames, frame: Frame, policy: str, kept: bytes = b"", **facts: object) -> Frames:
    """Return the record of `frame` with no more of its payload than `kept`, and the name of the policy."""
    extra: dict[str, Any] = {**(record.extra or {}), "policy": policy, **facts}
    data = frame.line + frame.headers + kept
    return record._replace(data=data, flags=record.flags | Flags.PAYLOAD, extra=extra)
