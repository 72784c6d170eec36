"""The standing requests of live clients: pull requests, and push consumers with heartbeats.

A pull request stands until it has its messages, its time is over or its client no longer listens.  Recorded
messages of its consumer go to the oldest that stands.  Its end without messages (404, 408) and the heartbeats
come as the live request demands them, whatever was recorded: a program that polls more or less often than in
the recording, or with other times, gets the statuses that a server would send.

A push consumer of an ordered subscription that the recording shows to start again gets no more heartbeats
when that comes next: their absence is the reason for which the client starts again.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from natsproxy.capture.format.connection import ConnectionId
from natsproxy.protocol import headers
from natsproxy.protocol.jetstream import parse_ack
from natsproxy.protocol.subjects import matches
from natsproxy.replay.conversation.exchanges import RecordedConnection, RecordedExchange, standalone
from natsproxy.replay.conversation.frame_kind import Consumer, DeliveryRequest, delivery_request, starts_again
from natsproxy.replay.server_playback.actions import Action, SendToClient
from natsproxy.replay.server_playback.binding import Client
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame

_HEARTBEAT: Final = (b"100", b"Idle Heartbeat")
_NO_MESSAGES: Final = (b"404", b"No Messages")
_TIMEOUT: Final = (b"408", b"Request Timeout")
_CLOSED_KEPT: Final = 100


@dataclass(slots=True, eq=False)
class Standing:
    """A request that stands.

    consumer: its recorded name.  frame: the live frame.  inbox: the live subject for its statuses.  left: the
    number of messages that it still takes, None for a push consumer.  ends, beats: the next time of each in
    ns, None for never.  repeats: no recorded request stands for it (yet).  last: the last sequences that were
    delivered, of the consumer and of the stream.
    """

    client: Client
    recorded: RecordedConnection
    request: DeliveryRequest
    consumer: Consumer
    frame: Frame
    inbox: bytes
    left: int | None
    ends: int | None
    beats: int | None
    repeats: bool = False
    last: tuple[int, int] = (0, 0)
    open: bool = True
    known_sid: bytes | None = None

    @property
    def sid(self) -> bytes | None:
        """The live subscription that its messages go to, None when there is none (any more)."""
        subs = self.client.subs
        if self.known_sid not in subs:
            self.known_sid = next(
                (sid for sid, subject in subs.items() if matches(subject, self.inbox)), None
            )
        return self.known_sid

    @property
    def next(self) -> int | None:
        """The next time at which something is due."""
        times = [time for time in (self.ends, self.beats) if time is not None]
        return min(times, default=None)


class StandingRequests:
    """All of them; statuses go to `actions`.

    pulls: the pull requests, by recorded connection and consumer.
    """

    def __init__(self, actions: list[Action]) -> None:
        self._actions = actions
        self.pulls: dict[tuple[ConnectionId, Consumer], list[Standing]] = {}
        self._pushes: list[Standing] = []
        self._hasty: list[Standing] = []
        self._due: list[tuple[int, int, Standing]] = []
        self._most_due = _CLOSED_KEPT
        self._ties = 0

    def add(
        self,
        client: Client,
        recorded: RecordedConnection,
        exchange: RecordedExchange,
        frame: Frame,
        now: int,
        *,
        repeats: bool,
    ) -> Consumer | None:
        """Note a live frame that may stand.  Returns the consumer of a pull request.

        exchange: the recorded one, or with `repeats` a past one of the same kind.
        """
        request, known = delivery_request(frame), delivery_request(exchange.frame)
        if request is None or known is None:
            return None
        standing = Standing(
            client,
            recorded,
            request,
            known.consumer,
            standalone(frame),
            request.deliver or frame.reply,
            request.batch,
            now + request.expires if request.expires else None,
            now + request.heartbeat if request.heartbeat else None,
            repeats,
        )
        if request.batch is None:
            if request.heartbeat:
                self._pushes.append(standing)
        else:
            others = self.pulls.get((recorded.conn, known.consumer), [])
            still = [one for one in others if one.open]
            self.pulls[recorded.conn, known.consumer] = [*still, standing]
            if request.no_wait:
                self._hasty.append(standing)
        self._plan(standing)
        return known.consumer if request.batch is not None else None

    # -- messages

    def taker(self, recorded: RecordedConnection, consumer: Consumer) -> Standing | None:
        """Return the pull request that the next message of a consumer goes to."""
        return next(self._of(recorded, consumer), None)

    def _of(self, recorded: RecordedConnection, consumer: Consumer) -> Iterator[Standing]:
        standing = self.pulls.get((recorded.conn, consumer), [])
        yield from (one for one in standing if one.open and one.sid is not None)

    def took(self, standing: Standing, reply: bytes, now: int) -> None:
        """Note that a message went to a pull request."""
        assert standing.left is not None
        standing.left -= 1
        standing.open = standing.left > 0
        if standing.open and standing.request.no_wait:  # now that it has some, it waits for no more
            self._hasty.append(standing)
        self._delivered(standing, reply, now)

    def pushed(self, client: Client, sid: bytes, reply: bytes, now: int) -> None:
        """Note that a message went to a subscription, which may be that of a push consumer."""
        for standing in self._pushes:
            if standing.client is client and standing.sid == sid:
                self._delivered(standing, reply, now)

    def _delivered(self, standing: Standing, reply: bytes, now: int) -> None:
        if standing.beats is not None:
            standing.beats = now + standing.request.heartbeat
            ack = parse_ack(reply)
            if ack is not None:
                standing.last = ack.consumer_seq, ack.stream_seq

    def ended(self, recorded: RecordedConnection, inbox: bytes) -> None:
        """Note that a recorded status ended the oldest pull request of an inbox."""
        for (conn, _), standing in self.pulls.items():
            for one in standing if conn == recorded.conn else ():
                if one.open and one.inbox == inbox:
                    one.open = False
                    return

    def left(self, client: Client) -> None:
        """Forget the requests of a client that has left."""
        self._pushes = [one for one in self._pushes if one.client is not client]
        for key, standing in list(self.pulls.items()):
            kept = [one for one in standing if one.client is not client]
            for one in standing:
                one.open = one.open and one.client is not client
            if kept:
                self.pulls[key] = kept
            else:
                del self.pulls[key]

    def unrecorded(self, recorded: RecordedConnection) -> list[Standing]:
        """Return the pull requests for which no recorded one stands (yet)."""
        return [
            one
            for (conn, _), standing in self.pulls.items()
            for one in (standing if conn == recorded.conn else ())
            if one.open and one.repeats
        ]

    # -- statuses

    def end_no_wait(self) -> None:
        """End the requests that do not wait, once the messages that are there were sent."""
        if not self._hasty:
            return
        hasty, self._hasty = self._hasty, []
        for one in hasty:
            took = one.left != one.request.batch
            if one.open and (took or not one.request.expires):
                self._end(one, _NO_MESSAGES)

    @property
    def deadline(self) -> int | None:
        """The next time at which `tick` has to be called, in ns; None for never."""
        while self._due and not self._due[0][2].open:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def tick(self, now: int) -> None:
        """SendToClient the statuses that are due."""
        while self._due and self._due[0][0] <= now:
            _, _, one = heapq.heappop(self._due)
            if not one.open:
                continue
            if one.sid is None:
                one.open = False
                self._pushes = [other for other in self._pushes if other.open]
            elif one.ends is not None and one.ends <= now:
                self._end(one, _TIMEOUT)
            elif one.beats is not None and one.beats <= now:
                self._beat(one, now)
            else:  # a message put the heartbeat off
                self._plan(one)

    def _beat(self, one: Standing, now: int) -> None:
        if not _lost(one):
            consumer_seq, stream_seq = one.last
            pairs = [(b"Nats-Last-Consumer", b"%d" % consumer_seq), (b"Nats-Last-Stream", b"%d" % stream_seq)]
            self._status(one, _HEARTBEAT, pairs)
        one.beats = now + one.request.heartbeat
        self._plan(one)

    def _end(self, one: Standing, status: tuple[bytes, bytes]) -> None:
        one.open = False
        pairs = [(b"Nats-Pending-Messages", b"%d" % (one.left or 0)), (b"Nats-Pending-Bytes", b"0")]
        self._status(one, status, pairs if status is _TIMEOUT else [])

    def _status(self, one: Standing, status: tuple[bytes, bytes], pairs: list[tuple[bytes, bytes]]) -> None:
        sid = one.sid
        if sid is not None:
            code, description = status
            block = headers.build(pairs, code=code, description=description)
            self._actions.append(SendToClient(one.client.id, encode.msg(one.inbox, sid, headers=block)))

    def _plan(self, one: Standing) -> None:
        if one.next is not None:
            self._ties += 1
            heapq.heappush(self._due, (one.next, self._ties, one))
        if len(self._due) > self._most_due:  # pulls that got their messages, long before their time is over
            self._due = [entry for entry in self._due if entry[2].open]
            heapq.heapify(self._due)
            self._most_due = 2 * len(self._due) + _CLOSED_KEPT


def _lost(one: Standing) -> bool:
    """Tell whether the recorded client does nothing more before it starts again."""
    coming = one.recorded.next_change()
    return coming is not None and starts_again(coming.frame, one.consumer[0])
