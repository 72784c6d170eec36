"""The user's selection of the traffic to record.  (`redact.py` has removed the secrets before.)

A record of many frames is split only where a frame is left out or changed: one scan finds just those frames,
and the frames between them stay one slice.  Ordinals keep their numbers, so a
reader sees where frames were left out; the segment header says why (`Selection.described`).  Runs of
ordinary frames go through its compiled twin, `_selection.pyx`.

Opens, closes, firings and greetings (INFO, CONNECT) of all connections are kept: a reader needs them to make
sense of the rest.  Of the selected connections all frames without a subject are kept, and the SUBs that
overlap with a selected subject.
"""

from __future__ import annotations

import functools
import hashlib
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from natsproxy import converters
from natsproxy.capture.filter.filters import SUBJECT, Filters
from natsproxy.capture.filter.redact import WITHHELD, pieces, without_payload
from natsproxy.capture.filter.scrub import Scrubber
from natsproxy.capture.format.records import (
    CloseRecord,
    FiringRecord,
    Flags,
    Frames,
    Item,
    OpenRecord,
    Preamble,
)
from natsproxy.errors import ConfigError
from natsproxy.option import ValueType, group, several
from natsproxy.protocol.connect import Connect, parse_connect
from natsproxy.protocol.patternset import PatternSet
from natsproxy.protocol.subjects import collide, is_valid_subscribe
from natsproxy.units import parse_size
from natsproxy.wire.frames import NO_LIMIT, Frame, Need
from natsproxy.wire.interest import Clause
from natsproxy.wire.ops import C2S, MESSAGE_OPS, Op, op_mask
from natsproxy.wire.parse import frames, head
from natsproxy.wire.scanner import Interest, Scanner

_selection: Any = None
if os.environ.get("NATSPROXY_PURE", "") in ("", "0"):
    try:
        from natsproxy.capture.filter import _selection  # type: ignore[attr-defined, no-redef, unused-ignore]
    except ImportError:  # not built: the filter below handles everything
        _selection = None

MESSAGES: Final = op_mask(*MESSAGE_OPS)
_SCRUBBED: Final = Interest((Clause(MESSAGES | op_mask(Op.SUB, Op.ERR), Need.PAYLOAD),))
_GREETING: Final = op_mask(Op.INFO, Op.CONNECT)


class _Action(NamedTuple):
    """The action of a payload policy.

    cut: takes a frame and the size that the user has written; returns the part of the payload to record and
    what `extra` says beside the policy's name, or None for the whole frame.  sized: the user writes a size,
    as in `truncate:BYTES`.
    """

    cut: Callable[[Frame, int], tuple[bytes, Mapping[str, object]] | None]
    sized: bool = False


def _keep(frame: Frame, size: int) -> None:
    return None


def _hash(frame: Frame, size: int) -> tuple[bytes, Mapping[str, object]]:
    # A payload that is not whole has no hash.
    return b"", {} if frame.missing else {"sha256": hashlib.sha256(frame.body).digest()}


def _drop(frame: Frame, size: int) -> tuple[bytes, Mapping[str, object]]:
    return b"", {}


def _truncate(frame: Frame, size: int) -> tuple[bytes, Mapping[str, object]] | None:
    return None if len(frame.body) <= size else (frame.body[:size], {})


_ACTIONS: Final = {
    "keep": _Action(_keep),
    "hash": _Action(_hash),
    "drop": _Action(_drop),
    "truncate": _Action(_truncate, sized=True),
}
_FORMS: Final = [f"{name}:BYTES" if action.sized else name for name, action in _ACTIONS.items()]
_CHOICES: Final = f"{', '.join(_FORMS[:-1])} or {_FORMS[-1]}"


@dataclass(frozen=True, slots=True)
class PayloadPolicy:
    """The policy for payloads on one subject pattern; headers are always kept.

    action: a name in `_ACTIONS`.  keep: its size, 0 if it takes none.
    """

    pattern: bytes
    action: str
    keep: int = 0

    @classmethod
    def parse(cls, text: str) -> PayloadPolicy:
        """Read `SUBJECT=ACTION`, as in `orders.>=truncate:64`.  Raises ConfigError."""
        subject, equals, written = text.rpartition("=")  # the last one: subjects may hold a "="
        action, _, size = written.partition(":")
        if not equals or not is_valid_subscribe(subject.encode()):
            raise ConfigError(f"{text!r} is not SUBJECT=ACTION, as in orders.>=hash")
        known = _ACTIONS.get(action)
        if known is None or known.sized != size.isdigit():
            raise ConfigError(f"{text!r}: the action is {_CHOICES}")
        try:
            return cls(subject.encode(), action, parse_size(size) if size else 0)
        except ValueError as error:
            raise ConfigError(f"{text!r}: {action} {error}") from None

    def __str__(self) -> str:
        size = f":{self.keep}" if _ACTIONS[self.action].sized else ""
        return f"{self.pattern.decode()}={self.action}{size}"


