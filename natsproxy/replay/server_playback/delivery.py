"""The delivery of recorded server frames to live clients.

An effect is sent when its causes have happened, its subscription is live and the effects before it in its
queue were sent.  It goes to the live sid and the live inbox.  A queue is a subject on a subscription, or a
consumer's whole delivery, whose order counts across subjects.  Answers are sent at once, timed effects at
their recorded distance (with timing `recorded`: all effects).  A copy of a publish carries the live headers
and body, any other message the live values that are known.
"""

from __future__ import annotations

import heapq

from natsproxy.replay.conversation.causes import Timing
from natsproxy.replay.conversation.exchanges import (
    END,
    Effect,
    QueueKey,
    RecordedConnection,
    RecordedConversation,
    queue_key,
)
from natsproxy.replay.conversation.identifier_map import IdentifierMap
from natsproxy.replay.conversation.live_values import live_text
from natsproxy.replay.server_playback.actions import Action, EndConnection, Send
from natsproxy.replay.server_playback.binding import Client
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
        self._due: list[tuple[int, int, RecordedConnection, QueueKey]] = []
        self._ties = 0

    @property
    def deadline(self) -> int | None:
        """The next time at which `tick` has to be called, in ns; None for never."""
        return self._due[0][0] if self._due else None

    def tick(self, now: int) -> None:
        """Send the effects that have become due."""
        while self._due and self._due[0][0] <= now:
            _, _, recorded, key = heapq.heappop(self._due)
            self.release(recorded, key, now)

    def send_newly_ready(self, now: int) -> None:
        """Send effects that were read after their causes had happened."""
        newly_ready, self._conversation.newly_ready = self._conversation.newly_ready, []
        for recorded, key, effect in newly_ready:
            self._ready(effect)
            self.release(recorded, key, now)

    def caused(self, ready: list[Effect], now: int) -> None:
        """Send effects whose last cause has happened."""
        for effect in ready:
            self._ready(effect)
        for effect in ready:
            self.release(self._conversation.connections[effect.conn], queue_key(effect), now)

    def subscribed(self, recorded: RecordedConnection, sid: bytes, now: int) -> None:
        """Send the effects that waited for a subscription; sid: the recorded one."""
        for key in recorded.parked.pop(sid, ()):
            self.release(recorded, key, now)

    def _ready(self, effect: Effect) -> None:
        timed = effect.timing is Timing.TIMED or self._recorded_timing
        effect.due = effect.caused_at + (effect.offset if timed else 0)

    def release(self, recorded: RecordedConnection, key: QueueKey, now: int) -> None:
        """Send the effects of a queue that may go, in order; set a deadline for a later one."""
        queue = recorded.queues.get(key)
        while queue:
            effect = queue[0]
            if effect.due is None:  # its causes have not happened, and those behind it keep their order
                return
            if recorded.client_id is None or not self._reaches(recorded, effect):
                sid = effect.frame.sid if effect.frame is not None else b""
                recorded.parked.setdefault(sid, {})[key] = None
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
        if frame is None:
            return not recorded.unused and recorded.unsent == 1
        return not frame.sid or frame.sid in recorded.sids

    def _deliver(self, recorded: RecordedConnection, effect: Effect, now: int) -> None:
        assert recorded.client_id is not None
        self._conversation.sent(recorded, effect, now)
        client = self._clients.get(recorded.client_id)
        if client is None:
            return
        client.committed = True
        frame = effect.frame
        if frame is None:
            self._actions.append(EndConnection(client.id))
        elif frame.op in (Op.MSG, Op.HMSG):
            self._actions.append(Send(client.id, self._message(recorded, effect, frame)))
        else:
            self._actions.append(Send(client.id, frame.raw))

    def _message(self, recorded: RecordedConnection, effect: Effect, frame: Frame) -> bytes:
        def live(text: bytes) -> bytes:
            return live_text(self._identifiers, text) if text else text

        origin = effect.origin
        body, block = None, None
        if origin is not None and origin.live_frame is not None:
            body = origin.live_frame.body
            if frame.headers == origin.frame.headers:  # the server added none of its own
                block = origin.live_frame.headers
        return encode.msg(
            live(frame.subject),
            recorded.sids[frame.sid],
            live(frame.body) if body is None else body,
            reply=live(frame.reply),
            headers=live(frame.headers) if block is None else block,
        )
