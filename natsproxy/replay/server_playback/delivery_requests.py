"""The delivery requests of live clients: pull requests, and push consumers with heartbeats.

A pull request is open until it has its messages, it expires or its client has unsubscribed.  Recorded
messages of its consumer go to the oldest open one.  Its end without messages (404, 408) and the heartbeats
follow the live request, not the recording: a program that polls more or less often than recorded, or with
other times, gets the statuses that a server would send.

If the recording shows that an ordered consumer was recreated next, its heartbeats stop: their absence is what
makes the client recreate it.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Final

from natsproxy.capture.format.connection import ConnectionId
from natsproxy.protocol import headers
from natsproxy.protocol.jetstream import parse_ack
from natsproxy.protocol.subjects import matches
from natsproxy.replay.conversation.exchanges import standalone
from natsproxy.replay.conversation.frame_kind import Consumer, DeliveryRequest, delivery_request, starts_again
from natsproxy.replay.server_playback.actions import Action, SendToClient
from natsproxy.replay.server_playback.client import Client
from natsproxy.replay.server_playback.effect_source import ClientFrame, EffectSource
from natsproxy.replay.server_playback.progress import ConnectionProgress
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame

_HEARTBEAT: Final = (b"100", b"Idle Heartbeat")
_NO_MESSAGES: Final = (b"404", b"No Messages")
_TIMEOUT: Final = (b"408", b"Request Timeout")
_CLOSED_KEPT: Final = 100


@dataclass(slots=True, eq=False)
class LiveRequest:
    """A delivery request of a live client.

    consumer: its recorded name.  frame: the live frame.  inbox: the live subject for its statuses.  left: the
    number of messages that it still takes, None for a push consumer.  ends, beats: when it expires, and when
    its next heartbeat is due (ns), None for never.  unrecorded: it has not matched a recorded request (yet).
    last: the consumer and stream sequences that were delivered last.
    """

    client: Client
    playing: ConnectionProgress
    request: DeliveryRequest
    consumer: Consumer
    frame: Frame
    inbox: bytes
    left: int | None
    ends: int | None
    beats: int | None
    unrecorded: bool = False
    last: tuple[int, int] = (0, 0)
    open: bool = True
    known_sid: bytes | None = None

    @property
    def sid(self) -> bytes | None:
        """The sid that its messages go to, None if its client is not subscribed (any more)."""
        subs = self.client.subs
        if self.known_sid not in subs:
            self.known_sid = next(
                (sid for sid, subject in subs.items() if matches(subject, self.inbox)), None
            )
        return self.known_sid

    @property
    def listens(self) -> bool:
        """Return whether it takes messages."""
        return self.open and self.sid is not None

    @property
    def next(self) -> int | None:
        """The time of its next status in ns, None for never."""
        times = [time for time in (self.ends, self.beats) if time is not None]
        return min(times, default=None)


class DeliveryRequests(EffectSource):
    """All delivery requests, and the source of their statuses.

    pulls: the pull requests, by recorded connection and consumer.
    """

    def __init__(self) -> None:
        self.pulls: dict[tuple[ConnectionId, Consumer], list[LiveRequest]] = {}
        self._pushes: list[LiveRequest] = []
        self._no_wait: list[LiveRequest] = []
        self._due: list[tuple[int, int, LiveRequest]] = []
        self._most_due = _CLOSED_KEPT
        self._ties = 0

    def on_frame(self, sent: ClientFrame) -> list[Action]:
        """Add the delivery request of a frame."""
        request = None if sent.request is None else delivery_request(sent.frame)
        if request is None or sent.request is None or sent.client.playing is None:
            return []
        live = LiveRequest(
            sent.client,
            sent.client.playing,
            request,
            sent.request.consumer,
            standalone(sent.frame),
            request.deliver or sent.frame.reply,
            request.batch,
            sent.now + request.expires if request.expires else None,
            sent.now + request.heartbeat if request.heartbeat else None,
            unrecorded=sent.again is not None,
        )
        if request.batch is not None:
            self._add_pull(live)
        elif request.heartbeat:
            self._pushes.append(live)
        self._plan(live)
        return []

    def _add_pull(self, live: LiveRequest) -> None:
        key = live.playing.conn, live.consumer
        self.pulls[key] = [*(one for one in self.pulls.get(key, []) if one.open), live]
        if live.request.no_wait:
            self._no_wait.append(live)

    def on_leave(self, client: Client, now: int) -> list[Action]:
        """Remove the requests of a client that has disconnected."""
        self._pushes = [one for one in self._pushes if one.client is not client]
        for key, requests in list(self.pulls.items()):
            kept = [one for one in requests if one.client is not client]
            for one in requests:
                one.open = one.open and one.client is not client
            if kept:
                self.pulls[key] = kept
            else:
                del self.pulls[key]
        return []

    # -- messages

    def next_pull(self, connection: ConnectionProgress, consumer: Consumer, sid: bytes) -> LiveRequest | None:
        """Return the pull request that the next message of a consumer goes to.

        sid: the recorded subscription that got it.  The pulls on its live subscription come first; if the
        connection gives its messages away, those of any client.
        """
        live = connection.sids.get(sid)
        requests = [one for one in self.pulls.get((connection.conn, consumer), []) if one.listens]
        own = [one for one in requests if one.sid == live]
        if own or (requests and live in requests[0].client.subs):
            requests = own
        elif connection.gives_away:
            requests = [
                one
                for (_, pulled), others in self.pulls.items()
                if pulled == consumer
                for one in others
                if one.listens
            ]
        return requests[0] if requests else None

    def delivered(self, pull: LiveRequest, reply: bytes, now: int) -> None:
        """Note that a message went to a pull request."""
        assert pull.left is not None
        pull.left -= 1
        pull.client.fed = now
        pull.open = pull.left > 0
        if pull.open and pull.request.no_wait:  # it has some messages, so it does not wait for more
            self._no_wait.append(pull)
        _put_off(pull, reply, now)

    def pushed(self, client: Client, sid: bytes, reply: bytes, now: int) -> None:
        """Note that a message went to a subscription: it postpones the heartbeat of a push consumer."""
        for one in self._pushes:
            if one.client is client and one.sid == sid:
                _put_off(one, reply, now)

    def ended(self, connection: ConnectionProgress, inbox: bytes) -> None:
        """Note that a recorded status ended the oldest pull request of an inbox."""
        for (conn, _), pulls in self.pulls.items():
            for one in pulls if conn == connection.conn else ():
                if one.open and one.inbox == inbox:
                    one.open = False
                    return

    def unrecorded(self) -> list[LiveRequest]:
        """Return the open pull requests that have not matched a recorded one (yet)."""
        return [one for pulls in self.pulls.values() for one in pulls if one.open and one.unrecorded]

    # -- statuses

    def end_no_wait(self) -> list[Action]:
        """End the no_wait requests, once the messages that are available were sent."""
        if not self._no_wait:
            return []
        hasty, self._no_wait = self._no_wait, []
        actions: list[Action] = []
        for one in hasty:
            took = one.left != one.request.batch
            if one.open and (took or not one.request.expires):
                actions += self._end(one, _NO_MESSAGES)
        return actions

    def next_due(self) -> int | None:
        """Return the time of the next status."""
        while self._due and not self._due[0][2].open:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def on_time(self, now: int) -> list[Action]:
        """Send the statuses that are due."""
        actions: list[Action] = []
        while self._due and self._due[0][0] <= now:
            _, _, one = heapq.heappop(self._due)
            if not one.open:
                continue
            if one.sid is None:
                one.open = False
                self._pushes = [other for other in self._pushes if other.open]
            elif one.ends is not None and one.ends <= now:
                actions += self._end(one, _TIMEOUT)
            elif one.beats is not None and one.beats <= now:
                actions += self._beat(one, now)
            else:  # a message postponed the heartbeat
                self._plan(one)
        return actions

    def _beat(self, one: LiveRequest, now: int) -> list[Action]:
        one.beats = now + one.request.heartbeat
        self._plan(one)
        if _lost(one):
            return []
        consumer_seq, stream_seq = one.last
        pairs = [(b"Nats-Last-Consumer", b"%d" % consumer_seq), (b"Nats-Last-Stream", b"%d" % stream_seq)]
        return _status(one, _HEARTBEAT, pairs)

    def _end(self, one: LiveRequest, status: tuple[bytes, bytes]) -> list[Action]:
        one.open = False
        pairs = [(b"Nats-Pending-Messages", b"%d" % (one.left or 0)), (b"Nats-Pending-Bytes", b"0")]
        return _status(one, status, pairs if status is _TIMEOUT else [])

    def _plan(self, one: LiveRequest) -> None:
        if one.next is not None:
            self._ties += 1
            heapq.heappush(self._due, (one.next, self._ties, one))
        if len(self._due) > self._most_due:  # pulls that got their messages long before they expire
            self._due = [entry for entry in self._due if entry[2].open]
            heapq.heapify(self._due)
            self._most_due = 2 * len(self._due) + _CLOSED_KEPT


def _put_off(one: LiveRequest, reply: bytes, now: int) -> None:
    """Postpone the next heartbeat: a message was delivered."""
    if one.beats is not None:
        one.beats = now + one.request.heartbeat
        ack = parse_ack(reply)
        if ack is not None:
            one.last = ack.consumer_seq, ack.stream_seq


def _status(one: LiveRequest, status: tuple[bytes, bytes], pairs: list[tuple[bytes, bytes]]) -> list[Action]:
    sid = one.sid
    if sid is None:
        return []
    code, description = status
    block = headers.build(pairs, code=code, description=description)
    return [SendToClient(one.client.id, encode.msg(one.inbox, sid, headers=block))]


def _lost(one: LiveRequest) -> bool:
    """Return whether the recorded client does nothing more before it starts again."""
    coming = one.playing.next_change()
    return coming is not None and starts_again(coming.frame, one.consumer[0])
