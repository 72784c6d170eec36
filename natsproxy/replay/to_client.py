"""Plays the server of a capture to live clients: events in, actions out, no I/O and no clock.

How it goes
1. A live connection gets INFO at once.  Which recorded connection it plays is decided by what it says and
   does: of the recorded connections that nobody plays, those with its client name (all of them where none
   has it); of these, the one that matches most of what it has sent in its first batch with a SUB or a
   publish; then the earliest.  As long as it has been told nothing, a frame that does not fit may still move
   it to another recorded connection that fits its whole history.
2. Each client frame is matched to the earliest unused exchange of that connection that agrees (`match.py`);
   identifiers are learned on the way.
3. An effect goes out when its causes have happened, its subscription is live and those before it in its lane
   went: on the live sid, to the live inbox.  Answers go at once, timed ones at their recorded distance
   (`timing="recorded"`: all).  A copy of a publish carries the live body.
4. PING is answered live, verbose clients get `+OK`.  UNSUB and answers to flow control never mismatch.
5. Input that was not recorded: "error" answers 503 (a request) or a permissions `-ERR` (clients survive it)
   and keeps the mismatch; "ignore" keeps quiet; "pass" hands it to a real server.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from natsproxy.protocol import headers, info
from natsproxy.protocol.connect import DEFAULTS, Connect, parse_connect
from natsproxy.protocol.subjects import matches
from natsproxy.replay.actions import Action, Forward, Hang, Mismatch, Send
from natsproxy.replay.causes import Kind
from natsproxy.replay.identities import Identities, Pairs
from natsproxy.replay.match import Matcher, Matchers
from natsproxy.replay.near import nearest, preview
from natsproxy.replay.plan import Event
from natsproxy.replay.script import WINDOW, Effect, Exchange, Recorded, Script, is_optional, key_of
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Op

Unrecorded = Literal["error", "ignore", "pass"]
_HISTORY: Final = 64
_MISMATCHES: Final = 1000
_DEFAULT_INFO: Final = (
    b'{"server_id":"NATSPROXY","server_name":"natsproxy","version":"2.15.1","proto":1,"host":"127.0.0.1",'
    b'"port":4222,"headers":true,"max_payload":1048576,"jetstream":true}'
)
_NOT_OURS: Final = (
    "connect_urls", "ws_connect_urls", "tls_required", "tls_verify", "tls_available", "nonce",
    "auth_required", "client_ip", "cluster", "ldm", "connect_info", "xkey",
)  # fmt: skip


@dataclass(slots=True)
class Live:
    """A client that is here.

    history: its first frames.  used, learned: the exchanges that they matched, the identifiers learned.
    told: somebody was told something because of it; it cannot become another recorded connection.
    """

    id: int
    connect: Connect = DEFAULTS
    recorded: Recorded | None = None
    subs: dict[bytes, bytes] = field(default_factory=dict)
    held: list[Frame] = field(default_factory=list)
    history: list[Frame] = field(default_factory=list)
    used: list[Exchange] = field(default_factory=list)
    learned: Pairs = field(default_factory=dict)
    told: bool = False


class ToClient:
    """The machine.  `mismatches` and `unused()` say what did not fit."""

    def __init__(
        self,
        source: Iterator[Event],
        *,
        window: int = WINDOW,
        unrecorded: Unrecorded = "error",
        timing: Literal["answers", "recorded"] = "answers",
        bodies: Matchers = (),
    ) -> None:
        self.script = Script(source, window=window)
        self.identities = Identities()
        self.matcher = Matcher(self.identities, bodies)
        self.mismatches: list[Mismatch] = []
        self._unrecorded = unrecorded
        self._recorded_timing = timing == "recorded"
        self._lives: dict[int, Live] = {}
        self._due: list[tuple[int, int, Recorded, object]] = []
        self._ties = 0
        self._now = 0
        self._actions: list[Action] = []
        self.script.fill()

    # -- events in

    def opened(self, live: int, address: tuple[str, int]) -> list[Action]:
        """A client connected; address: where we listen, for INFO."""
        self._lives[live] = Live(live)
        args = self.script.info or _DEFAULT_INFO
        shown = info.rewrite_info(
            args, remove=_NOT_OURS, set={"host": address[0], "port": address[1], "client_id": live}
        )
        return [Send(live, encode.info(shown))]

    def received(self, live: int, frames: list[Frame], now: int) -> list[Action]:
        """A client sent frames, as far as they came in one read."""
        client = self._lives[live]
        pongs = 0
        for frame in frames:
            if frame.op == Op.PING:
                pongs += 1
                if client.recorded is not None:
                    self._actions.append(Send(live, encode.PONG))
                    pongs -= 1
            elif frame.op == Op.CONNECT:
                try:
                    client.connect = parse_connect(frame.args, client.connect)
                except ValueError:  # the server closes without a word
                    self._actions.append(Hang(live))
                    return self._take()
                self._ok(client)
            elif frame.op in (Op.PUB, Op.HPUB, Op.SUB, Op.UNSUB):
                self._talk(client, frame, now)
        if client.held:
            self._bind(client, now)
        self._actions += [Send(live, encode.PONG)] * pongs
        return self._take()

    def closed(self, live: int, now: int) -> list[Action]:
        """A client is gone."""
        client = self._lives.pop(live, None)
        if client is not None and client.recorded is not None and not client.history:
            client.recorded.live = None
        return self._take()

    def tick(self, now: int) -> list[Action]:
        """Time has passed."""
        self._now = now
        while self._due and self._due[0][0] <= now:
            _, _, recorded, lane = heapq.heappop(self._due)
            self._release(recorded, lane, now)
        return self._take()

    @property
    def deadline(self) -> int | None:
        """When `tick` is wanted next, in ns; None for never."""
        return self._due[0][0] if self._due else None

    @property
    def done(self) -> bool:
        """Whether everything recorded was played: every client frame came, every server frame went."""
        if not self.script.whole:
            return False
        return not any(r.unused or r.unsent for r in self.script.connections.values())

    def waits_for(self) -> str:
        """Say what the conversation waits for, for an error message."""
        left = self.unused()
        if left:
            first, name = left[0], self.script.connections[left[0].conn].name
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            return f"{preview(first.frame)} from client {name!r} (recorded connection {first.conn}){more}"
        return "the last server frames to be due" if not self.done else "nothing"

    def unused(self) -> list[Exchange]:
        """Return the recorded client frames that no live one matched, in order."""
        left = [x for r in self.script.connections.values() for queue in r.open.values() for x in queue]
        return sorted(left, key=lambda x: x.seq)

    def _take(self) -> list[Action]:
        self.script.fill()
        fresh, self.script.fresh = self.script.fresh, []
        for recorded, lane, effect in fresh:
            self._ready(effect)
            self._release(recorded, lane, self._now)
        actions, self._actions = self._actions, []
        return actions

    # -- which recorded connection a live one plays

    def _talk(self, client: Live, frame: Frame, now: int) -> None:
        self._now = now
        self._ok(client)
        if client.recorded is None:
            client.held.append(frame)
        else:
            self._play(client, frame, now)

    def _bind(self, client: Live, now: int) -> None:
        best = self._choose(client, client.held)
        held, client.held = client.held, []
        if best is not None:
            best.live, client.recorded = client.id, best
        for frame in held:
            self._play(client, frame, now)

    def _choose(self, client: Live, frames: list[Frame]) -> Recorded | None:
        free = [r for r in self.script.connections.values() if r.live is None and (r.unused or r.unsent)]
        named = [r for r in free if r.name == client.connect.name]
        best, most = None, -1
        for recorded in named or free:
            fits = self._fits(recorded, frames)
            if fits > most:
                best, most = recorded, fits
        return best

    def _fits(self, recorded: Recorded, frames: list[Frame]) -> int:
        """Count the frames that a recorded connection has exchanges for; learn nothing."""
        taken: set[int] = set()
        new: Pairs = {}
        for frame in frames:
            for exchange in recorded.open.get(key_of(frame), ()):
                pairs = dict(new)
                if exchange.seq not in taken and not self.matcher.differs(exchange.frame, frame, pairs):
                    taken.add(exchange.seq)
                    new = pairs
                    break
        return len(taken)

    def _move(self, client: Live, frame: Frame) -> bool:
        """Let a client that was told nothing play another recorded connection that fits all it has said."""
        now = client.recorded
        if now is None or client.told or len(client.history) >= _HISTORY:
            return False
        talk = [*client.history, frame]
        self.identities.forget(client.learned)
        other = self._choose(client, talk)
        if other is None or self._fits(other, talk) < len(talk):
            self.identities.learn(client.learned)
            return False
        for exchange in client.used:
            self.script.give_back(exchange)
        client.used, client.learned = [], {}
        now.live, other.live, client.recorded = None, client.id, other
        return True

    # -- matching

    def _find(self, recorded: Recorded, frame: Frame) -> tuple[Exchange, Pairs] | None:
        for strict in (True, False):
            for exchange in recorded.open.get(key_of(frame), ()):
                new: Pairs = {}
                if not self.matcher.differs(exchange.frame, frame, new, strict=strict):
                    return exchange, new
        return None

    def _play(self, client: Live, frame: Frame, now: int) -> None:
        if is_optional(frame):
            self._pass(client, frame)
            return
        if frame.op == Op.SUB:
            client.subs[frame.sid] = frame.subject
            self._pass(client, frame)
        recorded = client.recorded
        found = self._find(recorded, frame) if recorded is not None else None
        if found is None and self._move(client, frame):
            history, client.history = client.history, []
            for past in (*history, frame):
                self._play(client, past, now)
            return
        if len(client.history) < _HISTORY:
            client.history.append(frame)
        if found is None or recorded is None:
            self._mismatch(client, frame)
            return
        exchange, new = found
        self.identities.learn(new)
        if not client.told:
            client.told = bool(exchange.effects) or len(client.history) >= _HISTORY
            client.used.append(exchange)
            client.learned |= new
        self._matched(recorded, exchange, frame, now)

    def _matched(self, recorded: Recorded, exchange: Exchange, frame: Frame, now: int) -> None:
        ready = self.script.use(exchange, now)
        exchange.live = frame
        for effect in ready:
            self._ready(effect)
        if frame.op == Op.SUB:
            recorded.sids[exchange.frame.sid] = frame.sid
            for lane in recorded.parked.pop(exchange.frame.sid, ()):
                self._release(recorded, lane, now)
        for effect in ready:
            owner = self.script.connections[effect.conn]
            self._release(owner, _lane(effect), now)
        self._release(recorded, "end", now)

    def _mismatch(self, client: Live, frame: Frame) -> None:
        if self._unrecorded == "pass" and frame.op != Op.SUB:
            self._pass(client, frame)
        if self._unrecorded != "error":
            return
        near = nearest(frame, client.recorded, self.script, self.matcher)
        if len(self.mismatches) < _MISMATCHES:
            self.mismatches.append(Mismatch(client.id, client.connect.name, preview(frame), near))
        self._actions.append(Send(client.id, self._refusal(client, frame)))

    def _pass(self, client: Live, frame: Frame) -> None:
        """Hand a frame to the real server; it hears of all subscriptions, so that it can answer."""
        if self._unrecorded == "pass":
            self._actions.append(Forward(client.id, frame.raw))

    def _refusal(self, client: Live, frame: Frame) -> bytes:
        subject, publish = frame.subject, frame.op != Op.SUB
        if publish and frame.reply and client.connect.headers:
            sid = next((sid for sid, sub in client.subs.items() if matches(sub, frame.reply)), None)
            if sid is not None:
                pairs = [(b"Nats-Subject", subject), (b"Natsproxy-Mismatch", b"not in the capture")]
                return encode.msg(frame.reply, sid, headers=headers.build(pairs, code=b"503"))
        what = b"Publish" if publish else b"Subscription"
        return encode.err(b'Permissions Violation for %b to "%b": not in the capture' % (what, subject))

    def _ok(self, client: Live) -> None:
        if client.connect.verbose and client.connect is not DEFAULTS:
            self._actions.append(Send(client.id, encode.OK))

    # -- effects

    def _ready(self, effect: Effect) -> None:
        timed = effect.kind is Kind.TIMED or self._recorded_timing
        effect.due = effect.last + (effect.offset if timed else 0)

    def _release(self, recorded: Recorded, lane: object, now: int) -> None:
        """Send what may go in a lane, in order; ask to be woken for what may go later."""
        queue = recorded.lanes.get(lane)
        while queue:
            effect = queue[0]
            if effect.due is None:
                return
            if recorded.live is None or not self._subscribed(recorded, effect):
                sid = effect.frame.sid if effect.frame is not None else b""
                recorded.parked.setdefault(sid, {})[lane] = None
                return
            if effect.due > now:
                self._ties += 1
                heapq.heappush(self._due, (effect.due, self._ties, recorded, lane))
                return
            queue.popleft()
            self._deliver(recorded, effect)
            if recorded.unsent == 1 and "end" in recorded.lanes:
                self._release(recorded, "end", now)
        if queue is not None and not queue:
            recorded.lanes.pop(lane, None)

    def _subscribed(self, recorded: Recorded, effect: Effect) -> bool:
        """Tell whether an effect can reach its client; the end of a connection comes after all else."""
        frame = effect.frame
        if frame is None:
            return not recorded.unused and recorded.unsent == 1
        return not frame.sid or frame.sid in recorded.sids

    def _deliver(self, recorded: Recorded, effect: Effect) -> None:
        assert recorded.live is not None
        self.script.sent(recorded, effect)
        live = self._lives.get(recorded.live)
        if live is None:
            return
        live.told = True
        frame = effect.frame
        if frame is None:
            self._actions.append(Hang(live.id))
        elif frame.op in (Op.MSG, Op.HMSG):
            self._actions.append(Send(live.id, self._message(recorded, effect, frame)))
        else:
            self._actions.append(Send(live.id, frame.raw))

    def _message(self, recorded: Recorded, effect: Effect, frame: Frame) -> bytes:
        identities = self.identities
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
