"""The subscriptions of one connection: as the server keeps them, their deliveries, and their moves.

Theory
1. A SUB with a live sid is ignored by the server: the first subject stays.  Auto-unsubscribe counts from the
   SUB; deliveries are counted only while a sid is watched.  A count that began late has a lower and an upper
   bound (`Subscription.unseen`).  Between them the server may have ended the subscription or not: a new SUB
   of that sid replaces it, and of many such entries the oldest are ended at the server too: if they were
   forgotten only here, later rules would not apply to them.
2. Deliveries are counted one by one where the frames are looked at anyway, and by the scanner (`tallies`)
   where they are not.
3. nats-server ends a subscription at its auto-unsubscribe count.  Where rules drop or add deliveries, its
   count is not the client's: the session keeps the limit itself, and unsubscribes at the server.
4. After an injected UNSUB, messages that were under way still come: they are dropped until the PONG of the
   fence behind the UNSUB.  In verbose mode the +OK of the UNSUB is dropped as well.
5. A subscription that new rewrite rules map elsewhere is moved, at the place of the c2s stream at which
   they come into force: UNSUB, a fence, SUB of the new subject with the same sid.  The client notices
   nothing.  Messages on that sid before the fence's PONG came by the old subject, and go through the old
   rules: the client never sees a subject that only the server knows.  Changes that follow closely queue up.
   The server counts deliveries from its SUB; so of a moved subscription the session keeps the limit
   itself, and its earlier count stays.
6. A subscription that cannot be sent whole under the new rules (covered in part; a sid that was named by two
   SUBs) ends, and the client gets the -ERR of permissions that were taken away.
7. Another server, in the place of a lost one, gets the SUBs that the lost one had, with the counts that are
   left.  It counts from there on, so of all of them the session keeps the limits itself, as of those that
   were moved.
8. Two things are not moved: requests under way whose reply subject was rewritten, and deliver subjects
   that the server remembers (push consumers).  Answers to those come by the old subject, which has
   no subscription.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Sequence
from itertools import islice
from typing import Final, NamedTuple

from natsproxy.protocol.patternset import PatternSet
from natsproxy.protocol.subjects import is_valid_subscribe
from natsproxy.rules.interface import ConnectionRules, Decision, Subscription
from natsproxy.session.direction import DirectionPipe
from natsproxy.session.fences import Fences
from natsproxy.session.outbox import OVERHEAD
from natsproxy.session.phase import Lifecycle
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame, Need
from natsproxy.wire.ops import S2C, Op, op_mask
from natsproxy.wire.scanner import byte_table

STATE_OPS: Final = (
    op_mask(Op.CONNECT, Op.PING, Op.SUB, Op.UNSUB),
    op_mask(Op.INFO, Op.PONG, Op.ERR),
)
"""The ops that the session itself looks at, by direction."""
_PACED: Final = (op_mask(Op.PUB, Op.HPUB, Op.PONG), op_mask(Op.PING))
"""The ops, by direction, that the session looks at while a limit holds frames of the client back."""
_NEVER_SWALLOWED: Final = op_mask(Op.PING, Op.PONG, Op.OK)
"""Further ops that a link that loses messages keeps: without them a peer gives up the connection."""
MOST_UNCERTAIN: Final = 4096
"""The most subscriptions of a connection that are kept though the server may have ended them."""
MOST_REFUSED: Final = 16384
"""The most SUBs in a connection's table that the server may have refused without saying which."""
_NONE: Final[PatternSet[bytes]] = PatternSet(())
_NO_LIMIT: Final = 999_999_999  # the largest number that the server reads


def unsub_max(args: bytes) -> int:
    """Return the max of an UNSUB as the server reads it: 0, at once, for anything that is no number."""
    return int(args) if args.isdigit() and len(args) <= 9 else 0


class Resubscription(NamedTuple):
    """The state of a subscription before it was moved: the rules then, and its subject on the server."""

    rules: ConnectionRules
    upstream: bytes


