"""A live client: what it sent, and the recorded connection that it plays."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from natsproxy.bounded import BoundedDict
from natsproxy.protocol.connect import DEFAULTS, Connect
from natsproxy.protocol.subjects import matches
from natsproxy.replay.conversation.exchanges import Key, RecordedExchange, standalone
from natsproxy.replay.conversation.frame_kind import FrameKind, Share, share_of
from natsproxy.replay.conversation.identifier_map import LearnedPairs
from natsproxy.replay.server_playback.progress import ConnectionProgress, PendingEffect, Requester
from natsproxy.wire.frames import Frame

HISTORY: Final = 64
"""Number of frames after which a client keeps its recorded connection."""


class Used(NamedTuple):
    """A recorded exchange that a client used, and the effects that waited for it."""

    exchange: RecordedExchange
    effects: list[PendingEffect]


@dataclass(slots=True)
class Client:
    """A live client.

    Identity.  connect, connect_frame: its CONNECT.  verbose: it expects a +OK for each frame.

    Subscriptions, by live sid.  subs: their subjects.  limits: the number of messages that one with a limit
    still takes.  inboxes: those to inboxes that no request has named yet, with their times.  groups: their
    recorded queue groups.

    Matching.  playing: its recorded connection.  sids: live sid to recorded sid.  held: frames that wait
    until it plays one.  history: its first frames; used, learned: the exchanges that these matched, and the
    identifiers learned from them.  committed: it was sent more than answers to READs, so it can no longer
    play another connection.

    Polls.  fed: when a pull request of it last got a message (ns).  changes: the number of CHANGEs that it
    made; asked: the value of `changes` when it last polled, by key.

    Real server.  passed: some of its frames were forwarded.  unpassed: the frames of each subscription that
    were not, by sid.
    """

    id: int
    connect: Connect = DEFAULTS
    verbose: bool = False
    connect_frame: Frame | None = None
    subs: dict[bytes, bytes] = field(default_factory=dict)
    limits: dict[bytes, int] = field(default_factory=dict)
    inboxes: dict[bytes, tuple[Frame, int]] = field(default_factory=dict)
    groups: dict[bytes, Share] = field(default_factory=dict)
    playing: ConnectionProgress | None = None
    sids: dict[bytes, bytes] = field(default_factory=dict)
    held: list[Frame] = field(default_factory=list)
    history: list[Frame] = field(default_factory=list)
    used: list[Used] = field(default_factory=list)
    learned: LearnedPairs = field(default_factory=LearnedPairs)
    fed: int = 0
    changes: int = 0
    asked: BoundedDict[Key, int] = field(default_factory=BoundedDict)
    committed: bool = False
    passed: bool = False
    unpassed: dict[bytes, bytes] = field(default_factory=dict)

    # -- subscriptions

    def subscribe(self, frame: Frame) -> None:
        """Add the subscription of a SUB."""
        self.subs[frame.sid] = frame.subject
        self.limits.pop(frame.sid, None)

    def unsubscribe(self, frame: Frame) -> None:
        """End the subscription of an UNSUB, or set its limit."""
        if not frame.args.strip():
            self.end_subscription(frame.sid)
        elif frame.args.isdigit() and frame.sid in self.subs:
            self.limits[frame.sid] = int(frame.args)

    def end_subscription(self, sid: bytes) -> None:
        """Remove a subscription; late messages still find its sid."""
        for table in (self.subs, self.inboxes, self.unpassed, self.limits, self.groups):
            table.pop(sid, None)
        playing, recorded_sid = self.playing, self.sids.get(sid)
        if playing is None or recorded_sid is None:
            return
        if playing.sids.get(recorded_sid) == sid:
            playing.ended_sids[recorded_sid] = playing.sids.pop(recorded_sid)
        if not self.passed:  # else messages of the real server may still be on their way
            del self.sids[sid]

    def received(self, sid: bytes, frame: Frame) -> None:
        """Count a message, recorded or from the real server, against the limit of its subscription."""
        left = self.limits.get(sid)
        if left is not None and not frame.no_responders:
            self.limits[sid] = left - 1
            if left <= 1:
                self.end_subscription(sid)

    def listening_sid(self, subject: bytes) -> bytes | None:
        """Return the sid of a subscription that matches a subject, None if there is none."""
        return next((sid for sid, pattern in self.subs.items() if matches(pattern, subject)), None)

    # -- matching

    def keep_history(self, frame: Frame) -> None:
        """Keep a frame: until the client is committed, its first frames may be matched again."""
        if not self.history or (not self.committed and len(self.history) < HISTORY):
            self.history.append(standalone(frame))

    def note_act(self, exchange: RecordedExchange) -> None:
        """Count a change; for a poll, note the number of changes so far."""
        if exchange.kind is FrameKind.CHANGE:
            self.changes += 1
        else:
            self.asked[exchange.key] = self.changes

    def has_acted_since(self, key: Key) -> bool:
        """Return whether it made a change since its last poll with this key."""
        return self.asked.get(key) != self.changes

    def note_use(self, used: Used, learned: LearnedPairs, *, whole: bool) -> None:
        """Keep what one of its frames matched: it may have to be undone.

        whole: no more effects of the exchange can follow.
        """
        effects = [one.effect for one in used.effects]
        asks = whole and all(one.follows_poll and one.frame is not None for one in effects)
        only_asks = asks if used.exchange.kind is FrameKind.READ else not effects
        pulls = used.exchange.kind is FrameKind.PULL
        self.committed = pulls or not only_asks or len(self.history) >= HISTORY
        self.used.append(used)
        self.learned.add(learned)

    def play(self, connection: ConnectionProgress) -> None:
        """Play a recorded connection instead of the one before."""
        if self.playing is not None:
            if self.playing.client_id == self.id:
                self.playing.client_id = None
            self.used, self.learned = [], LearnedPairs()
            self.sids.clear()
            self.inboxes.clear()
            self.groups.clear()
        connection.client_id, self.playing = self.id, connection

    def requester(self, frame: Frame) -> Requester | None:
        """Return where the answers to its request go, None if it does not subscribe to them."""
        sid = self.listening_sid(frame.reply)
        return None if sid is None else Requester(self.id, sid, frame.reply)

    def matched_subscription(self, exchange: RecordedExchange, frame: Frame) -> None:
        """Map a live SUB to the recorded subscription that it matched."""
        if self.playing is not None:
            recorded = exchange.frame
            self.playing.sids[recorded.sid] = frame.sid
            self.sids[frame.sid] = recorded.sid
            group = share_of(recorded, exchange.kind)
            if group is not None:
                self.groups[frame.sid] = group