def _policy(value: Any) -> PayloadPolicy:
    return PayloadPolicy.parse(converters.text(value))


@dataclass(frozen=True, slots=True)
class Selection:
    """The choice of traffic that the user wants recorded; empty: everything.

    connections: patterns with `*` and `?` on the client's name, or `user:PATTERN`, `address:PATTERN`.
    subjects: NATS patterns.  payloads: the first policy that matches a subject counts.  filters: of secrets.
    """

    connections: tuple[str, ...] = several(
        ValueType(converters.line, "PATTERN"),
        "Record only clients of this name (*, ?), or user:PATTERN, address:PATTERN.",
        name="record-connection",
    )
    subjects: tuple[bytes, ...] = several(SUBJECT, "Record only these subjects.", name="record-subject")
    payloads: tuple[PayloadPolicy, ...] = several(
        ValueType(_policy, "SUBJECT=ACTION"),
        f"How payloads on a subject are recorded: {_CHOICES}.",
        name="record-payload",
    )
    filters: Filters = group(Filters, "filter")

    def __post_init__(self) -> None:
        for subject in self.subjects:
            if not is_valid_subscribe(subject):
                raise ConfigError(f"{subject.decode(errors='replace')!r} is not a valid subject pattern")

    def described(self) -> dict[str, Any]:
        """Return the selection in the form of the segment header."""
        return {
            "connections": list(self.connections),
            "subjects": [subject.decode() for subject in self.subjects],
            "payloads": [str(policy) for policy in self.payloads],
        }

    def wants(self, connect: Connect, address: str) -> bool:
        """Tell whether a connection is selected."""
        known = {"name": connect.name, "user": connect.user, "address": address}
        for pattern in self.connections:
            field, colon, rest = pattern.partition(":")
            if not (colon and field in known):  # a name may hold a ":"
                field, rest = "name", pattern
            if fnmatchcase(known[field], rest):
                return True
        return not self.connections


