"""When a recorded server frame goes out, and in what form.

An effect goes out when its causes have happened, its subscription is live and those before it in its lane
went: on the live sid, to the live inbox.  A lane is a subject on a subscription, or a consumer's whole
delivery, whose order counts whatever the subjects.  Answers go at once, timed ones at their recorded distance
(with `recorded`: all).  A copy of a publish carries the live body.
"""

from __future__ import annotations

import heapq

from natsproxy.replay.conversation.causes import Kind
from natsproxy.replay.conversation.exchanges import Effect, Recorded, RecordedConversation
from natsproxy.replay.conversation.identities import Identities
from natsproxy.replay.server_playback.actions import Action, EndConnection, Send
from natsproxy.replay.server_playback.binding import Client
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Op


class Delivery:
    """Sends effects: its actions go to `actions`.  clients: who is here, by number."""

    def __init__(
        self,
        script: RecordedConversation,
        identities: Identities,
        clients: dict[int, Client],
        actions: list[Action],
        *,
        recorded: bool,
    ) -> None:
        self._script = script
        self._identities = identities
        self._clients = clients
        self._actions = actions
        self._recorded_timing = recorded
        self._due: list[tuple[int, int, Recorded, object]] = []
        self._ties = 0

    @property
    def deadline(self) -> int | None:
        """When `tick` is wanted next, in ns; None for never."""
        return self._due[0][0] if self._due else None

    def tick(self, now: int) -> None:
        """Send what has become due."""
        while self._due and self._due[0][0] <= now:
            _, _, recorded, lane = heapq.heappop(self._due)
            self.release(recorded, lane, now)

    def fresh(self, now: int) -> None:
        """Send what was read on behind causes that have happened."""
        fresh, self._script.fresh = self._script.fresh, []
        for recorded, lane, effect in fresh:
            self._ready(effect)
            self.release(recorded, lane, now)

    def caused(self, ready: list[Effect], now: int) -> None:
        """Send effects whose last cause has happened."""
        for effect in ready:
            self._ready(effect)
        for effect in ready:
            self.release(self._script.connections[effect.conn], _lane(effect), now)

    def subscribed(self, recorded: Recorded, sid: bytes, now: int) -> None:
        """Send what waited for a subscription; sid: the recorded one."""
        for lane in recorded.parked.pop(sid, ()):
            self.release(recorded, lane, now)

    def _ready(self, effect: Effect) -> None:
        timed = effect.kind is Kind.TIMED or self._recorded_timing
        effect.due = effect.last + (effect.offset if timed else 0)

    def release(self, recorded: Recorded, lane: object, now: int) -> None:
        """Send what may go in a lane, in order; ask to be woken for what may go later."""
        queue = recorded.lanes.get(lane)
        while queue:
            effect = queue[0]
            if effect.due is None:
                return
            if recorded.live is None or not self._reaches(recorded, effect):
                sid = effect.frame.sid if effect.frame is not None else b""
                recorded.parked.setdefault(sid, {})[lane] = None
                return
            if effect.due > now:
                self._ties += 1
                heapq.heappush(self._due, (effect.due, self._ties, recorded, lane))
                return
            queue.popleft()
            self._deliver(recorded, effect, now)
            if recorded.unsent == 1 and "end" in recorded.lanes:
                self.release(recorded, "end", now)
        if queue is not None and not queue:
            recorded.lanes.pop(lane, None)

    def _reaches(self, recorded: Recorded, effect: Effect) -> bool:
        """Tell whether an effect can reach its client; the end of a connection comes after all else."""
        frame = effect.frame
        if frame is None:
            return not recorded.unused and recorded.unsent == 1
        return not frame.sid or frame.sid in recorded.sids

    def _deliver(self, recorded: Recorded, effect: Effect, now: int) -> None:
        assert recorded.live is not None
        self._script.sent(recorded, effect, now)
        client = self._clients.get(recorded.live)
        if client is None:
            return
        client.told = True
        frame = effect.frame
        if frame is None:
            self._actions.append(EndConnection(client.id))
        elif frame.op in (Op.MSG, Op.HMSG):
            self._actions.append(Send(client.id, self._message(recorded, effect, frame)))
        else:
            self._actions.append(Send(client.id, frame.raw))

    def _message(self, recorded: Recorded, effect: Effect, frame: Frame) -> bytes:
        identities = self._identities
        subject, reply = identities.to_live(frame.subject), identities.to_live(frame.reply)
        for known in (subject, reply):
            if known:
                identities.told(known)
        body = frame.body
        if effect.origin is not None and effect.origin.live is not None:
            body = effect.origin.live.body
        elif body.startswith(b'{"type":"io.nats.jetstream.api.'):
            body = identities.text_to_live(body)
        return encode.msg(subject, recorded.sids[frame.sid], body, reply=reply, headers=frame.headers)


def _lane(effect: Effect) -> object:
    frame = effect.frame
    return "end" if frame is None else (frame.sid, b"" if effect.stream else frame.subject)
