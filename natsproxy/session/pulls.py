"""The JetStream pulls of one client that the server has yet to serve: another server gets them again.

Theory
1. A pull asks for a number of messages on a reply subject.  They come on their own subjects, so they are
   counted by the subscription of the reply subject, and belong to its oldest pull.
2. A status comes on the reply subject itself.  All but heartbeats end the oldest pull there.
3. A pull that waits to be sent is no server's yet; one that rules have changed is not known here.
4. The consumer of a lost server needs a new leader before it can be asked, and until then a pull gets a 503.
   One that its client has sent before that, to another server, is sent again.
5. A server that stops in order ends the pulls of its consumers with a 409.  They are sent again, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from natsproxy.protocol import gojson, headers
from natsproxy.protocol.jetstream import (
    PullRequest,
    StatusKind,
    api_patterns,
    members,
    pull_request,
    status_kind,
)
from natsproxy.session.direction import FAILOVER, DirectionPipe
from natsproxy.session.subscriptions import Subscriptions
from natsproxy.units import MILLISECOND
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame, Need
from natsproxy.wire.interest import Clause
from natsproxy.wire.ops import Op, op_mask

PULL_CLAUSE: Final = Clause(op_mask(Op.PUB, Op.HPUB), Need.PAYLOAD, api_patterns("CONSUMER.MSG.NEXT"))
"""The frames that `Pulls.sent` is to see."""
MOST: Final = 64
"""The pulls of one client that are known; of more, the oldest are forgotten."""
_LONGEST: Final = 4096  # bytes of a pull
_AGAIN: Final = 250 * MILLISECOND
_NEVER: Final = 1 << 63
_STOPS: Final = b"Server Shutdown"  # of a 409


@dataclass(slots=True, eq=False)
class _Pull:
    """One pull.

    sid: of the subscription to its reply subject.  left: the messages that it may still get.  until: its end
    (ns).  waits: it is still to be sent.  moved: it was sent to another server.  again: when to send it
    again (ns), None for not at all.
    """

    subject: bytes
    reply: bytes
    sid: bytes
    body: bytes
    request: PullRequest
    left: int
    until: int
    waits: bool
    moved: bool = False
    again: int | None = None

    def raw(self, now: int) -> bytes:
        """Return a pull for what is left of it."""
        given, body = members(self.body), b"%d" % self.left
        if given:
            given["batch"] = self.left
            if self.request.expires:
                given["expires"] = self.until - now
            if self.request.heartbeat:  # the server refuses one that is longer than half of the time
                given["idle_heartbeat"] = min(self.request.heartbeat, (self.until - now) // 2)
            body = gojson.dumps(given)
        return encode.pub(self.subject, body, reply=self.reply)


class Pulls:
    """Keeps the pulls of one connection in step with client and server."""

    __slots__ = ("_c2s", "_counted", "_pulls", "_s2c", "_subscriptions", "_watched")

    def __init__(self, pipes: tuple[DirectionPipe, DirectionPipe], subscriptions: Subscriptions) -> None:
        self._c2s, self._s2c = pipes
        self._subscriptions = subscriptions
        self._pulls: list[_Pull] = []  # the oldest first
        self._counted: dict[bytes, int] = {}  # the deliveries by sid that are taken off the pulls
        self._watched: set[bytes] = set()  # the reply subjects that no rule has watched before

    def sent(self, frame: Frame, now: int) -> None:
        """Note a pull that passes as it came."""
        sid = self._subscriptions.sid_of(frame.reply) if frame.reply else None
        if sid is None or frame.missing or frame.size > _LONGEST:
            return
        self._settle(now)
        if len(self._pulls) == MOST:
            self._forget(self._pulls[0])
        request = pull_request(frame.body)
        until = now + request.expires if request.expires else _NEVER
        waits = self._c2s.outbox.held
        self._pulls.append(
            _Pull(frame.subject, frame.reply, sid, frame.body, request, request.batch, until, waits)
        )
        self._subscriptions.count(sid)
        self._counted.setdefault(sid, self._subscriptions.delivered_on(sid))
        watches = self._s2c.scanner.watch_subjects
        if frame.reply not in watches:
            self._watched.add(frame.reply)
        watches[frame.reply] = max(Need.HEADERS, watches.get(frame.reply, Need.NONE))

    def answered(self, frame: Frame, now: int) -> bool:
        """Note a status of a pull; return whether the client does not get it, since the pull goes on."""
        status = headers.parse(frame.headers)
        if not status.code or all(one.reply != frame.subject for one in self._pulls):
            return False
        if frame.sid in self._counted and not frame.no_responders:
            self._counted[frame.sid] += 1  # it is no message of the stream
        self._settle(now)
        pull = next((one for one in self._pulls if one.reply == frame.subject and not one.waits), None)
        if pull is None or status.code == b"100":
            return False
        stops = status.code == b"409" and status.description == _STOPS
        leaderless = status_kind(status.code) is StatusKind.NO_RESPONDERS and pull.moved
        if (stops or leaderless) and now + _AGAIN < pull.until:
            pull.again, pull.moved = now + _AGAIN, True
            return True
        self._forget(pull)
        return False

    def lose_server(self, now: int) -> None:
        """Take off what the lost server has delivered."""
        self._settle(now)
        for pull in self._pulls:
            pull.again = None

    def replay(self, now: int) -> list[bytes]:
        """Return the pulls for another server, for what is left of them."""
        self._settle(now)
        moved = [pull for pull in self._pulls if not pull.waits]
        for pull in moved:
            pull.moved = True
        return [pull.raw(now) for pull in moved]

    def resume(self) -> None:
        """Note that those that waited go out."""
        for pull in self._pulls:
            pull.waits = False

    def next_due(self) -> int | None:
        """Return the time (ns) at which `due` is to be called next; None for not at all."""
        return min((pull.again for pull in self._pulls if pull.again is not None), default=None)

    def due(self, now: int) -> None:
        """Send pulls again whose consumers had no leader."""
        ready = [pull for pull in self._pulls if pull.again is not None and pull.again <= now]
        for pull in ready:
            pull.again = None
            if pull.until > now:
                self._c2s.inject(pull.raw(now), Op.PUB.bit, now, FAILOVER)

    def _settle(self, now: int) -> None:
        """Take the deliveries since the last call off the pulls; forget those that are over."""
        came: dict[bytes, int] = {}
        for sid, before in self._counted.items():
            total = self._subscriptions.delivered_on(sid)
            came[sid], self._counted[sid] = max(0, total - before), total
        for pull in tuple(self._pulls):
            taken = min(came.get(pull.sid, 0), pull.left)
            pull.left -= taken
            came[pull.sid] = came.get(pull.sid, 0) - taken
            if not pull.left or pull.until <= now or pull.sid not in self._subscriptions.table:
                self._forget(pull)

    def _forget(self, pull: _Pull) -> None:
        self._pulls.remove(pull)
        if pull.reply in self._watched and all(one.reply != pull.reply for one in self._pulls):
            self._watched.remove(pull.reply)
            self._s2c.scanner.watch_subjects.pop(pull.reply, None)
        if all(one.sid != pull.sid for one in self._pulls):
            self._counted.pop(pull.sid, None)
