"""Plays the server of a capture to live clients: events in, actions out, no I/O and no clock.

How it goes
1. A live connection gets INFO at once.  Which recorded connection it plays is decided by what it says and
   does (`binding.py`).
2. Each client frame is matched to the earliest unused exchange of that connection that agrees (`match.py`);
   identifiers are learned on the way.
3. What it caused goes out when everything that it waits for has happened (`delivery.py`).
4. PING is answered live, verbose clients get `+OK`.  UNSUB and answers to flow control never mismatch.
5. Input that was not recorded: "error" answers with an error that clients survive (`refusal.py`) and keeps
   the mismatch; "ignore" keeps quiet; "pass" hands it to a real server, which hears of all
   subscriptions, so that it can answer; "record" does that and collects both for the cassette
   (`episodes.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from natsproxy.protocol import info
from natsproxy.protocol.connect import DEFAULTS, parse_connect
from natsproxy.protocol.subjects import matches
from natsproxy.replay.conversation.exchanges import (
    WINDOW,
    Exchange,
    Recorded,
    RecordedConversation,
    alone,
    is_optional,
    key_of,
)
from natsproxy.replay.conversation.identities import Identities, Pairs
from natsproxy.replay.conversation.matching import Matcher, Matchers
from natsproxy.replay.conversation.steps import Event
from natsproxy.replay.server_playback.actions import Action, EndConnection, Forward, Mismatch, Send
from natsproxy.replay.server_playback.binding import HISTORY, Binder, Client
from natsproxy.replay.server_playback.delivery import Delivery
from natsproxy.replay.server_playback.mismatch_replies import mismatch_reply
from natsproxy.replay.server_playback.new_episodes import NewEpisodes
from natsproxy.replay.server_playback.suggestions import nearest, preview
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Op

Unrecorded = Literal["error", "ignore", "pass", "record"]
_MISMATCHES: Final = 1000
_DEFAULT_INFO: Final = (
    b'{"server_id":"NATSPROXY","server_name":"natsproxy","version":"2.15.1","proto":1,"host":"127.0.0.1",'
    b'"port":4222,"headers":true,"max_payload":1048576,"jetstream":true}'
)
_NOT_OURS: Final = (
    "connect_urls",
    "ws_connect_urls",
    "tls_required",
    "tls_verify",
    "tls_available",
    "nonce",
    "auth_required",
    "client_ip",
    "cluster",
    "ldm",
    "connect_info",
    "xkey",
)


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
        self.script = RecordedConversation(source, window=window)
        self.identities = Identities()
        self.matcher = Matcher(self.identities, bodies)
        self.mismatches: list[Mismatch] = []
        self.episodes = NewEpisodes(self.script, self.identities) if unrecorded == "record" else None
        self._unrecorded = unrecorded
        self._passes = unrecorded in ("pass", "record")
        self._clients: dict[int, Client] = {}
        self._now = 0
        self._actions: list[Action] = []
        self._binder = Binder(self.script, self.matcher)
        self._delivery = Delivery(
            self.script, self.identities, self._clients, self._actions, recorded=timing == "recorded"
        )
        self.script.fill()

    # -- events in

    def opened(self, live: int, address: tuple[str, int]) -> list[Action]:
        """A client connected; address: where we listen, for INFO."""
        self._clients[live] = Client(live)
        args = self.script.info or _DEFAULT_INFO
        shown = info.rewrite_info(
            args, remove=_NOT_OURS, set={"host": address[0], "port": address[1], "client_id": live}
        )
        return [Send(live, encode.info(shown))]

    def received(self, live: int, frames: list[Frame], now: int) -> list[Action]:
        """A client sent frames, as far as they came in one read."""
        client = self._clients[live]
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
                    self._actions.append(EndConnection(live))
                    return self._take()
                client.hello = frame
                self._ok(client)
            elif frame.op in (Op.PUB, Op.HPUB, Op.SUB, Op.UNSUB):
                self._talk(client, frame, now)
        if client.held:
            self._bind(client, now)
        self._actions += [Send(live, encode.PONG)] * pongs
        return self._take()

    def closed(self, live: int, now: int) -> list[Action]:
        """A client is gone."""
        client = self._clients.pop(live, None)
        if client is not None and client.recorded is not None and not client.history:
            client.recorded.live = None
        if client is not None and self.episodes is not None:
            self.episodes.ended(client, now)
        return self._take()

    def answered(self, live: int, frame: Frame, now: int) -> list[Action]:
        """The real server sent a client a message, or an error."""
        client = self._clients.get(live)
        if client is not None:
            if self.episodes is not None:
                self.episodes.answered(client, frame, now)
            self._actions.append(Send(live, frame.raw))
        return self._take()

    def tick(self, now: int) -> list[Action]:
        """Time has passed."""
        self._now = now
        self._delivery.tick(now)
        return self._take()

    @property
    def deadline(self) -> int | None:
        """When `tick` is wanted next, in ns; None for never."""
        return self._delivery.deadline

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
            who = (
                f"client {name!r} (recorded connection {first.conn})"
                if name
                else f"recorded connection {first.conn}"
            )
            return f"{preview(first.frame)} from {who}{more}"
        return "the last server frames to be due" if not self.done else "nothing"

    def unused(self) -> list[Exchange]:
        """Return the recorded client frames that no live one matched, in order."""
        left = [x for r in self.script.connections.values() for queue in r.open.values() for x in queue]
        return sorted(left, key=lambda x: x.seq)

    def _take(self) -> list[Action]:
        self.script.fill()
        self._delivery.fresh(self._now)
        actions = self._actions[:]
        self._actions.clear()
        return actions

    def _talk(self, client: Client, frame: Frame, now: int) -> None:
        self._now = now
        self._ok(client)
        if client.recorded is None:
            client.held.append(frame)
        else:
            self._play(client, frame, now)

    def _bind(self, client: Client, now: int) -> None:
        self._binder.bind(client)
        held, client.held = client.held, []
        for frame in held:
            self._play(client, frame, now)

    # -- matching

    def _find(self, recorded: Recorded, frame: Frame) -> tuple[Exchange, Pairs] | None:
        for strict in (True, False):
            for exchange in recorded.open.get(key_of(frame), ()):
                new: Pairs = {}
                if not self.matcher.differs(exchange.frame, frame, new, strict=strict):
                    return exchange, new
        return None

    def _play(self, client: Client, frame: Frame, now: int) -> None:
        if is_optional(frame):
            self._pass(client, frame)
            if self.episodes is not None and frame.op == Op.UNSUB:
                self.episodes.unsubscribed(client, frame, now)
            return
        if frame.op == Op.SUB:
            client.subs[frame.sid] = frame.subject
            self._pass(client, frame)
        recorded = client.recorded
        found = self._find(recorded, frame) if recorded is not None else None
        if found is None and self._binder.move(client, frame):
            history, client.history = client.history, []
            for past in (*history, frame):
                self._play(client, past, now)
            return
        if len(client.history) < HISTORY:
            client.history.append(alone(frame))
        if found is None or recorded is None:
            self._mismatch(client, frame, now)
            return
        exchange, new = found
        self.identities.learn(new)
        client.remember(exchange, new)
        self._matched(client, recorded, exchange, frame, now)

    def _matched(
        self, client: Client, recorded: Recorded, exchange: Exchange, frame: Frame, now: int
    ) -> None:
        ready = self.script.use(exchange, frame, now)
        if frame.op == Op.SUB:
            recorded.sids[exchange.frame.sid] = frame.sid
            client.sids[frame.sid] = exchange.frame.sid
            self._delivery.subscribed(recorded, exchange.frame.sid, now)
        self._delivery.caused(ready, now)
        self._delivery.release(recorded, "end", now)

    def _mismatch(self, client: Client, frame: Frame, now: int) -> None:
        if self._passes and frame.op != Op.SUB:
            self._pass(client, frame)
        if self.episodes is not None:
            client.told = True
            self.episodes.sent(client, frame, now)
        if self._unrecorded != "error":
            return
        near = nearest(frame, client.recorded, self.script, self.matcher)
        if len(self.mismatches) < _MISMATCHES:
            self.mismatches.append(Mismatch(client.id, client.connect.name, preview(frame), near))
        sid = None
        if frame.op != Op.SUB and frame.reply and client.connect.headers:
            sid = next((sid for sid, sub in client.subs.items() if matches(sub, frame.reply)), None)
        self._actions.append(Send(client.id, mismatch_reply(frame, sid)))

    def _pass(self, client: Client, frame: Frame) -> None:
        if self._passes:
            self._actions.append(Forward(client.id, frame.raw))

    def _ok(self, client: Client) -> None:
        if client.connect.verbose and client.connect is not DEFAULTS:
            self._actions.append(Send(client.id, encode.OK))
