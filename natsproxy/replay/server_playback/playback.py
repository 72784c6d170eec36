"""The state machine that plays a capture's server: events in, actions out, no I/O and no clock.

1. A live client gets INFO at once.  `binding.py` chooses the recorded connection that it plays.
2. Each client frame is matched to the earliest unused exchange of that connection that agrees
   (`conversation/matching.py`); identifiers are learned on the way.
3. The effects of an exchange are sent when all their causes have happened (`delivery.py`).
4. PING is answered live, by the real server once it has frames of the client.  Verbose clients get `+OK`.
   UNSUB and answers to flow control never mismatch; polls may come more or less often (`repeats.py`), and
   a subscription to an inbox belongs to the request that names it.
5. Unrecorded input: `error` sends an error that clients survive (`mismatch_replies.py`) and keeps the
   mismatch; `ignore` sends nothing; `pass` hands it to a real server, with all subscriptions, so that the
   server can answer (`forwarding.py`); `record` does that and collects both for the cassette
   (`new_episodes.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from natsproxy.protocol import info
from natsproxy.protocol.connect import parse_connect
from natsproxy.replay.conversation.exchanges import END, RecordedConnection, RecordedExchange, standalone
from natsproxy.replay.conversation.frame_kind import FrameKind, is_optional
from natsproxy.replay.conversation.identifier_map import IdentifierMap, LearnedPairs
from natsproxy.replay.conversation.match_options import DEFAULT, MatchOptions
from natsproxy.replay.conversation.matching import Matcher
from natsproxy.replay.conversation.recorded_conversation import WINDOW, RecordedConversation
from natsproxy.replay.conversation.steps import Event
from natsproxy.replay.server_playback.actions import Action, DisconnectClient, ForwardToServer, SendToClient
from natsproxy.replay.server_playback.binding import HISTORY, Binder, Client
from natsproxy.replay.server_playback.delivery import Delivery
from natsproxy.replay.server_playback.forwarding import Forwarding
from natsproxy.replay.server_playback.mismatch import Mismatch, preview, suggest
from natsproxy.replay.server_playback.mismatch_replies import mismatch_replies
from natsproxy.replay.server_playback.new_episodes import NewEpisodes
from natsproxy.replay.server_playback.repeats import Repeats
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Op

Unrecorded = Literal["error", "ignore", "pass", "record"]
_MISMATCHES: Final = 1000
_DEFAULT_INFO: Final = (
    b'{"server_id":"NATSPROXY","server_name":"natsproxy","version":"2.15.1","proto":1,"host":"127.0.0.1",'
    b'"port":4222,"headers":true,"max_payload":1048576,"jetstream":true}'
)
# Members of a recorded INFO that would lead a client elsewhere, or to TLS and signatures that nobody checks.
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


class ServerPlayback:
    """The machine.  `mismatches` and `unused()` hold the differences from the recording."""

    def __init__(
        self,
        source: Iterator[Event],
        *,
        window: int = WINDOW,
        unrecorded: Unrecorded = "error",
        timing: Literal["answers", "recorded"] = "answers",
        options: MatchOptions = DEFAULT,
    ) -> None:
        self.conversation = RecordedConversation(source, window=window, repeat=options.repeat)
        self.identifiers = IdentifierMap()
        self.matcher = Matcher(self.identifiers, options)
        self.mismatches: list[Mismatch] = []
        self.new_episodes = (
            NewEpisodes(self.conversation, self.identifiers) if unrecorded == "record" else None
        )
        self._unrecorded = unrecorded
        self._passes = unrecorded in ("pass", "record")
        self._clients: dict[int, Client] = {}
        self._now = 0
        self._actions: list[Action] = []
        self._forwarding = Forwarding(self._clients, self._actions)
        self._binder = Binder(self.conversation, self.matcher)
        self._delivery = Delivery(
            self.conversation, self.identifiers, self._clients, self._actions, recorded=timing == "recorded"
        )
        self._repeats = Repeats(self.conversation, self.matcher, self._binder, self._delivery, self._clients)
        self.conversation.fill()

    # -- events in

    def opened(self, client_id: int, address: tuple[str, int]) -> list[Action]:
        """Take a new client in; address: our listening address, for INFO."""
        self._clients[client_id] = Client(client_id)
        args = self.conversation.info or _DEFAULT_INFO
        shown = info.rewrite_info(
            args, remove=_NOT_OURS, set={"host": address[0], "port": address[1], "client_id": client_id}
        )
        return [SendToClient(client_id, encode.info(shown))]

    def received(self, client_id: int, frames: list[Frame], now: int) -> list[Action]:
        """Handle the frames of one read from a client."""
        client = self._clients[client_id]
        pongs = 0
        for frame in frames:
            if frame.op == Op.PING:
                # The PONG of a client that is not bound yet waits: its held frames are answered before.
                pongs += 1
                if client.recorded is not None:
                    self._pong(client)
                    pongs -= 1
            elif frame.op == Op.CONNECT:
                try:
                    client.connect = parse_connect(frame.args, client.connect)
                except ValueError:  # nats-server closes without an -ERR too
                    self._actions.append(DisconnectClient(client_id))
                    return self._take()
                client.connect_frame = standalone(frame)
                # The server's default is verbose, but before its CONNECT no client expects a +OK.
                client.verbose = client.connect.verbose
                if client.verbose:
                    self._actions.append(SendToClient(client.id, encode.OK))
            elif frame.op in (Op.PUB, Op.HPUB, Op.SUB, Op.UNSUB):
                self._now = now
                if client.verbose:
                    self._actions.append(SendToClient(client.id, encode.OK))
                if client.recorded is None:
                    client.held.append(frame)
                else:
                    self._play(client, frame, now)
        if client.held:
            self._bind(client, now)
        for _ in range(pongs):
            self._pong(client)
        return self._take()

    def closed(self, client_id: int, now: int) -> list[Action]:
        """Handle the end of a client's connection."""
        client = self._clients.pop(client_id, None)
        # A client that played no frame gives its recorded connection back.
        if client is not None and client.recorded is not None and not client.history:
            client.recorded.client_id = None
        if client is not None:
            self._delivery.standing.left(client)
        if client is not None and self.new_episodes is not None:
            self.new_episodes.ended(client, now)
        return self._take()

    def answered(self, client_id: int, frame: Frame, now: int) -> list[Action]:
        """Pass a message, an error or a PONG of the real server on to a client."""
        client = self._clients.get(client_id)
        if client is not None:
            if self.new_episodes is not None and frame.op != Op.PONG:
                self.new_episodes.answered(client, frame, now)
            self._actions.append(SendToClient(client_id, frame.raw))
            self._delivery.heard(client, frame.sid, frame)
        return self._take()

    def tick(self, now: int) -> list[Action]:
        """SendToClient effects that have become due."""
        self._now = now
        self._delivery.tick(now)
        return self._take()

    @property
    def deadline(self) -> int | None:
        """The next time at which `tick` has to be called, in ns; None for never."""
        return self._delivery.deadline

    @property
    def done(self) -> bool:
        """True when every recorded client frame came and every recorded server frame was sent."""
        if not self.conversation.whole:
            return False
        return not any(r.unused or r.unsent for r in self.conversation.connections.values())

    def waiting_for(self) -> str:
        """Return a phrase for the frame that the conversation waits for, for an error message."""
        left = self.unused()
        if left:
            first, name = left[0], self.conversation.connections[left[0].conn].name
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            who = (
                f"client {name!r} (recorded connection {first.conn})"
                if name
                else f"recorded connection {first.conn}"
            )
            return f"{preview(first.frame)} from {who}{more}"
        return "the last server frames to be due" if not self.done else "nothing"

    def unused(self) -> list[RecordedExchange]:
        """Return the recorded client frames that no live one matched, in order.

        Polls are not among them where the client has sent one of their kind.
        """
        asked = self.conversation.past_polls.asked
        left = [
            x
            for r in self.conversation.connections.values()
            for key, queue in r.exchanges.items()
            for x in queue
            if x.kind is not FrameKind.INBOX and not (self._repeats.may_repeat(x.kind) and asked(r.conn, key))
        ]
        return sorted(left, key=lambda x: x.seq)

    def _take(self) -> list[Action]:
        self.conversation.fill()
        self._delivery.send_newly_ready(self._now)
        self._delivery.standing.end_no_wait()
        actions, self._actions[:] = self._actions[:], ()
        return actions

    def _bind(self, client: Client, now: int) -> None:
        self._binder.bind(client)
        held, client.held = client.held, []
        for frame in held:
            self._play(client, frame, now)

    # -- matching

    def _play(self, client: Client, frame: Frame, now: int) -> None:
        if is_optional(frame):
            self._optional(client, frame, now)
            return
        kind = self.conversation.kind_of(frame)
        if frame.op == Op.SUB:
            client.subs[frame.sid] = frame.subject
            client.limits.pop(frame.sid, None)
            self._accompany(client, frame)
        recorded = client.recorded
        if kind is FrameKind.INBOX and recorded is not None:
            client.inboxes[frame.sid] = standalone(frame), now
            self._remember(client, frame)
            self._know_inboxes(now)
            return
        found = self._repeats.find(recorded, frame, kind)
        poll = recorded if kind is not FrameKind.CHANGE else None
        if poll and self._repeats.answers(client, poll, found and found[0], frame, kind, now):
            return
        if found is None and self._binder.move(client, frame):
            history, client.history = client.history, []
            for past in (*history, frame):
                self._play(client, past, now)
            return
        self._remember(client, frame)
        if found is None or recorded is None:
            self._mismatch(client, frame, now)
            return
        exchange, new = found
        self.identifiers.learn(new)
        client.remember(exchange, new)
        if new.live:
            self._know_inboxes(now)
        if frame.reply and exchange.conn != recorded.conn:
            client.take_answers(exchange, frame)
        self._matched(client, recorded, exchange, frame, now)
        if kind is FrameKind.CHANGE and self._delivery.standing.pulls:
            self._repeats.fulfil(recorded, now)

    def _optional(self, client: Client, frame: Frame, now: int) -> None:
        self._accompany(client, frame)
        if frame.op == Op.UNSUB:
            if self.new_episodes is not None:
                self.new_episodes.unsubscribed(client, frame, now)
            if not frame.args.strip():
                self._delivery.unsubscribed(client, frame.sid)
            elif frame.args.isdigit() and frame.sid in client.subs:
                client.limits[frame.sid] = int(frame.args)

    def _remember(self, client: Client, frame: Frame) -> None:
        if len(client.history) < HISTORY:
            client.history.append(standalone(frame))

    # -- inboxes

    def _know_inboxes(self, now: int) -> None:
        """Find the recorded subscriptions of inboxes whose requests have told their names."""
        for client in self._clients.values():
            recorded = client.recorded
            for sid, (frame, _) in list(client.inboxes.items()) if client.inboxes else ():
                known = self.identifiers.to_recorded(frame.subject)
                exchange = None if recorded is None else recorded.inbox(known)
                if recorded is not None and exchange is not None:
                    del client.inboxes[sid]
                    client.remember(exchange, LearnedPairs())
                    self._matched(client, recorded, exchange, frame, now)

    def _resolve_inboxes(self, client: Client, now: int) -> None:
        """Take a recorded subscription for each inbox that is not known, or add the live one.

        New episodes name inboxes as the recording does, and need their sids.
        """
        inboxes, client.inboxes = client.inboxes, {}
        for frame, then in inboxes.values():
            found = self._binder.find(client.recorded, frame, self._clients)
            if found is None or client.recorded is None:
                assert self.new_episodes is not None
                self.new_episodes.sent(client, frame, now)
                continue
            exchange, new = found
            self.identifiers.learn(new)
            self._matched(client, client.recorded, exchange, frame, then)

    def _matched(
        self, client: Client, recorded: RecordedConnection, exchange: RecordedExchange, frame: Frame, now: int
    ) -> None:
        ready = self.conversation.use(exchange, frame, now)
        if frame.op == Op.SUB:
            recorded.sids[exchange.frame.sid] = frame.sid
            client.sids[frame.sid] = exchange.frame.sid
            self._delivery.arrived(recorded, exchange.frame.sid, now)
        elif frame.subject.startswith(b"$JS."):
            self._delivery.stands(client, recorded, exchange, frame, now)
        self._delivery.caused(ready, now)
        if END in recorded.queues:
            self._delivery.release(recorded, END, now)

    def _mismatch(self, client: Client, frame: Frame, now: int) -> None:
        if self._passes:
            self._forwarding.unrecorded(client, frame)
        if self.new_episodes is not None:
            client.committed = True
            self._resolve_inboxes(client, now)
            self.new_episodes.sent(client, frame, now)
        if self._unrecorded != "error":
            return
        seen = self.matcher.seen(frame)
        near = suggest(seen, client.recorded, self.conversation, self.matcher)
        head = f"{seen.op.label} {seen.subject.decode(errors='replace')}"
        mismatch = Mismatch(client.id, client.connect.name, head, preview(seen), *near)
        if len(self.mismatches) < _MISMATCHES:  # bounded: a client may retry for hours
            self.mismatches.append(mismatch)
        self._actions += mismatch_replies(client, self._clients.values(), frame, mismatch)

    def _accompany(self, client: Client, frame: Frame) -> None:
        if self._passes:
            self._forwarding.accompany(client, frame)

    def _pong(self, client: Client) -> None:
        # A PONG says that the frames before were handled, by the real server too where it has some of them.
        answer = (
            ForwardToServer(client.id, encode.PING) if client.passed else SendToClient(client.id, encode.PONG)
        )
        self._actions.append(answer)
