"""The delivery of recorded server frames to live clients.

An effect is sent when its causes have happened, its subscription is live and the effects before it in its
queue were sent.  It goes to the live sid and the live inbox.  A queue is a subject on a subscription, or a
consumer's whole delivery, whose order counts across subjects.  Answers are sent at once, timed effects at
their recorded distance (with timing `recorded`: all effects).  A message that a pull request asked for goes
to the oldest live one that stands (`standing.py`).  A copy of a publish carries the live headers and body,
any other message the live values that are known.
"""

from __future__ import annotations

import heapq

from natsproxy.replay.conversation.causes import Timing
from natsproxy.replay.conversation.exchanges import (
    END,
    Effect,
    Place,
    QueueKey,
    RecordedConnection,
    RecordedExchange,
)
from natsproxy.replay.conversation.identifier_map import SHORTEST, IdentifierMap, live_text
from natsproxy.replay.conversation.recorded_conversation import RecordedConversation
from natsproxy.replay.server_playback.actions import Action, DisconnectClient, SendToClient
from natsproxy.replay.server_playback.binding import Client
from natsproxy.replay.server_playback.standing import StandingRequests
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Op


class Delivery:
    """Sends effects: its actions go to `actions`.  clients: the live clients, by number."""

    def __init__(
        self,
        conversation: RecordedConversation,
        identifiers: IdentifierMap,
        clients: dict[int, Client],
        actions: list[Action],
        *,
        recorded: bool,
    ) -> None:
        self._conversation = conversation
        self._identifiers = identifiers
        self._clients = clients
        self._actions = actions
        self._recorded_timing = recorded
        self.standing = StandingRequests(actions)
        self._due: list[tuple[int, int, RecordedConnection, QueueKey]] = []
        self._ties = 0

    @property
    def deadline(self) -> int | None:
        """The next time at which `tick` has to be called, in ns; None for never."""
        first, standing = self._due[0][0] if self._due else None, self.standing.deadline
        return first if standing is None else standing if first is None else min(first, standing)

    def tick(self, now: int) -> None:
        """SendToClient the effects that have become due."""
        while self._due and self._due[0][0] <= now:
            _, _, recorded, key = heapq.heappop(self._due)
            self.release(recorded, key, now)
        self.standing.tick(now)

    def send_newly_ready(self, now: int) -> None:
        """SendToClient effects that were read after their causes had happened."""
        if not self._conversation.newly_ready:
            return
        newly_ready, self._conversation.newly_ready = self._conversation.newly_ready, []
        for recorded, effect in newly_ready:
            self._ready(effect)
            self.release(recorded, effect.queue, now)

    def caused(self, ready: list[Effect], now: int) -> None:
        """SendToClient effects whose last cause has happened."""
        for effect in ready:
            self._ready(effect)
        for effect in ready:
            self.release(self._conversation.connections[effect.conn], effect.queue, now)

    def arrived(self, recorded: RecordedConnection, place: Place, now: int) -> None:
        """SendToClient the effects that waited for a subscription, or for a pull request at a consumer."""
        for key in recorded.parked.pop(place, ()):
            self.release(recorded, key, now)

    def unsubscribed(self, client: Client, sid: bytes) -> None:
        """Forget a subscription; messages that are late still go there."""
        for table in (client.subs, client.inboxes, client.unpassed, client.limits):
            table.pop(sid, None)
        recorded, known = client.recorded, client.sids.get(sid)
        if recorded is None or known is None:
            return
        if recorded.sids.get(known) == sid:
            self._conversation.ended_sids[recorded.conn, known] = recorded.sids.pop(known)
        if not client.passed:  # else its messages may be on their way from the real server
            del client.sids[sid]

    def heard(self, client: Client, sid: bytes, frame: Frame) -> None:
        """Count a message, recorded or of the real server, on a subscription that may have a limit."""
        left = client.limits.get(sid)
        if left is not None and not frame.no_responders:
            client.limits[sid] = left - 1
            if left <= 1:
                self.unsubscribed(client, sid)

    def stands(
        self,
        client: Client,
        recorded: RecordedConnection,
        exchange: RecordedExchange,
        frame: Frame,
        now: int,
        *,
        repeats: bool = False,
    ) -> None:
        """Note a live frame that may be a standing request, and send the messages that waited for it."""
        consumer = self.standing.add(client, recorded, exchange, frame, now, repeats=repeats)
        if consumer is not None:
            self.arrived(recorded, consumer, now)

    def answer_again(self, client: Client, exchange: RecordedExchange, frame: Frame) -> None:
        """SendToClient the answers to a past request to another one like it."""
        sid = client.hears(frame.reply)
        if sid is None:
            return
        for answer in exchange.answers:
            body, block = self._live(answer.body), self._live(answer.headers)
            self._actions.append(SendToClient(client.id, encode.msg(frame.reply, sid, body, headers=block)))
            self.heard(client, sid, answer)

    def _ready(self, effect: Effect) -> None:
        timed = effect.timing is Timing.TIMED or self._recorded_timing
        effect.due = effect.caused_at + (effect.offset if timed else 0)

    def release(self, recorded: RecordedConnection, key: QueueKey, now: int) -> None:
        """SendToClient the effects of a queue that may go, in order; set a deadline for a later one."""
        queue = recorded.queues.get(key)
        while queue:
            effect = queue[0]
            if effect.due is None:  # its causes have not happened, and those behind it keep their order
                return
            if not self._reaches(recorded, effect):
                place = effect.pulled or (effect.frame.sid if effect.frame is not None else b"")
                recorded.parked.setdefault(place, {})[key] = None
                return
            if effect.due > now:
                self._ties += 1  # entries of one time keep their order, and connections are never compared
                heapq.heappush(self._due, (effect.due, self._ties, recorded, key))
                return
            queue.popleft()
            self._deliver(recorded, effect, now)
            # Only the end of the connection is left: it waited for all other effects.
            if recorded.unsent == 1 and END in recorded.queues:
                self.release(recorded, END, now)
        if queue is not None and not queue:
            recorded.queues.pop(key, None)

    def _reaches(self, recorded: RecordedConnection, effect: Effect) -> bool:
        """Tell whether an effect can reach its client; the end of a connection comes after all else."""
        frame = effect.frame
        if effect.to is not None:
            return True
        if recorded.client_id is None:
            return False
        if frame is None:
            return not recorded.unused and recorded.unsent == 1
        if effect.pulled is not None:
            return self.standing.taker(recorded, effect.pulled) is not None
        return not frame.sid or self._live_sid(recorded, frame.sid) is not None

    def _live_sid(self, recorded: RecordedConnection, sid: bytes) -> bytes | None:
        return recorded.sids.get(sid) or self._conversation.ended_sids.get((recorded.conn, sid))

    def _deliver(self, recorded: RecordedConnection, effect: Effect, now: int) -> None:
        self._conversation.sent(recorded, effect, now)
        client_id = recorded.client_id if effect.to is None else effect.to.client_id
        client = None if client_id is None else self._clients.get(client_id)
        if client is None:
            return
        client.committed = True
        frame = effect.frame
        if effect.to is not None and frame is not None:
            self._actions.append(
                SendToClient(client.id, self._message(effect, frame, effect.to.sid, effect.to.inbox))
            )
            self.heard(client, effect.to.sid, frame)
        elif frame is None:
            self._actions.append(DisconnectClient(client.id))
        elif frame.op in (Op.MSG, Op.HMSG):
            sid = self._sid(client, recorded, effect, frame, now)
            self._actions.append(SendToClient(client.id, self._message(effect, frame, sid)))
            if client.limits:
                self.heard(client, sid, frame)
        else:
            self._actions.append(SendToClient(client.id, frame.raw))

    def _sid(
        self, client: Client, recorded: RecordedConnection, effect: Effect, frame: Frame, now: int
    ) -> bytes:
        """Return the live subscription for a message; count it where it fulfils a standing request."""
        if effect.pulled is not None:
            taker = self.standing.taker(recorded, effect.pulled)
            assert taker is not None  # else it would not have been released
            self.standing.took(taker, frame.reply, now)
            return taker.sid or b""
        sid = self._live_sid(recorded, frame.sid)
        assert sid is not None  # else it would not have been released
        if effect.stream:
            if frame.reply:
                self.standing.pushed(client, sid, frame.reply, now)
            else:
                self.standing.ended(recorded, self._identifiers.to_live(frame.subject))
        return sid

    def _message(self, effect: Effect, frame: Frame, sid: bytes, inbox: bytes = b"") -> bytes:
        live = effect.live
        known = frame if effect.origin is None else effect.origin.frame
        subject = inbox or self._live(frame.subject)
        body = self._live(frame.body) if live is None else live.body
        reply, block = frame.reply, frame.headers if frame.header_size else b""
        if reply:
            reply = live.reply if live is not None and reply == known.reply else self._live(reply)
        if block:  # the server may have added some of its own
            block = live.headers if live is not None and block == known.headers else self._live(block)
        return encode.msg(subject, sid, body, reply=reply, headers=block)

    def _live(self, text: bytes) -> bytes:
        return live_text(self._identifiers, text) if len(text) >= SHORTEST else text