class RecordingFilter:
    """Applies a selection to the items of one capture, in order.

    everything: it keeps all frames as they are.  native: its compiled twin for runs, or None.  in_python: it
    may look at each frame of a record in Python.  State is kept for open connections only.
    """

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._unwanted: set[int] = set()  # connections that the selection leaves out
        self._addresses: dict[int, str] = {}
        self._policies: PatternSet[PayloadPolicy] = PatternSet((p.pattern, p) for p in selection.payloads)
        self._subjects: PatternSet[None] = PatternSet((subject, None) for subject in selection.subjects)
        clauses = []
        if selection.subjects:
            # The scanner hands over the messages outside the selection; those inside stay in runs.
            clauses.append(Clause(MESSAGES | Op.SUB.bit, Need.LINE, None, selection.subjects))
        cut = tuple(policy.pattern for policy in selection.payloads if policy.action != "keep")
        if cut:
            clauses.append(Clause(MESSAGES, Need.LINE, cut))
        self._scrubber = Scrubber(selection.filters) if selection.filters else None
        self._interest = Interest(tuple(clauses)) if clauses else None
        self.everything = not (clauses or selection.connections or self._scrubber)
        self.native: Any = None if _selection is None else _selection.SelectionFilter(self, selection)
        self.in_python = bool(self._scrubber or clauses) if self.native is None else self.native.in_python

    def passes(self, item: Item) -> bool:
        """Tell whether `apply` would yield the item unchanged and update no state: the hot path."""
        return self.everything and isinstance(item, Frames)

    def apply(self, item: Item) -> Iterator[Item]:
        """Yield the parts of an item that are to be written."""
        if isinstance(item, Frames):
            yield from self._frames(item)
            return
        if isinstance(item, OpenRecord):
            self._addresses[item.conn] = str(item.info.get("client", ""))
        elif isinstance(item, CloseRecord):
            self._select(item.conn, True)
            self._addresses.pop(item.conn, None)
        elif isinstance(item, Preamble):
            self._resume(item)
        if self._scrubber is not None and isinstance(
            item, OpenRecord | CloseRecord | FiringRecord | Preamble
        ):
            item = item._replace(info=self._scrubber.facts(item.info))
        yield item

    def _resume(self, item: Preamble) -> None:
        """Learn from a preamble the address and the CONNECT of a connection that was open already."""
        self._addresses[item.conn] = str(item.info.get("open", {}).get("client", ""))
        for frame in frames(item.info.get("connect", b""), C2S):
            self._connect(item.conn, frame.args)

    def _connect(self, conn: int, args: bytes) -> None:
        try:
            connect = parse_connect(args)
        except ValueError:  # the server closes such a connection: there is no name to match
            return
        self._select(conn, self._selection.wants(connect, self._addresses.get(conn, "")))

    def _select(self, conn: int, wanted: bool) -> None:
        if wanted:
            self._unwanted.discard(conn)
        else:
            self._unwanted.add(conn)
        if self.native is not None:
            (self.native.take_in if wanted else self.native.leave_out)(conn)

    def _frames(self, record: Frames) -> Iterator[Frames]:
        # A frame without an incoming ordinal is the proxy's replacement of the client's.
        connects = record.ops & Op.CONNECT.bit and record.direction == C2S and record.in_first is not None
        if connects and self._selection.connections:
            # `redact` has split such records: a CONNECT is alone in its own.
            self._connect(record.conn, next(frames(bytes(record.data), C2S)).args)
        if record.ops & _GREETING:
            yield record
        elif record.conn not in self._unwanted:
            yield from self._cut(record)

    def _cut(self, record: Frames) -> Iterator[Frames]:
        if record.flags & ~Flags.REDACTED:  # one frame that is not whole
            begun = head(bytes(record.data), record.direction)
            one = self._scrub_cut(record) if begun is None else self._one(record, begun)
            if one is not None:
                yield one
            return
        scrubs = self._scrubber is not None and self._scrubber.may_touch(bytes(record.data))
        interest = _SCRUBBED if scrubs else self._interest
        if interest is None:
            yield record
            return
        scanner = Scanner(
            record.direction, interest, line_limit=1 << 20, hold=NO_LIMIT, buffer_limit=NO_LIMIT
        )
        parts = pieces(record, scanner)
        found = (part if frame is None else self._one(part, frame) for part, frame in parts)
        kept = (one for one in found if one is not None)
        yield from joined(kept) if scrubs else kept

    def _one(self, record: Frames, frame: Frame) -> Frames | None:
        """Return the record of one frame as it is to be written; None where it is left out."""
        if frame.op == Op.SUB:
            overlap = any(collide(frame.subject, subject) for subject in self._selection.subjects)
            return self._scrub(record, frame)[0] if overlap or not self._selection.subjects else None
        if not 1 << frame.op & MESSAGES:
            return self._scrub(record, frame)[0]
        if self._selection.subjects and not self._subjects.matches(frame.subject):
            return None
        policy = self._policies.first(frame.subject)
        record, frame = self._scrub(record, frame)
        # A payload that `redact` withheld stays withheld under any policy.
        if policy is None or record.flags & Flags.PAYLOAD:
            return record
        return _by_policy(record, frame, policy)

    def _scrub(self, record: Frames, frame: Frame) -> tuple[Frames, Frame]:
        """Return the record of one frame, and the frame, without filtered values."""
        if self._scrubber is None:
            return record, frame
        if not record.flags & ~Flags.REDACTED:
            data = self._scrubber.frame(frame)
            if data == frame.raw:
                return record, frame
            (changed,) = frames(data, record.direction)
            return record._replace(data=data, flags=record.flags | Flags.REDACTED), changed
        if frame.op in MESSAGE_OPS and frame.wire_size < len(record.data):
            return self._scrub_cut(record), frame  # other frames follow
        data = self._scrubber.partial(frame)
        if data == frame.raw:
            return record, frame
        extra = {"policy": WITHHELD, **(record.extra or {})}
        return record._replace(data=data, flags=record.flags | Flags.PAYLOAD, extra=extra), frame

    def _scrub_cut(self, record: Frames) -> Frames:
        """Return a record with incomplete frames, without bytes that may be a filtered value."""
        data = bytes(record.data)
        clean = data if self._scrubber is None else self._scrubber.cut(data, record.direction)
        return record if clean == data else record._replace(data=clean, flags=record.flags | Flags.REDACTED)


def joined(records: Iterable[Frames]) -> Iterator[Frames]:
    """Yield neighbouring records of whole frames as one."""
    run: list[Frames] = []
    for record in records:
        if run and not _follows(record, run[-1]):
            yield _sum(run)
            run = []
        run.append(record)
    if run:
        yield _sum(run)


def _follows(record: Frames, last: Frames) -> bool:
    """Tell whether a record is the next part of the one that both were cut from."""
    ordinals = ((last.in_first, record.in_first), (last.out_first, record.out_first))
    return (
        record.flags == last.flags
        and not record.flags & ~Flags.REDACTED
        and all(before is None or before + last.frames == now for before, now in ordinals)
    )


def _sum(run: list[Frames]) -> Frames:
    ops = functools.reduce(operator.or_, (one.ops for one in run))
    data = run[0].data if len(run) == 1 else b"".join(one.data for one in run)
    return run[0]._replace(data=data, frames=sum(one.frames for one in run), ops=ops)


def _by_policy(record: Frames, frame: Frame, policy: PayloadPolicy) -> Frames:
    """Return the record of `frame` with the part of its payload that the policy keeps."""
    made = _ACTIONS[policy.action].cut(frame, policy.keep)
    if made is None:
        return record
    kept, facts = made
    return without_payload(record, frame, policy.action, kept, **facts)
