"""The state of a connection's conversation at each of its frames, in words of few values.

Two places where a program should do the same have the same words: numbers are 0, 1 or many.  The words tell
the phase (login, after a reconnect), the requests without an answer by what they ask, the subscriptions that
live, the deliveries that wait for an ack, and the request that a frame answers.
Deliveries count only where their consumer is acked at all in the run.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass, field
from math import inf
from typing import Final

from natsproxy.protocol.headers import parse as parse_headers
from natsproxy.protocol.jetstream import parse_ack, pull_request
from natsproxy.protocol.subjects import matches
from natsproxy.sweep.selection import INBOX, FrameSelection, pattern
from natsproxy.sweep.traffic import Arrived
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, KEEP_ALIVES, MESSAGE_OPS, Op

SILENT: Final = 200_000_000
"""ns; a PING of a client that has sent nothing for so long is one of its timer; a flush follows a message."""
ANSWERS: Final = "answers "
_GRACE: Final = 100_000_000
"""ns from the expiry of a pull to the arrival of its status."""
_EMPTY: Final = (404, 408)
"""The statuses that end a pull which has found nothing."""
_ACKS: Final = ("ack", "nak", "term", "next")
_TIMED: Final = ("heartbeat", "wpi")
Consumer = tuple[bytes, bytes]
"""Stream and consumer."""


@dataclass(slots=True, eq=False)
class _OpenPull:
    """A pull request without an end.

    place: of its frame.  left: messages that it may still get.  until: when it is over, its status or not.
    """

    place: int
    reply: bytes
    left: int
    until: float
    found: bool = False


@dataclass(slots=True)
class _Subscription:
    """A live subscription.  got: its messages.  most: after which it ends, None for no limit."""

    subject: bytes
    got: int = 0
    most: int | None = None

    @property
    def over(self) -> bool:
        """True if it has got all its messages."""
        return self.most is not None and self.got >= self.most


@dataclass
class Conversation:
    """One connection.

    again: an earlier connection of the same client had ended when it began.  published: the patterns of
    subjects whose publishes get an ack.  acked: the consumers whose deliveries get one.  asked: the subjects
    of the requests so far, by their reply subjects.  by_clock: the places of frames that a timer decides.
    generated: names of streams and consumers that are new in each run.
    """

    again: bool = False
    published: Collection[str] = ()
    acked: Collection[Consumer] = ()
    asked: dict[bytes, bytes] = field(default_factory=dict)
    by_clock: set[int] = field(default_factory=set)
    generated: Collection[bytes] = ()
    _ready: bool = False
    _open: dict[bytes, str] = field(default_factory=dict)
    _pulls: list[_OpenPull] = field(default_factory=list)
    _subscriptions: dict[bytes, _Subscription] = field(default_factory=dict)
    _unacked: set[bytes] = field(default_factory=set)
    _pings: deque[bool] = field(default_factory=deque)
    _spoke: int = 0

    def words(self, one: Arrived, selection: FrameSelection) -> str:
        """Return the state just before a frame, which has this selection."""
        frame = one.frame
        self._expire(one.t)
        asking = Counter(self._open.values())
        asking["pull"] = len(self._pulls)
        live = sum(not one.subject.startswith(INBOX) for one in self._subscriptions.values())
        asked = self.asked.get(frame.subject, b"") if frame.op in MESSAGE_OPS else b""
        request = pattern(asked, self.generated)
        words = [
            ("login", not self._ready),
            ("after a reconnect", self.again),
            *((f"{_few(count)} {what} open", count) for what, count in sorted(asking.items())),
            (f"{_few(live)} subscribed", live),
            (f"{_few(len(self._unacked))} unacked", self._unacked),
            (f"{ANSWERS}{request}", request and request != selection.subject),
        ]
        return ", ".join(word for word, there in words if there)

    def take(self, place: int, one: Arrived, selection: FrameSelection) -> None:
        """Go on behind a frame, which has this selection."""
        frame, sent = one.frame, one.direction == C2S
        if selection.what in _TIMED:
            self.by_clock.add(place)
        if frame.op in KEEP_ALIVES:
            self._keep_alive(place, one)
        elif not sent:
            self._received(place, frame)
        elif frame.op == Op.SUB:
            self._subscriptions[frame.sid] = _Subscription(frame.subject)
        elif frame.op == Op.UNSUB:
            self._unsubscribed(frame)
        elif frame.op in MESSAGE_OPS:
            self._published(place, one, selection.what)
        if sent:
            self._ready = self._ready or frame.op in MESSAGE_OPS or frame.op == Op.SUB
            self._spoke = one.t

    def end(self) -> None:
        """End the conversation: a pull that has found nothing until then is an empty one."""
        self.by_clock.update(pull.place for pull in self._pulls if not pull.found)

    def _expire(self, now: int) -> None:
        for pull in [pull for pull in self._pulls if pull.until < now]:
            self._pull_ends(pull, empty=True)

    def _keep_alive(self, place: int, one: Arrived) -> None:
        sent, asks = one.direction == C2S, one.frame.op == Op.PING
        timed = sent != asks  # the server's PING, and the answer to it
        if one.frame.op == Op.OK:
            return
        if sent and asks:
            timed = self._ready and one.t - self._spoke > SILENT
            self._pings.append(timed)
        elif not sent and not asks:
            timed = bool(self._pings) and self._pings.popleft()
            self._ready = True
        if timed:
            self.by_clock.add(place)

    def _published(self, place: int, one: Arrived, what: str) -> None:
        frame = one.frame
        if what in _ACKS:
            self._unacked.discard(frame.subject)
        if not frame.reply:
            return
        self.asked[frame.reply] = frame.subject
        if what == "pull":
            pull = pull_request(frame.body)
            until = one.t + pull.expires + _GRACE if pull.expires else inf
            self._pulls.append(_OpenPull(place, frame.reply, pull.batch, until))
        elif what not in _ACKS:
            published = what != "api" and pattern(frame.subject) in self.published
            self._open[frame.reply] = "publish" if published else what if what == "api" else "request"

    def _unsubscribed(self, frame: Frame) -> None:
        found = self._subscriptions.get(frame.sid)
        if found is None:
            return
        found.most = int(frame.args) if frame.args.isdigit() else 0
        self._end_if_over(frame.sid, found)

    def _end_if_over(self, sid: bytes, found: _Subscription) -> None:
        if not found.over:
            return
        del self._subscriptions[sid]
        # Nobody hears the answers to what was asked there.
        for reply in [reply for reply in self._open if matches(found.subject, reply)]:
            del self._open[reply]
        for pull in [pull for pull in self._pulls if matches(found.subject, pull.reply)]:
            self._pull_ends(pull, empty=True)

    def _received(self, place: int, frame: Frame) -> None:
        if frame.op not in MESSAGE_OPS:
            return
        self._open.pop(frame.subject, None)
        subscription = self._subscriptions.get(frame.sid)
        ack = parse_ack(frame.reply)
        if ack is not None:
            if (ack.stream, ack.consumer) in self.acked:
                self._unacked.add(frame.reply)
            if subscription is not None:
                self._delivered(subscription)
        elif frame.header_size:
            self._status(place, frame)
        if subscription is not None:
            subscription.got += 1
            self._end_if_over(frame.sid, subscription)

    def _delivered(self, subscription: _Subscription) -> None:
        pull = next((one for one in self._pulls if matches(subscription.subject, one.reply)), None)
        if pull is None:
            return
        pull.left, pull.found = pull.left - 1, True
        if pull.left <= 0:
            self._pull_ends(pull)

    def _status(self, place: int, frame: Frame) -> None:
        status = parse_headers(frame.headers).status
        pull = next((one for one in self._pulls if one.reply == frame.subject), None)
        if status is None or status == 100 or pull is None:
            return
        empty = status in _EMPTY and not pull.found
        if empty:
            self.by_clock.add(place)
        self._pull_ends(pull, empty=empty)

    def _pull_ends(self, pull: _OpenPull, *, empty: bool = False) -> None:
        self._pulls.remove(pull)
        if empty and not pull.found:
            self.by_clock.add(pull.place)


def _few(count: int) -> str:
    return "many" if count > 1 else str(count)