class SubscriptionTable(dict[bytes, Subscription]):
    """Live subscriptions by sid.

    uncertain: the sids of those that the server may have ended at their limit.
    """

    __slots__ = ("_at_limit", "_fewest", "_refused", "uncertain", "version")

    def __init__(self) -> None:
        super().__init__()
        self.uncertain: dict[bytes, None] = {}
        self._refused = 0  # the upper bound of entries that the server does not have
        self._fewest = 0  # the smallest size of the table at any refusal
        self.version = 0  # increases with each change
        self._at_limit = False  # the server has refused some SUB without saying which

    def add(self, sid: bytes, subject: bytes, queue: bytes, upstream: bytes, came: int) -> bool:
        """Note a SUB; return whether the server accepts it (valid subject, sid not live).

        came: the messages that have come on the connection.
        """
        if not is_valid_subscribe(upstream):
            return False
        sub = self.get(sid)
        if sub is not None and sid not in self.uncertain:
            # The server ignores it, unless it refused the first one without saying which (at a limit).
            sub.named_again = True
            if self._at_limit:
                self._doubt(sub)
            return False
        self.version += 1
        again = sub is not None
        self.uncertain.pop(sid, None)
        self[sid] = Subscription(
            sid, subject, queue, upstream, certain=not again, named_again=again, since=came
        )
        return True

    def doubt(self) -> bool:
        """Note that the server was at a limit, and refused a SUB; return whether it refused too many.

        From now on it is uncertain which subject the server has for a sid named by two SUBs.
        """
        if not self._at_limit:
            self._at_limit = True
            self._fewest = len(self)
            for sub in self.values():
                if sub.named_again:
                    self._doubt(sub)
        self._fewest = min(self._fewest, len(self))
        # Those that the client has unsubscribed do not count: they are no longer in the table.
        self._refused = min(self._refused + 1, len(self) - self._fewest)
        return self._refused > MOST_REFUSED

    def _doubt(self, sub: Subscription) -> None:
        sub.certain = False
        self.version += 1

    def remove(self, sid: bytes) -> None:
        """Remove a subscription."""
        self.version += 1
        self.pop(sid, None)
        self.uncertain.pop(sid, None)

    def count(self, sub: Subscription) -> None:
        """Note that each delivery of a subscription is counted from here on."""
        sub.counted = True
        self.version += 1

    def limit(self, sid: bytes, maximum: int, *, unseen: int) -> bool:
        """Note an UNSUB with a max; return whether the subscription goes on (and is to be watched).

        unseen: the upper bound of the deliveries until then that were not counted.
        """
        sub = self.get(sid)
        if sub is None:
            return False
        if maximum <= sub.delivered:
            self.remove(sid)
            return False
        sub.max = maximum
        self.version += 1
        sub.unseen = max(sub.unseen, unseen)
        self.reconsider(sub)
        return True

    def reconsider(self, sub: Subscription) -> None:
        """Note whether the server may have ended a subscription that has a limit."""
        if sub.unseen and not sub.ours and sub.delivered + sub.unseen >= sub.max:
            self.uncertain[sub.sid] = None

    def refused(self, subject: bytes, queue: bytes) -> Subscription | None:
        """Forget the latest SUB of a subject and queue, which the server refused; return its subscription."""
        for sid in reversed(self):
            sub = self[sid]
            if sub.upstream == subject and sub.queue == queue:
                self.remove(sid)
                return sub
        return None


