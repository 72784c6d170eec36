"""Exchanges: the frames that one publish or request causes, as far as that can be seen from frames.

The rules, for a frame that comes:
1. A publish begins an exchange, and so does a request whose publish is not recorded.  An answer, an ack, a
   denial and the changed form of a frame belong to the exchange of the frame they refer to.
2. A delivery of JetStream belongs to the publish of the message, or to the pull request, whichever is chosen;
   where both are unknown, it begins an exchange.
3. Any other delivery belongs to the publish that it is a copy of, the n-th on a subscription to the n-th
   publish; else to the request that it answers.

Frames are held until one of their exchange is chosen.  The held ones are bounded: the oldest are dropped.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Final

from natsproxy.bounded import BoundedDict
from natsproxy.capture.listing.copies import Copies
from natsproxy.capture.listing.listing import Listed
from natsproxy.capture.read.frames import CapturedFrame
from natsproxy.protocol import errors, jetstream
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Op

_HELD: Final = 32 << 20
"""The most bytes of held frames."""
_OVERHEAD: Final = 1024
"""Memory overhead of a frame, in bytes."""


class Exchanges:
    """The exchanges that are open; it takes every frame in order."""

    def __init__(self, held: int = _HELD) -> None:
        self._most = held
        self._size = 0
        self._count = 0
        self._keys: BoundedDict[int, int] = BoundedDict()
        self._chosen: BoundedDict[int, None] = BoundedDict()
        self._waiting: OrderedDict[int, list[Listed]] = OrderedDict()
        self._published, self._stored = Copies(), Copies()

    def add(self, listed: Listed, chosen: bool) -> Iterator[Listed]:
        """Yield the frame if it or one of its exchange is chosen, and those of the exchange that waited."""
        frame = listed.one.head
        number = None if frame is None else self._of(listed.one, frame)
        if number is None:
            if chosen:
                yield listed
            return
        listed = listed._replace(exchange=number)
        if chosen or number in self._chosen:
            self._chosen[number] = None
            for waiting in self._waiting.pop(number, ()):
                self._size -= _size(waiting)
                yield waiting
            yield listed
            return
        self._wait(number, listed)

    def _wait(self, number: int, listed: Listed) -> None:
        one = listed.one
        if one.frame is not None:  # alone: it would keep the whole record alive
            one = one._replace(frame=one.frame.alone)
        listed = listed._replace(one=one)
        self._waiting.setdefault(number, []).append(listed)
        self._size += _size(listed)
        while self._size > self._most:
            _, oldest = self._waiting.popitem(last=False)
            self._size -= sum(map(_size, oldest))

    # -- the exchange of a frame

    def _of(self, one: CapturedFrame, frame: Frame) -> int | None:
        place = (one.conn, one.direction)
        found = None if one.of is None else self._find("changed", *place, one.of)
        if frame.op in (Op.PUB, Op.HPUB):
            found = self._sent(one, frame, found)
        elif frame.op in (Op.MSG, Op.HMSG) and found is None:
            found = self._delivered(one, frame)
        elif frame.op == Op.ERR and (denied := errors.classify(errors.err_text(frame.args)).subject):
            found = self._find("sent", one.conn, denied)
        if found is not None and one.out_ordinal is None:
            self._note(found, "changed", *place, one.in_ordinal)
        return found

    def _sent(self, one: CapturedFrame, frame: Frame, changed: int | None) -> int:
        """Return the exchange of a publish.  changed: that of the frame that this one replaces."""
        recorder, subject, reply = one.conn.recorder, frame.subject, frame.reply
        known = (changed, self._find("reply", recorder, subject), self._find("ack", recorder, subject))
        number = next((found for found in known if found is not None), None) or self._begin()
        if reply:
            self._note(number, "reply", recorder, reply)
        call = jetstream.parse_api(subject)
        if call is None:
            self._published.add(hash((recorder, subject, reply, frame.body)), number)
            self._stored.add(hash((recorder, subject, frame.body)), number)
        elif call.verb == b"CONSUMER.MSG.NEXT":
            self._note(number, "pull", one.conn, call.stream, call.consumer)
        self._note(number, "sent", one.conn, subject)
        return number

    def _delivered(self, one: CapturedFrame, frame: Frame) -> int | None:
        ack = jetstream.parse_ack(frame.reply) if frame.reply else None
        if ack is not None:
            return self._pulled(one, frame, ack)
        recorder = one.conn.recorder
        copied = hash((recorder, frame.subject, frame.reply, frame.body))
        number = self._published.copy(copied, (one.conn, frame.sid))
        if number is None:
            number = self._find("reply", recorder, frame.subject)
        if number is None and frame.reply:
            number = self._begin()
            self._note(number, "reply", recorder, frame.reply)
        stored = None if number is None else jetstream.publish_ack(frame.body)
        if number is not None and stored is not None and not stored.duplicate:
            self._note(number, "stored", recorder, stored.stream.encode(), stored.seq)
        return number

    def _pulled(self, one: CapturedFrame, frame: Frame, ack: jetstream.AckSubject) -> int:
        """Return the exchange of a delivery by JetStream, and note its ack and its redelivery."""
        recorder, message = one.conn.recorder, (ack.stream, ack.stream_seq)
        copied = hash((recorder, frame.subject, frame.body))
        known = (
            self._find("stored", recorder, *message),
            self._stored.copy(copied, (one.conn, frame.sid)) if ack.delivered == 1 else None,
            self._find("pull", one.conn, ack.stream, ack.consumer),
        )
        found = [number for number in known if number is not None] or [self._begin()]
        number = next((each for each in found if each in self._chosen), found[0])
        self._note(number, "stored", recorder, *message)
        self._note(number, "ack", recorder, frame.reply)
        return number

    def _begin(self) -> int:
        self._count += 1
        return self._count

    def _note(self, number: int, *key: Hashable) -> None:
        self._keys[hash(key)] = number  # hashes: the keys themselves would take much memory

    def _find(self, *key: Hashable) -> int | None:
        return self._keys.get(hash(key))


def _size(listed: Listed) -> int:
    return len(listed.one.data) + _OVERHEAD
