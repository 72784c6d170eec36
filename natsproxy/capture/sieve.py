"""What of the traffic is written down: secrets are withheld always, the rest by the user's selection.

A record of many frames is cut only where something is to be left out: one scan with an interest in just
those frames finds them, and what lies between stays one slice.  Ordinals keep their numbers, so a reader
sees where frames were left out; the segment header says why (`Selection.described`).

Secrets (not a setting): those of CONNECT and INFO (`capture/redact.py`), and the payloads of auth callout:
what the server asks on `$SYS.REQ.USER.AUTH`, whatever a rule renames it to, and what is answered.

Selection.  Opens, ends, firings and greetings (INFO, CONNECT) of all connections are kept.  Frames without a
subject are kept for the connections that are selected, SUBs where they overlap with a selected subject.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final

from natsproxy.capture.records import Close, Flags, Frames, Item, Open, Preamble
from natsproxy.capture.redact import SECRET_OPS, redacted
from natsproxy.errors import ConfigError
from natsproxy.protocol.connect import Connect, parse_connect
from natsproxy.protocol.patternset import PatternSet
from natsproxy.protocol.subjects import collide, is_valid_subscribe
from natsproxy.wire.frames import Frame, Need, Run
from natsproxy.wire.interest import Clause
from natsproxy.wire.ops import C2S, MESSAGE_OPS, Direction, Op, op_mask
from natsproxy.wire.parse import frames, head
from natsproxy.wire.scanner import Interest, Scanner

CALLOUT: Final = b"$SYS.REQ.USER.AUTH"
SERVER_INBOX: Final = b"$SYS._INBOX.>"
MESSAGES: Final = op_mask(*MESSAGE_OPS)
_GREETING: Final = op_mask(Op.INFO, Op.CONNECT)
_REPLIES_MAX = 4096  # callouts of one connection that wait for their answer
_NO_LIMIT = 1 << 30
_ACTIONS = ("keep", "hash", "truncate", "drop")
WITHHELD: Final = "withheld"


@dataclass(frozen=True, slots=True)
class PayloadPolicy:
    """What is kept of the payloads of one subject pattern; headers are always kept.

    action: "keep", "hash" (its SHA-256), "truncate" (its first `keep` bytes) or "drop".
    """

    pattern: bytes
    action: str
    keep: int = 0

    @classmethod
    def parse(cls, text: str) -> PayloadPolicy:
        """Read `SUBJECT=keep|hash|drop|truncate:BYTES`.  Raises ConfigError."""
        subject, equals, what = text.rpartition("=")
        action, _, size = what.partition(":")
        if not equals or not is_valid_subscribe(subject.encode()):
            raise ConfigError(f"{text!r} is not SUBJECT=ACTION, as in orders.>=hash")
        if action not in _ACTIONS or (action == "truncate") != size.isdigit():
            raise ConfigError(f"{text!r}: the action is keep, hash, drop or truncate:BYTES")
        return cls(subject.encode(), action, int(size or 0))

    def __str__(self) -> str:
        size = f":{self.keep}" if self.action == "truncate" else ""
        return f"{self.pattern.decode()}={self.action}{size}"


@dataclass(frozen=True, slots=True)
class Selection:
    """What the user wants recorded; empty: everything.

    connections: patterns with `*` and `?` on the client's name, or `user:PATTERN`, `address:PATTERN`.
    subjects: NATS patterns.  payloads: the first policy that matches a subject counts.
    """

    connections: tuple[str, ...] = ()
    subjects: tuple[bytes, ...] = ()
    payloads: tuple[PayloadPolicy, ...] = ()

    def __post_init__(self) -> None:
        for subject in self.subjects:
            if not is_valid_subscribe(subject):
                raise ConfigError(f"{subject.decode(errors='replace')!r} is not a valid subject pattern")

    def described(self) -> dict[str, Any]:
        """Return it as the segment header has it."""
        return {
            "connections": list(self.connections),
            "subjects": [subject.decode() for subject in self.subjects],
            "payloads": [str(policy) for policy in self.payloads],
        }

    def wants(self, connect: Connect, address: str) -> bool:
        """Whether a connection is selected."""
        known = {"name": connect.name, "user": connect.user, "address": address}
        for pattern in self.connections:
            what, colon, rest = pattern.partition(":")
            if not (colon and what in known):
                what, rest = "name", pattern
            if fnmatchcase(known[what], rest):
                return True
        return not self.connections


@dataclass(slots=True)
class _Callout:
    """A connection that answers auth callouts: the sids they come on, and the replies they wait for."""

    sids: dict[bytes, Need] = field(default_factory=dict)
    replies: dict[bytes, Need] = field(default_factory=dict)


class Sieve:
    """Sifts the items of one capture, in order.  It keeps state for the connections that are open only."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._unwanted: set[int] = set()
        self._addresses: dict[int, str] = {}
        self._callouts: dict[int, _Callout] = {}
        self._policies: PatternSet[PayloadPolicy] = PatternSet((p.pattern, p) for p in selection.payloads)
        self._subjects: PatternSet[None] = PatternSet((subject, None) for subject in selection.subjects)
        clauses = []
        if selection.subjects:
            clauses.append(Clause(MESSAGES | Op.SUB.bit, Need.LINE, None, selection.subjects))
        cut = tuple(policy.pattern for policy in selection.payloads if policy.action != "keep")
        if cut:
            clauses.append(Clause(MESSAGES, Need.LINE, cut))
        self._plain = Interest(tuple(clauses))
        secret = Clause(MESSAGES, Need.LINE, (CALLOUT, SERVER_INBOX))
        self._guarded = Interest((*clauses, secret))
        self.cuts = bool(clauses)  # it may look at each frame of a record
        self._all = bool(clauses or selection.connections)
        self._looks = SECRET_OPS | Op.SUB.bit

    def passes(self, item: Item) -> bool:
        """Whether `sift` would return just this item and learn nothing from it: the hot path."""
        return (
            not self._all
            and isinstance(item, Frames)
            and not item.ops & self._looks
            and item.conn not in self._callouts
        )

    def sift(self, item: Item) -> Iterator[Item]:
        """Yield what is to be written of an item."""
        if isinstance(item, Frames):
            yield from self._frames(item)
            return
        if isinstance(item, Open):
            self._addresses[item.conn] = str(item.info.get("client", ""))
        elif isinstance(item, Close):
            self._unwanted.discard(item.conn)
            self._addresses.pop(item.conn, None)
            self._callouts.pop(item.conn, None)
        elif isinstance(item, Preamble):
            self._resume(item)
        yield item

    def _resume(self, item: Preamble) -> None:
        """Learn from a preamble what was said before the capture began."""
        self._addresses[item.conn] = str(item.info.get("open", {}).get("client", ""))
        for frame in frames(item.info.get("connect", b""), C2S):
            self._connect(item.conn, frame.args)
        for sub in item.info.get("subs", ()):
            self._subscribed(item.conn, sub[0], sub[1])

    def _connect(self, conn: int, args: bytes) -> None:
        try:
            connect = parse_connect(args)
        except ValueError:  # the server refuses it, the connection ends: nothing to select by
            return
        if self._selection.wants(connect, self._addresses.get(conn, "")):
            self._unwanted.discard(conn)
        else:
            self._unwanted.add(conn)

    def _subscribed(self, conn: int, sid: bytes, subject: bytes) -> None:
        if not is_valid_subscribe(subject) or not collide(subject, CALLOUT):
            return
        callout = self._callouts.setdefault(conn, _Callout())
        if subject.startswith(b"$SYS."):  # whatever a rule renames its messages to
            callout.sids[sid] = Need.LINE

    def _frames(self, record: Frames) -> Iterator[Frames]:
        if record.ops & SECRET_OPS:
            record = redacted(record)
            if record.ops & Op.CONNECT.bit and record.direction == C2S and not record.flags & Flags.CUT:
                self._connect(record.conn, next(frames(bytes(record.data), C2S)).args)
        if record.ops & _GREETING:
            yield record
        elif record.conn not in self._unwanted:
            yield from self._cut(record)

    def _cut(self, record: Frames) -> Iterator[Frames]:
        data = bytes(record.data)
        if record.ops & Op.SUB.bit and record.direction == C2S:
            for frame in _subs(data):
                self._subscribed(record.conn, frame.sid, frame.subject)
        if record.flags & ~Flags.REDACTED:
            begun = head(data, record.direction)
            one = record if begun is None else self._one(record, begun)
            if one is not None:
                yield one
            return
        callout = self._callouts.get(record.conn)
        scanner = _scanner(record.direction, self._guarded if callout is not None else self._plain)
        if callout is not None:
            scanner.watch_sids = callout.sids
            scanner.watch_subjects = callout.replies
        scanner.feed(data)
        first = 0
        while (segment := scanner.next()) is not None:
            assert isinstance(segment, Run | Frame), "records hold whole frames"
            piece = _piece(record, data, segment, first)
            first = scanner.ordinal
            kept = self._one(piece, segment) if isinstance(segment, Frame) else piece
            if kept is not None:
                yield kept

    def _one(self, record: Frames, frame: Frame) -> Frames | None:
        """Return what is to be written of the record of one frame."""
        if frame.op == Op.SUB:
            overlap = any(collide(frame.subject, subject) for subject in self._selection.subjects)
            return record if overlap or not self._selection.subjects else None
        if not 1 << frame.op & MESSAGES:
            return record
        if self._is_secret(record, frame):
            return _without_payload(record, frame, PayloadPolicy(b"", WITHHELD))
        if self._selection.subjects and not self._subjects.matches(frame.subject):
            return None
        policy = self._policies.first(frame.subject)
        if policy is None or policy.action == "keep":
            return record
        return _without_payload(record, frame, policy)

    def _is_secret(self, record: Frames, frame: Frame) -> bool:
        callout = self._callouts.get(record.conn)
        if callout is None:
            return False
        if record.direction == C2S:
            return frame.subject in callout.replies or frame.subject.startswith(SERVER_INBOX[:-1])
        if frame.subject != CALLOUT and frame.sid not in callout.sids:
            return frame.subject.startswith(SERVER_INBOX[:-1])
        if frame.reply:
            callout.replies[frame.reply] = Need.LINE
            if len(callout.replies) > _REPLIES_MAX:
                del callout.replies[next(iter(callout.replies))]
        return True