class Subscriptions:
    """Keeps the subscriptions of one connection in step with client, server and rules.

    table: those that live.  awaited: the reply subjects of requests that have no answer yet, as the scanners
    keep them (`wire/awaited.py`).  tallies: deliveries by sid, of those that the scanner counts.  closed:
    sids that were ended here, and whose messages may still come.  verbose: the client gets a +OK for each of
    its frames, so those that answer injected frames are dropped.
    """

    __slots__ = (
        "_c2s",
        "_fences",
        "_lifecycle",
        "_our_oks",
        "_replayed",
        "_resubscribing",
        "_s2c",
        "_subjects",
        "_subjects_version",
        "awaited",
        "closed",
        "table",
        "tallies",
        "verbose",
    )

    def __init__(
        self, pipes: tuple[DirectionPipe, DirectionPipe], fences: Fences, lifecycle: Lifecycle
    ) -> None:
        self.table = SubscriptionTable()
        self.awaited = byte_table()
        self.tallies = byte_table()
        self.closed: dict[bytes, None] = {}  # an empty set takes 216 bytes, a dict 64
        self.verbose = True
        self._resubscribing: dict[bytes, deque[Resubscription]] = {}
        self._replayed: tuple[Subscription, ...] = ()  # for the next server
        self._our_oks = 0  # the next so many +OK of the server answer injected frames
        self._c2s, self._s2c = pipes
        self._fences = fences
        self._lifecycle = lifecycle
        self._subjects = _NONE  # of the subscriptions under their own names, with their sids
        self._subjects_version = -1  # of the table whose subjects these are
        for pipe in pipes:
            pipe.scanner.awaited = self.awaited
        self.watch_ops()

    @property
    def ended_or_moved(self) -> bool:
        """True if some sid was closed or is being moved: its messages are handled one by one."""
        return bool(self.closed or self._resubscribing)

    @property
    def watched(self) -> bool:
        """True if messages on some sid are looked at, or counted."""
        return self.ended_or_moved or bool(self.tallies) or bool(self._s2c.scanner.watch_sids)

    @property
    def came(self) -> int:
        """The number of messages that have come from the server."""
        counts = self._s2c.scanner.counts
        return counts[Op.MSG] + counts[Op.HMSG]

    def delivered(self, sub: Subscription) -> int:
        """Return how many messages went to the client on a subscription, as far as they were counted."""
        return self.tallies.get(sub.sid, max(0, sub.delivered))

    def delivered_on(self, sid: bytes) -> int:
        """Return the same for a sid; 0 where it is not live."""
        sub = self.table.get(sid)
        return 0 if sub is None else self.delivered(sub)

    def requests(self) -> frozenset[bytes]:
        """Return the reply subjects of the client's requests that may still get an answer.

        The client can get one only on a live subscription, so a subject that matches none is forgotten: the
        client gave up.  A request whose reply subject a rule rewrites is not waited for either: `awaited` has
        the client's subject, its answer comes on the server's, and cannot be matched.
        """
        awaited = self.awaited
        for subject in tuple(awaited):
            if self.sid_of(subject) is None:
                del awaited[subject]
        return frozenset(awaited)

    def sid_of(self, subject: bytes) -> bytes | None:
        """Return the sid of the first subscription that gets messages on a subject; None without one.

        Subscriptions whose subject a rule rewrites do not count.
        """
        table = self.table
        if table.version != self._subjects_version:
            self._subjects_version = table.version
            self._subjects = PatternSet(
                (sub.subject, sub.sid) for sub in table.values() if sub.upstream == sub.subject
            )
        return self._subjects.first(subject)

    def take_requests(self, but: Container[bytes]) -> list[tuple[bytes, bytes]]:
        """Forget the requests that wait for answers, but for some; return their reply subjects and sids."""
        taken = [subject for subject in self.requests() if subject not in but]
        for subject in taken:
            del self.awaited[subject]
        return [(subject, sid) for subject in taken if (sid := self.sid_of(subject)) is not None]

    # -- what the scanners look out for

    def watch_ops(self) -> None:
        """Make the scanners stop at the ops that the session needs now."""
        paced = self._c2s.outbox.paced > 0
        for pipe in (self._c2s, self._s2c):
            ops = STATE_OPS[pipe.direction] | pipe.watched
            if paced:
                ops |= _PACED[pipe.direction]
            if pipe.swallowing:
                ops |= _NEVER_SWALLOWED
            pipe.scanner.watch_ops = ops
        if self._our_oks:
            self._s2c.scanner.watch_ops |= Op.OK.bit

    def _watch(self, sid: bytes, need: Need) -> None:
        """Have the scanner return every MSG and HMSG on `sid` until the subscription ends."""
        watches = self._s2c.scanner.watch_sids
        watches[sid] = max(need, watches.get(sid, Need.NONE))

    def _unwatch(self, sid: bytes) -> None:
        """Stop watching and counting messages on `sid`."""
        self.tallies.pop(sid, None)
        self._s2c.scanner.watch_sids.pop(sid, None)
        # Messages by the old subject may still come, and need the old rules.
        if sid in self._resubscribing:
            self._watch(sid, Need.PAYLOAD)

    def count(self, sid: bytes) -> None:
        """Count the messages on `sid` until the subscription ends, without looking at them."""
        # Only of a subscription that the server will know: refused ones would accumulate here.  One that has
        # a limit is counted where it ends.
        if sid in self.table and not self.table[sid].counted:
            self.tallies.setdefault(sid, 0)

    # -- frames of the client

    def sub(self, frame: Frame) -> None:
        """Note a SUB; `decided` confirms or removes it."""
        if self.table.add(frame.sid, frame.subject, frame.queue, frame.subject, self.came):
            self.table[frame.sid].delivered = -1  # being decided
            self.closed.pop(frame.sid, None)
            self.tallies.pop(frame.sid, None)

    def decided(self, frame: Frame, passes: bool, upstream: bytes | None, now: int) -> None:
        """Confirm a SUB that passes, or remove it; upstream: its subject for the server, if rewritten."""
        sub = self.table.get(frame.sid)
        if sub is None or sub.delivered != -1:  # the sid is live already: the server ignores this SUB
            return
        if passes:
            sub.delivered = 0
            sub.upstream = upstream or sub.upstream
        else:
            self.forget(frame.sid)
            if not sub.certain:  # the server may still have an earlier one of that sid
                self.close([frame.sid], now)

    def note_lines(self, lines: Sequence[tuple[bytes, bytes, bytes]]) -> None:
        """Note plain SUBs, and UNSUBs (without a subject) that end at once: sid, subject, queue of each."""
        table, came, watched = self.table, self.came, self.watched
        for sid, subject, queue in lines:
            if not subject:
                if sid in table:
                    table.remove(sid)
                    if watched:
                        self._unwatch(sid)
            elif table.add(sid, subject, queue, subject, came) and watched:
                self.closed.pop(sid, None)
                self.tallies.pop(sid, None)

    def unsub(self, frame: Frame, now: int, *, altered: bool) -> bytes | None:
        """Note the end of a subscription, or its auto-unsubscribe count.

        altered: rules may drop or add deliveries.  Returns the UNSUB that goes to the server in its place,
        None for the same.
        """
        sub = self.table.get(frame.sid)
        maximum = unsub_max(frame.args)
        if sub is None:
            return None
        if not maximum:
            self.forget(frame.sid)
            return None
        counted = frame.sid in self.tallies or frame.sid in self._s2c.scanner.watch_sids
        unseen = 0 if counted else self.came - sub.since
        sub.delivered = self.tallies.pop(frame.sid, sub.delivered)
        self.table.count(sub)
        if sub.ours or altered:
            # The server would count messages that a rule drops, so the limit is kept here.  It applies from
            # this place of the stream on, and earlier messages have not arrived yet: hence the fence.
            sub.ours = True
            self._watch(frame.sid, Need.LINE)
            self._fences.then(lambda at: self._limit(sub, maximum, unseen, at), now)
            # Forwarded with an unreachable limit, so that a verbose client gets the +OK of the server.
            return encode.unsub(frame.sid, _NO_LIMIT)
        if not self.table.limit(frame.sid, maximum, unseen=unseen):
            self._unwatch(frame.sid)
            return None
        self._watch(frame.sid, Need.LINE)
        self._end_uncertain(now)
        return None

    def _limit(self, sub: Subscription, maximum: int, unseen: int, now: int) -> None:
        """Put an auto-unsubscribe limit in force here; end the subscription if it is reached already."""
        if self.table.get(sub.sid) is sub and not self.table.limit(sub.sid, maximum, unseen=unseen):
            self.close([sub.sid], now)

    # -- frames of the server

    def passed(self, frame: Frame, now: int, *, altered: bool) -> None:
        """Count a message that goes to the client; altered: rules may drop or add deliveries."""
        sub = self.table.get(frame.sid)
        if sub is None or sub.delivered < 0 or frame.no_responders or frame.sid in self.tallies:
            return
        sub.delivered += 1
        if not sub.max or sub.delivered < sub.max:
            if sub.unseen:
                self.table.reconsider(sub)
            return
        self.forget(frame.sid)
        if sub.ours or altered:
            self.close([frame.sid], now)

    def lost(self, frame: Frame) -> None:
        """Note a message that the server has counted, and that a suspended link swallows."""
        sub = self.table.get(frame.sid)
        if sub is not None and sub.max:
            sub.unseen += 1
            self.table.reconsider(sub)

    def dropped(self, frame: Frame) -> None:
        """Count a message that does not go to the client."""
        if frame.sid in self.tallies and not frame.no_responders:
            self.tallies[frame.sid] -= 1  # the scanner counted it as it came

    def refused(self, subject: bytes, queue: bytes) -> None:
        """Forget the latest SUB of a subject and queue: the server has refused it."""
        sub = self.table.refused(subject, queue)
        if sub is not None:
            self._unwatch(sub.sid)

    def take_our_ok(self) -> bool:
        """Return whether a +OK of the server answers an injected frame, and count it."""
        if self._our_oks <= 0:
            return False
        self._expect_oks(self._our_oks - 1)
        return True

    def _expect_oks(self, count: int) -> None:
        """Drop the next `count` +OK of the server, if the connection is verbose."""
        self._our_oks = count if self.verbose else 0
        self.watch_ops()

    # -- subscriptions that end

    def forget(self, sid: bytes) -> None:
        """Note that a subscription has ended."""
        self.table.remove(sid)
        self._unwatch(sid)

    def close(self, sids: Sequence[bytes], now: int) -> None:
        """Unsubscribe upstream and drop the messages that still come."""
        for sid in sids:
            self.closed[sid] = None
            self._watch(sid, Need.LINE)
        # Between the PONGs of two fences, the +OK are those of the UNSUBs.
        self._fences.then_alone(lambda _: self._expect_oks(len(sids)), now)
        self._c2s.inject(b"".join(map(encode.unsub, sids)), Op.UNSUB.bit, now, "proxy")
        self._fences.then_alone(lambda _: self._closed(sids), now, len(sids) * OVERHEAD)

    def _closed(self, sids: Sequence[bytes]) -> None:
        self._expect_oks(0)
        for sid in sids:
            if sid in self.closed:
                del self.closed[sid]
                self._unwatch(sid)

    def _end_uncertain(self, now: int) -> None:
        """End the oldest of the subscriptions that the server may have ended, where they are many."""
        uncertain = self.table.uncertain
        if len(uncertain) > MOST_UNCERTAIN:
            oldest = [*islice(uncertain, MOST_UNCERTAIN // 4)]
            for sid in oldest:
                self.forget(sid)
            self.close(oldest, now)
            text = f"unsubscribed the oldest {len(oldest)} subscriptions that may be at their limit"
            self._lifecycle.notice("info", text, now)

    # -- a server that is lost, and replaced

    def lose_server(self) -> None:
        """Keep all limits here, since the next server counts from its own SUBs."""
        self._replayed = (*self.table.values(),)
        self.table.uncertain.clear()
        for sub in self._replayed:
            sub.ours = True

    def replay(self, *, altered: bool) -> tuple[bytes, int]:
        """Return the SUBs for the next server, with the counts that are left, and the number of them.

        altered: rules may drop or add deliveries, so the server's count would not be the client's.
        """
        live = [sub for sub in self._replayed if self.table.get(sub.sid) is sub]
        raw = bytearray()
        for sub in live:
            moves = self._resubscribing.get(sub.sid)  # those wait, and begin with the subject before them
            raw += encode.sub(moves[0].upstream if moves else sub.upstream, sub.sid, sub.queue)
            if sub.max and not altered:
                raw += encode.unsub(sub.sid, sub.max - self.delivered(sub))
        return bytes(raw), len(live)

    def replayed(self) -> None:
        """Note that the next server has its SUBs."""
        self._replayed = ()

    # -- subscriptions that are moved

    def resubscribe(self, again: list[tuple[bytes, bytes]], before: ConnectionRules, now: int) -> None:
        """Move subscriptions, given as sids with their new subjects on the server.

        before: the rules under which the server has them now.
        """
        fences, pipe = self._fences, self._c2s
        moved = [(self.table[sid], subject) for sid, subject in again]
        if self.verbose:
            fences.then_alone(lambda _: self._expect_oks(len(moved)), now)
        pipe.inject(b"".join(encode.unsub(sub.sid) for sub, _ in moved), Op.UNSUB.bit, now, "rewrite")
        fences.then_alone(lambda _: self._moved([sub for sub, _ in moved]), now)
        for sub, subject in moved:
            self._resubscribing.setdefault(sub.sid, deque()).append(Resubscription(before, sub.upstream))
            self._watch(sub.sid, Need.PAYLOAD)
            sub.upstream, sub.ours = subject, True
            self.table.uncertain.pop(sub.sid, None)
        raw = b"".join(encode.sub(sub.upstream, sub.sid, sub.queue) for sub, _ in moved)
        pipe.inject(raw, Op.SUB.bit, now, "rewrite")
        if self.verbose:
            fences.then_alone(lambda _: self._expect_oks(0), now)
        text = f"rewrite rules changed: resubscribed {len(moved)} subscriptions"
        self._lifecycle.notice("info", text, now)

    def _moved(self, subs: list[Subscription]) -> None:
        """Note that the server has switched to the new subjects: later messages come by them."""
        self._expect_oks(len(subs))
        for sub in subs:
            waiting = self._resubscribing[sub.sid]
            waiting.popleft()
            if waiting:
                continue
            del self._resubscribing[sub.sid]
            if sub.sid in self.closed:
                continue
            self._s2c.scanner.watch_sids.pop(sub.sid, None)
            live = self.table.get(sub.sid)
            if live is not None and live.max:
                self._watch(sub.sid, Need.LINE)

    def is_moving(self, sid: bytes) -> bool:
        """Return whether messages on `sid` may still come by the subject that it had before."""
        return sid in self._resubscribing

    def decide(self, frame: Frame, now: int) -> Decision | None:
        """Ask the rules under which the server sent a message on a sid that is moving."""
        old = self._resubscribing[frame.sid][0]
        sub = self.table.get(frame.sid)
        if sub is None:
            return old.rules.decide(S2C, frame, now)
        upstream, sub.upstream = sub.upstream, old.upstream
        try:
            return old.rules.decide(S2C, frame, now)
        finally:
            sub.upstream = upstream
