"""Pairs of frames of two captures that agree, found as they are read side by side.

The matcher of the playback decides whether two frames agree, under one map of identifiers: a value of the
recording stands for one value of the other capture, everywhere.  Frames of one row pair in any order; of
several candidates one that adds no identifiers comes first, then the earliest.

At first only frames of corresponding connections pair (`partners.py`), and an inbox is learned from the
request that names it.  When all is read, the frames that are left are tried again with all values known, and
at last across connections, since workers may have shared the work in another way.

Memory: if too many frames wait for a partner, waiting frames are compared by their form from then on
(`multiset_diff.py`), in which all generated values are equal.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, product
from typing import Final, NamedTuple

from natsproxy.bounded import BoundedDict
from natsproxy.capture.format.connection import ConnectionId
from natsproxy.protocol import headers
from natsproxy.replay.conversation.difference import ABSENT
from natsproxy.replay.conversation.exchanges import shape_of
from natsproxy.replay.conversation.frame_kind import POLLS, FrameKind
from natsproxy.replay.conversation.generated_values import split
from natsproxy.replay.conversation.identifier_map import INBOX, LearnedPairs
from natsproxy.replay.conversation.json_difference import parse
from natsproxy.replay.conversation.matching import Matcher
from natsproxy.replay.diff.compared_conversation import ComparedStep, kept
from natsproxy.replay.diff.compared_frame import KINDS, server_chosen_name
from natsproxy.replay.diff.multiset_diff import MultisetDiff
from natsproxy.replay.diff.partners import Partners
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, Op
from natsproxy.wire.parse import frames

_ALIKE: Final = 64  # frames of one form that are looked at
_OTHERS: Final = 16  # frames of other forms, which may still agree
_AT_THE_END: Final = 2000
_BYTES: Final = 64 << 20
_POLLS: Final = 64  # polls of a row that repetitions are compared with
_OVERHEAD: Final = 1024
_BUCKETS: Final = 20_000  # beyond them the empty ones go
_SHARED: Final = 256  # frames that may keep the read alive that they came with


class PairingPlace(NamedTuple):
    """The frames that may agree: a row and a kind; conn: the recorded connection, if it has a partner."""

    row: int
    kind: str
    conn: ConnectionId | None = None


@dataclass(slots=True, eq=False)
class WaitingFrame:
    """A frame that has no partner yet."""

    one: ComparedStep
    place: PairingPlace
    shape: int


class _Queue:
    """The waiting frames of one side and place, in their order."""

    def __init__(self) -> None:
        self.all: dict[int, WaitingFrame] = {}
        self.by_shape: dict[int, dict[int, WaitingFrame]] = {}

    def add(self, waiting: WaitingFrame) -> None:
        seq = waiting.one.step.seq
        self.all[seq] = waiting
        self.by_shape.setdefault(waiting.shape, {})[seq] = waiting

    def remove(self, waiting: WaitingFrame) -> None:
        seq = waiting.one.step.seq
        del self.all[seq]
        alike = self.by_shape[waiting.shape]
        del alike[seq]
        if not alike:
            del self.by_shape[waiting.shape]

    def candidates(self, shape: int, most: int | None) -> Iterator[WaitingFrame]:
        yield from islice(self.by_shape.get(shape, {}).values(), most or _ALIKE)
        others = (one for one in self.all.values() if one.shape != shape)
        yield from islice(others, most or _OTHERS)


@dataclass(slots=True)
class _Bucket:
    """The waiting frames of both sides at a place, and the polls of both that were paired."""

    sides: tuple[_Queue, _Queue] = field(default_factory=lambda: (_Queue(), _Queue()))
    polls: dict[int, tuple[Frame, Frame]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.polls or self.sides[0].all or self.sides[1].all)


class FramePairs:
    """Finds pairs.  limit: the most frames that wait in memory."""

    def __init__(self, matcher: Matcher, partners: Partners, multisets: MultisetDiff, limit: int) -> None:
        self.by_form = False
        self._matcher = matcher
        self._partners = partners
        self._multisets = multisets
        self._limit = limit
        self._buckets: dict[PairingPlace, _Bucket] = {}
        self._inboxes: tuple[BoundedDict[bytes, None], BoundedDict[bytes, None]] = (
            BoundedDict(),
            BoundedDict(),
        )
        self._answers: dict[bytes, list[tuple[_Bucket, WaitingFrame]]] = {}
        self._waiting = self._bytes = 0

    def add(self, one: ComparedStep, row: int, side: int) -> None:
        """Add a frame of the recorded (0) or the observed (1) capture."""
        conn, partner = one.step.conn, self._partners[side].get(one.step.conn)
        place = PairingPlace(row, one.compared.kind, partner and (partner if side else conn))
        bucket = self._buckets.get(place)
        if bucket is None:
            if len(self._buckets) >= _BUCKETS:
                self._buckets = {at: one for at, one in self._buckets.items() if one}
            bucket = self._buckets[place] = _Bucket()
        frame = one.compared.frame
        if place.kind == "PUB" and frame.reply.startswith(INBOX):
            self._inboxes[side][frame.reply] = None
        waiting = WaitingFrame(one, place, shape_of(frame))
        if self._found(bucket, waiting, side):
            return
        if self._waiting > _SHARED:
            waiting.one = kept(one)
        bucket.sides[side].add(waiting)
        inbox = _inbox(waiting.one)
        if side and inbox:
            self._answers.setdefault(inbox, []).append((bucket, waiting))
        self._waiting += 1
        self._bytes += frame.wire_size + _OVERHEAD
        if self._waiting > self._limit or self._bytes > _BYTES:
            self._compare_by_form()

    def left(self) -> Iterator[tuple[int, WaitingFrame]]:
        """Yield the frames without a partner at the end, with their side; none if forms are compared."""
        if self.by_form:
            self._compare_by_form()
            return
        while self._pair_again():
            pass
        self._pair_strangers()
        while self._pair_again():
            pass
        for bucket in self._buckets.values():
            for side, queue in enumerate(bucket.sides):
                for waiting in queue.all.values():
                    yield side, waiting

    def repeats(self, waiting: WaitingFrame, side: int) -> bool:
        """Return whether a frame is a poll that the other side has too, more or less often."""
        use = waiting.one.use
        if use is FrameKind.INBOX:  # it belongs to its request
            return True
        if use not in POLLS or not self._matcher.options.allow_repeats:
            return False
        mine = waiting.one.compared.frame._replace(reply=b"")
        for pair in self._buckets[waiting.place].polls.values():
            other = pair[1 - side]._replace(reply=b"")
            recorded, live = (other, mine) if side else (mine, other)
            same = waiting.place.kind == "PUB" and use is FrameKind.PULL and other.subject == mine.subject
            if same or self._matcher.agree(recorded, live, again=True) is not None:
                return True
        return False

    # -- pairs

    def _found(self, bucket: _Bucket, waiting: WaitingFrame, side: int, most: int | None = None) -> bool:
        """Pair a frame with one of the other side that agrees, and adds the fewest identifiers."""
        best: WaitingFrame | None = None
        lesson, least = LearnedPairs(), 1 << 30
        for other in bucket.sides[1 - side].candidates(waiting.shape, most):
            recorded, live = (other.one, waiting.one) if side else (waiting.one, other.one)
            learned = self._agree(recorded, live)
            if learned is None:
                continue
            new = sum(a != b for a, b in learned.live.items())
            if new < least:
                best, lesson, least = other, learned, new
                if not new:
                    break
        if best is None:
            return False
        self._pair(bucket, best, waiting, side, lesson)
        return True

    def _pair(
        self, bucket: _Bucket, other: WaitingFrame, waiting: WaitingFrame, side: int, lesson: LearnedPairs
    ) -> None:
        """Pair a frame with a waiting one of the other side."""
        self._forget(bucket, other, 1 - side)
        recorded, live = (other.one, waiting.one) if side else (waiting.one, other.one)
        self._matcher.identifiers.learn(lesson)
        if waiting.one.use in POLLS:
            if len(bucket.polls) >= _POLLS:
                del bucket.polls[next(iter(bucket.polls))]
            bucket.polls[recorded.step.seq] = kept(recorded).compared.frame, kept(live).compared.frame
        frame = live.compared.frame
        if waiting.place.kind == "PUB" and frame.reply:
            for where, answer in self._answers.pop(frame.reply, ()):
                queue = where.sides[1]
                if answer.one.step.seq in queue.all and self._found(where, answer, 1):
                    self._forget(where, answer, 1)

    def _forget(self, bucket: _Bucket, waiting: WaitingFrame, side: int) -> None:
        bucket.sides[side].remove(waiting)
        inbox = _inbox(waiting.one) if side else b""
        if inbox in self._answers:
            left = [one for one in self._answers.pop(inbox) if one[1] is not waiting]
            if left:
                self._answers[inbox] = left
        self._waiting -= 1
        self._bytes -= waiting.one.compared.frame.wire_size + _OVERHEAD

    def _agree(self, recorded: ComparedStep, live: ComparedStep) -> LearnedPairs | None:
        ours, theirs = recorded.compared.frame, live.compared.frame
        learned = LearnedPairs()
        if ours.op == Op.ERR:
            return (
                learned if self._matcher.identifiers.unify(ours.args, theirs.args, learned, "error") else None
            )
        if ours.op == Op.MSG:
            names = server_chosen_name(ours), server_chosen_name(theirs)
            if all(names):
                self._matcher.identifiers.pair_tokens(*names, learned)
        if self._matcher.differs(ours, theirs, learned) is not None:
            return None
        if not self._are_in_sequence(recorded, live, learned):
            return None
        return None if self._is_too_early(recorded, learned) else learned

    def _are_in_sequence(self, recorded: ComparedStep, live: ComparedStep, learned: LearnedPairs) -> bool:
        ours, theirs = recorded.compared.sequences, live.compared.sequences
        if not (ours or theirs):
            return True
        unify = self._matcher.identifiers.unify_message_ids
        return len(ours) == len(theirs) and not any(
            unify(a, b, learned) for a, b in zip(ours, theirs, strict=True)
        )

    def _is_too_early(self, recorded: ComparedStep, learned: LearnedPairs) -> bool:
        """Return whether pairing a frame would add an inbox before the request that names it."""
        frame = recorded.compared.frame
        if frame.op == Op.SUB:
            return recorded.use is FrameKind.INBOX and frame.subject in learned.live
        asks = recorded.compared.kind == "PUB" and frame.reply in learned.live
        return any(
            name in learned.live and name in self._inboxes[0]
            for name in (frame.subject, b"" if asks else frame.reply)
        )

    def _pair_again(self) -> bool:
        """Pair the frames that are left, with all identifiers known; return whether any were paired."""
        found = False
        for bucket in self._buckets.values():
            ours, theirs = bucket.sides
            for waiting in list(ours.all.values()) if theirs.all else ():
                if waiting.one.step.seq in ours.all and self._found(bucket, waiting, 0, _AT_THE_END):
                    self._forget(bucket, waiting, 0)
                    found = True
        return found

    def _pair_strangers(self) -> None:
        """Pair the frames that are left across connections that do not correspond."""
        rows: defaultdict[PairingPlace, list[_Bucket]] = defaultdict(list)
        for place, bucket in self._buckets.items():
            rows[place._replace(conn=None)].append(bucket)
        for buckets in rows.values():
            for ours, theirs in product(buckets, repeat=2):
                for waiting in list(ours.sides[0].all.values()) if theirs.sides[1].all else ():
                    other, lesson = self._stranger(waiting, theirs)
                    if other is not None:
                        self._pair(theirs, other, waiting, 0, lesson)
                        self._forget(ours, waiting, 0)

    def _stranger(self, waiting: WaitingFrame, bucket: _Bucket) -> tuple[WaitingFrame | None, LearnedPairs]:
        for other in bucket.sides[1].candidates(waiting.shape, _AT_THE_END):
            frames = waiting.one.compared.frame, other.one.compared.frame
            learned = self._agree(waiting.one, other.one)
            if learned is None and all(one.reply.startswith(INBOX) for one in frames):
                bare = (
                    one._replace(compared=one.compared._replace(frame=frame._replace(reply=b"")))
                    for one, frame in zip((waiting.one, other.one), frames, strict=True)
                )
                learned = self._agree(*bare)
                if learned is not None:
                    mine, its = frames[0].reply, frames[1].reply
                    learned.live[mine], learned.recorded[its] = its, mine
            if learned is not None:
                return other, learned
        return None, LearnedPairs()

    # -- forms

    def _compare_by_form(self) -> None:
        self.by_form = True
        for place, bucket in self._buckets.items():
            for side, queue in enumerate(bucket.sides):
                for waiting in queue.all.values():
                    digest = form(waiting.one.compared.frame, self._matcher, place._replace(conn=None))
                    key = place.row * len(KINDS) + KINDS.index(place.kind)
                    self._multisets.add(digest, key, side, waiting.one.step.seq)
            bucket.sides = _Queue(), _Queue()
        self._answers.clear()
        self._waiting = self._bytes = 0


def _inbox(one: ComparedStep) -> bytes:
    """Return the inbox in a frame that is to be learned from its request."""
    frame = one.compared.frame
    if frame.subject.startswith(INBOX):
        return frame.subject
    return frame.reply if one.compared.kind == "MSG" and frame.reply.startswith(INBOX) else b""


def form(frame: Frame, matcher: Matcher, place: PairingPlace) -> bytes:
    """Return a digest of what must agree in a frame, with all generated values equal."""
    if frame.op in (Op.MSG, Op.HMSG):
        block = frame.headers if frame.header_size else b""
        made = encode.pub(frame.subject, frame.body, reply=frame.reply, headers=block)
        frame = next(frames(made, C2S))
    counted = matcher.counted(frame)
    pairs = sorted(headers.parse(counted.headers).pairs) if counted.header_size else []
    body: object = parse(counted.body)
    text = counted.body if body is ABSENT else json.dumps(body, sort_keys=True).encode()
    parts = (place, bool(frame.reply), frame.queue, frame.args, _formed(repr(pairs).encode()), _formed(text))
    return hashlib.blake2b(repr(parts).encode(), digest_size=12).digest()


def _formed(text: bytes) -> bytes:
    pieces = split(text)
    pieces[1::2] = [b"*" if any(0x30 <= byte <= 0x39 for byte in one) else one for one in pieces[1::2]]
    return b"".join(pieces)