def _scanner(direction: Direction, interest: Interest) -> Scanner:
    return Scanner(direction, interest, line_limit=1 << 20, hold=_NO_LIMIT, buffer_limit=_NO_LIMIT)


_SUBS = Interest((Clause(Op.SUB.bit),))


def _subs(data: bytes) -> Iterator[Frame]:
    scanner = _scanner(C2S, _SUBS)
    scanner.feed(data)
    while (segment := scanner.next()) is not None:
        if isinstance(segment, Frame):
            yield segment


def _piece(record: Frames, data: bytes, segment: Run | Frame, first: int) -> Frames:
    if isinstance(segment, Run):
        count, ops = segment.frames, segment.ops
    else:
        count, ops = 1, 1 << segment.op
    if count == record.frames:
        return record
    return record._replace(
        data=data[segment.start : segment.end],
        frames=count,
        ops=ops,
        in_first=None if record.in_first is None else record.in_first + first,
        out_first=None if record.out_first is None else record.out_first + first,
    )


def _without_payload(record: Frames, frame: Frame, policy: PayloadPolicy) -> Frames:
    """Return the record of `frame` with what the policy leaves of its payload."""
    kept = frame.line + frame.headers
    if policy.action == "truncate":
        if len(frame.body) <= policy.keep:
            return record
        kept += frame.body[: policy.keep]
    extra: dict[str, Any] = {**(record.extra or {}), "policy": policy.action}
    if policy.action == "hash" and not frame.missing:
        extra["sha256"] = hashlib.sha256(frame.body).digest()
    return record._replace(data=kept, flags=record.flags | Flags.PAYLOAD, extra=extra)
