"""Sends recorded server frames (effects) to live clients.

An effect is sent once its causes have happened, its subscription is live and the effects before it in its
queue were sent.  It goes to the live sid and the live inbox.  A queue holds one subject of a subscription, or
all deliveries of a consumer, whose order counts across subjects.  Answers are sent at once, timed effects at
their recorded delay after the cause (with timing `recorded`: all effects).  A message for a pull request goes
to the oldest open one (`delivery_requests.py`).  A copy of a publish carries the live headers and body; in
any other message, recorded values are replaced by live ones where these are known.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from natsproxy.replay.conversation.causes import Timing
from natsproxy.replay.conversation.exchanges import END, QueueKey, RecordedConnection
from natsproxy.replay.conversation.frame_kind import FrameKind, Share
from natsproxy.replay.conversation.identifier_map import SHORTEST, IdentifierMap, live_text
from natsproxy.replay.conversation.live_payloads import CodecOf, live_payload
from natsproxy.replay.server_playback.actions import Action, DisconnectClient, SendToClient
from natsproxy.replay.server_playback.client import Client
from natsproxy.replay.server_playback.delivery_requests import DeliveryRequests, LiveRequest
from natsproxy.replay.server_playback.effect_source import ClientFrame, EffectSource
from natsproxy.replay.server_playback.progress import (
    AwaitedBy,
    ConnectionProgress,
    PendingEffect,
    Progress,
)
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Op

PATIENCE: Final = 2_000_000_000
"""The time in ns that a message waits for its recorded worker before another one gets it."""


class _Target(NamedTuple):
    """The live client, subscription and inbox or pull request that a message goes to.

    share: the consumer or queue group that the client shares with the recorded receiver.
    """

    client_id: int
    sid: bytes = b""
    inbox: bytes = b""
    pull: LiveRequest | None = None
    share: Share | None = None


class HandedOver(NamedTuple):
    """Messages of a consumer or queue group that went to another client than in the recording."""

    share: Share
    recorded: RecordedConnection
    live: RecordedConnection


class RecordedEffects(EffectSource):
    """Sends effects.  clients: the live ones, by number.  recorded_timing: all effects are timed."""

    def __init__(
        self,
        progress: Progress,
        identifiers: IdentifierMap,
        clients: Mapping[int, Client],
        requests: DeliveryRequests,
        *,
        recorded_timing: bool,
        codec_of: CodecOf,
    ) -> None:
        self._progress = progress
        self._identifiers = identifiers
        self._clients = clients
        self._requests = requests
        self._recorded_timing = recorded_timing
        self._codec_of = codec_of
        self._due: list[tuple[int, int, ConnectionProgress, QueueKey]] = []
        self._giving: list[ConnectionProgress] = []
        self.handed_over: Counter[HandedOver] = Counter()
        self._ties = 0

    # -- events

    def on_frame(self, sent: ClientFrame) -> list[Action]:
        """Send the effects of a frame, and those that waited for the subscription or pull that it makes."""
        playing, exchange = sent.client.playing, sent.exchange
        if playing is None or exchange is None:
            return []
        actions: list[Action] = []
        if sent.frame.op == Op.SUB:
            actions += self.arrived(playing, exchange.frame.sid, sent.now)
        elif sent.request is not None and sent.request.batch is not None:
            consumer = sent.request.consumer
            for connection in (playing, *self._giving):
                actions += self.arrived(connection, consumer, sent.now)
        actions += self.caused(sent.effects, sent.now)
        used = self._progress.connections[exchange.conn]  # that of another worker, perhaps
        if END in used.queues and sent.again is None:
            actions += self.release(used, END, sent.now)
        return actions

    def give_away(self, connection: ConnectionProgress, now: int) -> list[Action]:
        """Give the messages that a worker did not ask for to the other workers, now or when they ask."""
        actions: list[Action] = []
        if not connection.unsent or not connection.recorded.shares:
            return actions
        connection.gives_away = True
        self._giving = [*(one for one in self._giving if one.unsent), connection]
        unused = [one for queue in connection.unused.by_key.values() for one in queue]
        for pull in (one for one in unused if one.kind is FrameKind.PULL):
            actions += self.caused(self._progress.use(pull, pull.frame, now), now)
        for awaited in list(connection.waiting):
            actions += self.arrived(connection, awaited, now)
        return actions

    def next_due(self) -> int | None:
        """Return the time of the next timed effect."""
        return self._due[0][0] if self._due else None

    def on_time(self, now: int) -> list[Action]:
        """Send the timed effects that are due."""
        actions: list[Action] = []
        while self._due and self._due[0][0] <= now:
            _, _, connection, key = heapq.heappop(self._due)
            actions += self.release(connection, key, now)
        return actions

    def arrived(self, connection: ConnectionProgress, awaited: AwaitedBy, now: int) -> list[Action]:
        """Send the effects that waited for this subscription, or for a pull request at this consumer."""
        actions: list[Action] = []
        for key in connection.waiting.pop(awaited, ()):
            actions += self.release(connection, key, now)
        return actions

    def caused(self, effects: Iterable[PendingEffect], now: int) -> list[Action]:
        """Send the effects whose causes have all happened."""
        ready = [pending for pending in effects if not pending.pending_causes]
        for pending in ready:
            timed = pending.effect.timing is Timing.TIMED or self._recorded_timing
            pending.due = pending.caused_at + (pending.effect.offset if timed else 0)
        actions: list[Action] = []
        for pending in ready:
            effect = pending.effect
            actions += self.release(self._progress.connections[effect.conn], effect.queue, now)
        return actions

    def release(self, connection: ConnectionProgress, key: QueueKey, now: int) -> list[Action]:
        """Send the effects of a queue in order, up to one that must wait; schedule that if due later."""
        actions: list[Action] = []
        queue = connection.queues.get(key)
        while queue:
            pending = queue[0]
            if pending.due is None:  # its causes have not happened; those behind it must wait, too
                return actions
            target = self._target(connection, pending, now)
            if target is None:
                waiting = connection.waiting.setdefault(_awaits(pending), {})
                if key not in waiting and connection.client_id is None and _group(connection, pending):
                    self._plan(max(now, pending.due) + PATIENCE, connection, key)
                waiting[key] = None
                return actions
            if pending.due > now:
                self._plan(pending.due, connection, key)
                return actions
            queue.popleft()
            actions += self._deliver(connection, pending, target, now)
            # The end of the connection waits for all other effects.
            if connection.unsent == 1 and END in connection.queues:
                actions += self.release(connection, END, now)
        if queue is not None:
            connection.queues.pop(key, None)
        return actions

    def _plan(self, at: int, connection: ConnectionProgress, key: QueueKey) -> None:
        self._ties += 1  # entries of one time keep their order, and connections are never compared
        heapq.heappush(self._due, (at, self._ties, connection, key))

    # -- one effect

    def _target(self, connection: ConnectionProgress, pending: PendingEffect, now: int) -> _Target | None:
        """Return where an effect goes, None while it cannot go; the end of a connection comes last."""
        effect, frame = pending.effect, pending.effect.frame
        if pending.to is not None:
            return _Target(*pending.to)
        client_id = connection.client_id
        if frame is None:
            if client_id is None:
                return None
            last = not connection.unused_changes and connection.unsent == 1  # the end itself
            return _Target(client_id) if last else None
        if effect.pulled is not None:
            pull = self._requests.next_pull(connection, effect.pulled, frame.sid)
            if pull is None:
                return None
            share = None if pull.client.id == client_id else Share("consumer", *effect.pulled)
            return _Target(pull.client.id, pull.sid or b"", pull=pull, share=share)
        group = _group(connection, pending)
        if group is not None and self._is_absent(connection, pending, now):
            member = self._member(group)
            if member is not None:
                return member
        if client_id is None:
            return None
        sid = connection.live_sid(frame.sid) if frame.sid else b""
        return None if sid is None else _Target(client_id, sid)

    def _is_absent(self, connection: ConnectionProgress, pending: PendingEffect, now: int) -> bool:
        """Return whether the recorded receiver of a message of a queue group is not subscribed."""
        assert pending.effect.frame is not None
        sid = pending.effect.frame.sid
        if connection.client_id is None:
            return pending.due is not None and pending.due + PATIENCE <= now
        return connection.left or (sid not in connection.sids and sid in connection.ended_sids)

    def _member(self, group: Share) -> _Target | None:
        """Return a live subscription in a queue group, None if there is none."""
        found = (
            _Target(client.id, sid, share=group)
            for client in self._clients.values()
            for sid, other in client.groups.items()
            if other == group
        )
        return next(found, None)

    def _deliver(
        self, connection: ConnectionProgress, pending: PendingEffect, target: _Target, now: int
    ) -> list[Action]:
        self._progress.sent(pending, now)
        client = self._clients.get(target.client_id)
        if client is None:
            self._progress.undelivered += 1
            return []
        client.committed = client.committed or not pending.effect.follows_poll
        if target.share is not None and client.playing is not None:
            self.handed_over[HandedOver(target.share, connection.recorded, client.playing.recorded)] += 1
        frame = pending.effect.frame
        if frame is None:
            return [DisconnectClient(client.id)]
        if frame.op not in (Op.MSG, Op.HMSG):
            return [SendToClient(client.id, frame.raw)]
        if target.pull is not None:
            self._requests.delivered(target.pull, frame.reply, now)
        elif pending.effect.delivery and not target.inbox and frame.reply:
            self._requests.pushed(client, target.sid, frame.reply, now)
        elif pending.effect.delivery and not target.inbox:
            self._requests.ended(connection, self._identifiers.to_live(frame.subject))
        action = SendToClient(client.id, self._message(pending, frame, target.sid, target.inbox))
        if client.limits:
            client.received(target.sid, frame)
        return [action]

    def _message(self, pending: PendingEffect, frame: Frame, sid: bytes, inbox: bytes) -> bytes:
        live, publish = pending.live, pending.effect.copy_of
        subject = inbox or self.live(frame.subject)
        reply, block = frame.reply, frame.headers if frame.header_size else b""
        if live is None or publish is None:
            body, reply, block = self.payload(frame), self.live(reply), self.live(block)
            return encode.msg(subject, sid, body, reply=reply, headers=block)
        # The server may have added headers of its own.
        if reply:
            reply = live.reply if reply == publish.frame.reply else self.live(reply)
        if block:
            block = live.headers if block == publish.frame.headers else self.live(block)
        return encode.msg(subject, sid, live.body, reply=reply, headers=block)

    def payload(self, frame: Frame) -> bytes:
        """Return a recorded payload with the live values in it."""
        if frame.size - frame.header_size < SHORTEST:
            return frame.body
        return live_payload(self._identifiers, frame, self._codec_of)

    def live(self, text: bytes) -> bytes:
        """Return a recorded subject or header block with the live values in it."""
        return live_text(self._identifiers, text) if len(text) >= SHORTEST else text


def _group(connection: ConnectionProgress, pending: PendingEffect) -> Share | None:
    frame = pending.effect.frame
    return None if frame is None else connection.recorded.groups.get(frame.sid)


def _awaits(pending: PendingEffect) -> AwaitedBy:
    """Return what an effect waits for while nobody can receive it."""
    effect = pending.effect
    return effect.pulled or (effect.frame.sid if effect.frame is not None else b"")
