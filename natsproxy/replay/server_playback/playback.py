"""The state machine that plays a capture's server: events in, actions out, no I/O and no clock.

1. A live client gets INFO at once.  `pairing.py` chooses the recorded connection that it plays.
2. Each client frame is matched to the earliest unused exchange of that connection that agrees
   (`conversation/matching.py`); identifiers are learned on the way.
3. A frame and what it matched go to each effect source in turn, which returns the actions that follow:
   `delivery_requests.py`, `recorded_effects.py`, `repeated_polls.py`, `shared_work.py`.
4. PING is answered live, by the real server once it has frames of the client.  Verbose clients get `+OK`.
   UNSUB and answers to flow control never mismatch, and a subscription to an inbox belongs to the request
   that names it.
5. Unrecorded input: `error` sends an error that clients survive and keeps the mismatch (`refusals.py`);
   `ignore` sends nothing; `pass` forwards it to a real server, with all subscriptions, so that the server can
   answer (`live_server.py`); `record` does that and adds both to the cassette (`new_episodes.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Literal

from natsproxy.protocol import info
from natsproxy.protocol.connect import parse_connect
from natsproxy.protocol.jetstream import parse_ack
from natsproxy.replay.conversation.exchanges import RecordedExchange, standalone
from natsproxy.replay.conversation.frame_kind import FrameKind, is_required
from natsproxy.replay.conversation.identifier_map import IdentifierMap
from natsproxy.replay.conversation.match_options import DEFAULT, MatchOptions
from natsproxy.replay.conversation.matching import Matcher
from natsproxy.replay.conversation.recording import Recording
from natsproxy.replay.conversation.steps import Event
from natsproxy.replay.server_playback.actions import Action, DisconnectClient, ForwardToServer, SendToClient
from natsproxy.replay.server_playback.client import Client
from natsproxy.replay.server_playback.counts import Counts
from natsproxy.replay.server_playback.delivery_requests import DeliveryRequests
from natsproxy.replay.server_playback.effect_source import ClientFrame, EffectSource
from natsproxy.replay.server_playback.live_server import LiveServer
from natsproxy.replay.server_playback.mismatch import NOT_NATS, Mismatch, preview
from natsproxy.replay.server_playback.new_episodes import NewEpisodes
from natsproxy.replay.server_playback.pairing import Match, Pairing
from natsproxy.replay.server_playback.played import PlayedPoll
from natsproxy.replay.server_playback.progress import WINDOW, Progress
from natsproxy.replay.server_playback.recorded_effects import RecordedEffects
from natsproxy.replay.server_playback.refusals import Refusals
from natsproxy.replay.server_playback.repeated_polls import RepeatedPolls
from natsproxy.replay.server_playback.shared_work import SharedWork
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Op

Unrecorded = Literal["error", "ignore", "pass", "record"]
DEFAULT_INFO: Final = (
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
    """Plays the server.  `mismatches` and `unused()` are the differences from the recording."""

    def __init__(
        self,
        source: Iterator[Event],
        *,
        window: int = WINDOW,
        unrecorded: Unrecorded = "error",
        timing: Literal["answers", "recorded"] = "answers",
        options: MatchOptions = DEFAULT,
    ) -> None:
        reads = bool(options.match_as or options.match_command or options.filters)
        self.recording = Recording(source, repeat=options.repeat, requests=reads)
        self.progress = Progress(self.recording, window=window)
        self.identifiers = IdentifierMap()
        self.matcher = Matcher(self.identifiers, options, self.recording.requests)
        self._clients: dict[int, Client] = {}
        self._now = 0
        self._pairing = Pairing(self.progress, self.matcher, self._clients)
        self._requests = DeliveryRequests()
        self._effects = RecordedEffects(
            self.progress,
            self.identifiers,
            self._clients,
            self._requests,
            recorded_timing=timing == "recorded",
            codec_of=self.matcher.codec_of,
        )
        polls = RepeatedPolls(self._pairing, self._requests, self._effects)
        self._refusals = Refusals(self.progress, self.matcher, self._clients)
        self._live: LiveServer | None = None
        self.new_episodes: NewEpisodes | None = None
        shared = SharedWork(self.progress, self._clients, self._effects)
        self._sources: list[EffectSource] = [self._requests, self._effects, polls, shared]
        self._unrecorded: list[EffectSource] = []
        if unrecorded == "error":
            self._unrecorded.append(self._refusals)
        elif unrecorded in ("pass", "record"):
            if unrecorded == "record":
                self.new_episodes = NewEpisodes(self.progress, self.identifiers)
            self._live = LiveServer(self._clients, self.new_episodes)
            self._unrecorded.append(self._live)
        self.progress.fill()

    # -- events in

    def opened(self, client_id: int, address: tuple[str, int]) -> list[Action]:
        """Add a new client; address: our listening address, for INFO."""
        self._clients[client_id] = Client(client_id)
        args = self.recording.info or DEFAULT_INFO
        shown = info.rewrite_info(
            args, remove=_NOT_OURS, set={"host": address[0], "port": address[1], "client_id": client_id}
        )
        return [SendToClient(client_id, encode.info(shown))]

    def received(self, client_id: int, frames: list[Frame], now: int) -> list[Action]:
        """Handle the frames of one read from a client."""
        client = self._clients[client_id]
        actions: list[Action] = []
        pongs = 0
        for frame in frames:
            if frame.op == Op.PING:
                # The PONG of a client that plays nothing yet waits: its held frames are answered first.
                pongs += 1
                if client.playing is not None:
                    actions.append(_pong(client))
                    pongs -= 1
            elif frame.op == Op.CONNECT:
                try:
                    client.connect = parse_connect(frame.args, client.connect)
                except ValueError:  # nats-server closes without an -ERR too
                    self.malformed(client_id, "a CONNECT that cannot be read")
                    return [*actions, DisconnectClient(client_id), *self._follow_up()]
                client.connect_frame = standalone(frame)
                # The server's default is verbose, but before its CONNECT no client expects a +OK.
                client.verbose = client.connect.verbose
                if client.verbose:
                    actions.append(SendToClient(client.id, encode.OK))
            elif frame.op in (Op.PUB, Op.HPUB, Op.SUB, Op.UNSUB):
                self._now = now
                if client.verbose:
                    actions.append(SendToClient(client.id, encode.OK))
                if client.playing is None:
                    client.held.append(frame)
                else:
                    actions += self._on_frame(client, frame, now)
        if client.held:
            self._pairing.bind(client)
            held, client.held = client.held, []
            for frame in held:
                actions += self._on_frame(client, frame, now)
        actions += [_pong(client) for _ in range(pongs)]
        return [*actions, *self._follow_up()]

    def malformed(self, client_id: int, reason: str) -> None:
        """Note that a client sent bytes that are not NATS."""
        client = self._clients.get(client_id)
        if client is not None:
            self.progress.counts.others.missed += 1
            self._refusals.note(Mismatch(client.id, client.connect.name, NOT_NATS, f"{NOT_NATS} ({reason})"))

    def closed(self, client_id: int, now: int) -> list[Action]:
        """Handle the end of a client's connection."""
        client = self._clients.pop(client_id, None)
        actions: list[Action] = []
        if client is not None:
            # A client that played no frame gives its recorded connection back.
            if client.playing is not None and not client.history:
                client.playing.client_id = None
            elif client.playing is not None:
                client.playing.left = True
            for source in (*self._sources, *self._unrecorded):
                actions += source.on_leave(client, now)
        return [*actions, *self._follow_up()]

    def answered(self, client_id: int, frame: Frame, now: int) -> list[Action]:
        """Pass a message, an error or a PONG of the real server on to a client."""
        client = self._clients.get(client_id)
        if client is None or self._live is None:
            return self._follow_up()
        return [*self._live.answered(client, frame, now), *self._follow_up()]

    def tick(self, now: int) -> list[Action]:
        """Send what is due."""
        self._now = now
        # Messages go before the statuses that end their requests.
        actions = [action for source in reversed(self._sources) for action in source.on_time(now)]
        return [*actions, *self._follow_up()]

    # -- questions

    @property
    def deadline(self) -> int | None:
        """The next time at which `tick` has to be called, in ns; None for never.

        It is in the past while there is more to read and room for it.
        """
        if self.progress.has_room:
            return self._now
        due = (source.next_due() for source in self._sources)
        return min((time for time in due if time is not None), default=None)

    @property
    def mismatches(self) -> list[Mismatch]:
        """The client frames that were never recorded (the first thousand)."""
        return self._refusals.mismatches

    @property
    def handed_over(self) -> list[str]:
        """Lines of a report about shared messages that went to another client than in the recording."""
        return [
            f"{count} messages of {share}, recorded for {recorded.label}, went to {live.label}"
            for (share, recorded, live), count in list(self._effects.handed_over.items())
        ]

    @property
    def done(self) -> bool:
        """True when every recorded client frame came and every recorded server frame was sent."""
        return self.progress.done

    def waiting_for(self) -> str:
        """Return what the conversation waits for, as a part of an error message."""
        left = self.unused()
        if left:
            first = left[0]
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            who = self.recording.connections[first.conn].label
            return f"{preview(first.frame)} from {who}{more}"
        return "the time of the last server frames" if not self.done else "nothing"

    def unused(self) -> list[RecordedExchange]:
        """Return the recorded client frames that no live one matched, in order.

        Polls are not among them where the client has sent one of their kind.
        """
        asked, may_repeat = self.progress.polls.asked, self._pairing.may_repeat
        left = [
            one
            for connection in self.progress.connections.values()
            for key, queue in connection.unused.by_key.items()
            for one in queue
            if one.kind is not FrameKind.INBOX and not (may_repeat(one.kind) and asked(connection.conn, key))
        ]
        return sorted(left, key=lambda one: one.seq)

    def omitted(self) -> list[RecordedExchange]:
        """Return the unused frames that a program must send, in order (`is_required`).

        Nobody acknowledges a redelivery that has not come: it comes by time, and the program may have ended.
        """
        coming = {
            pending.effect.frame.reply
            for connection in self.progress.connections.values()
            for queue in connection.queues.values()
            for pending in queue
            if pending.effect.frame is not None
        }
        return [
            one
            for one in self.unused()
            if is_required(one.frame)
            and not (one.frame.subject in coming and _is_redelivery(one.frame.subject))
        ]

    def count(self, *, whole: bool = True) -> Counts:
        """Return the counts of client frames so far.

        whole: read the recording to its end for them; nothing more can be played then.
        """
        base, asked = self.progress.counts, self.progress.polls.asked
        while whole and (entry := self.recording.read()) is not None:
            if isinstance(entry, RecordedExchange):
                count, poll = base.of(entry.frame.subject), self._pairing.may_repeat(entry.kind)
                exempt = entry.kind is FrameKind.INBOX or (poll and asked(entry.conn, entry.key))
                count.recorded += 1
                count.exempt += exempt
                count.unused += not exempt
        counts, missing = base.copy(), {one.seq for one in self.unused()}
        for connection in self.progress.connections.values():
            for queue in connection.unused.by_key.values():
                for one in queue:
                    count = counts.of(one.frame.subject)
                    count.unused += one.seq in missing
                    count.exempt += one.seq not in missing
        return counts

    # -- one frame

    def _on_frame(self, client: Client, frame: Frame, now: int) -> list[Action]:
        """Follow the subscriptions of a client, and play its frame."""
        kind = self.recording.kind_of(frame)
        optional = kind is FrameKind.OPTIONAL
        actions: list[Action] = []
        if self._live is not None and (optional or frame.op == Op.SUB):
            actions += self._live.accompany(client, frame, now)
        if frame.op == Op.SUB:
            client.subscribe(frame)
        elif frame.op == Op.UNSUB:
            client.unsubscribe(frame)
        return actions if optional else [*actions, *self._play(client, frame, kind, now)]

    def _play(self, client: Client, frame: Frame, kind: FrameKind, now: int) -> list[Action]:
        """Match a frame; if only another connection fits it and all earlier ones, match those again."""
        found = self._pairing.match(client, frame, kind)
        actions: list[Action] = []
        if self._pairing.is_foreign(client, found, kind):
            for moved in self._pairing.move(client, frame):
                actions += self._match_again(moved, now)
                found = self._pairing.match(client, frame, kind)
        return [*actions, *self._matched(client, frame, kind, found, now)]

    def _match_again(self, client: Client, now: int) -> list[Action]:
        """Match the first frames of a client that now plays another connection; its READs were answered."""
        frames, client.history = client.history, []
        actions: list[Action] = []
        for frame in frames:
            kind = self.recording.kind_of(frame)
            found = self._pairing.match(client, frame, kind)
            if kind is not FrameKind.READ:
                actions += self._matched(client, frame, kind, found, now)
            elif isinstance(found, Match):
                client.keep_history(frame)
                for answer in self._pairing.use(client, found, frame, kind, now).effects:
                    self.progress.pass_over(answer, now)
                actions += self._answer_all(self._pairing.named_inboxes(now))
        return actions

    def _matched(
        self, client: Client, frame: Frame, kind: FrameKind, found: Match | PlayedPoll | None, now: int
    ) -> list[Action]:
        if isinstance(found, PlayedPoll):
            self.progress.counts.of(found.exchange.frame.subject).repeated += 1
            return self._answer(self._pairing.repeat(client, found, frame, kind, now))
        client.keep_history(frame)
        if kind is FrameKind.INBOX and client.playing is not None:  # its request will name it
            client.inboxes[frame.sid] = standalone(frame), now
            return self._answer_all(self._pairing.named_inboxes(now))
        if found is None:
            return self._refer(ClientFrame(client, frame, kind, now))
        sent = self._pairing.use(client, found, frame, kind, now)
        inboxes = self._answer_all(self._pairing.named_inboxes(now)) if found.learned.live else []
        return [*inboxes, *self._answer(sent)]

    def _refer(self, sent: ClientFrame) -> list[Action]:
        """Give an unrecorded frame to the source that handles these."""
        self.progress.counts.of(self.matcher.seen(sent.frame).subject).missed += 1
        inboxes: list[Action] = []
        if self.new_episodes is not None:  # additions refer to inboxes by their recorded sids
            inboxes = self._answer_all(self._pairing.unnamed_inboxes(sent.client, sent.now))
        return [*inboxes, *self._answer(sent)]

    def _answer_all(self, frames: Iterable[ClientFrame]) -> list[Action]:
        return [action for sent in frames for action in self._answer(sent)]

    def _answer(self, sent: ClientFrame) -> list[Action]:
        sources = self._sources if sent.exchange is not None else self._unrecorded
        return [action for source in sources for action in source.on_frame(sent)]

    def _follow_up(self) -> list[Action]:
        """Read on; send the effects whose causes have all happened, and end requests that do not wait.

        It reads at most a window; the next `tick` reads on, once the clients have taken that.
        """
        actions: list[Action] = []
        for pending in self.progress.take_ready():
            actions += self._effects.caused([pending], self._now)
        if not self.progress.has_room:
            actions += self._requests.end_no_wait()
        return actions


def _is_redelivery(subject: bytes) -> bool:
    ack = parse_ack(subject)
    return ack is not None and ack.delivered > 1


def _pong(client: Client) -> Action:
    # A PONG says that the frames before were handled, also by the real server if it has some of them.
    return ForwardToServer(client.id, encode.PING) if client.passed else SendToClient(client.id, encode.PONG)
