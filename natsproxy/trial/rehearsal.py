"""Rules run over recordings: each frame that a peer sent, and what the rules do to it.

Each connection has the rules that the proxy would give it: by its CONNECT, its account, its subscriptions and
the clock of the recording.  Rules that come into force with the proxy do so at the recording's beginning.
A frame that could not have come, since a verdict on an earlier one prevents it, is not shown to the rules.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from natsproxy.capture.format.connection import ConnectionId
from natsproxy.capture.format.records import Flags, Frames, GapRecord, OpenRecord, Preamble
from natsproxy.capture.read.frames import frames_of
from natsproxy.capture.read.reader import Tell, open_capture
from natsproxy.capture.read.segment import BlockRef
from natsproxy.events import Firing
from natsproxy.protocol.connect import parse_connect
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.engine.rule_engine import TOO_LARGE
from natsproxy.rules.file.expectations import CANNOT_TELL, WOULD_NOT_COME, Expectation
from natsproxy.rules.interface import Decision, Subscription
from natsproxy.rules.model.rule import Rule
from natsproxy.session.client_keys import ClientKeys
from natsproxy.trial.arrivals import arrivals
from natsproxy.trial.bound import NO_KEYS, BoundRules, Keys
from natsproxy.trial.consequences import Consequences, Requests
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, MESSAGE_OPS, S2C, Direction, Op
from natsproxy.wire.parse import frames as parse_frames

_LINK: Final = {"swallow": "swallow", "half_close": WOULD_NOT_COME}
"""The actions that keep frames from arriving while in force, each with the verdict on those frames."""


class Ruling(NamedTuple):
    """One verdict on a frame.  rule: its name.  verdict: the action of its firing, or what follows."""

    rule: str
    verdict: str
    detail: str = ""


class JudgedFrame(NamedTuple):
    """A frame of a recording with what the rules say; a connection, which has no op; a live subscription.

    capture: its path.  client: the client's name, else its user, else `#` and the connection's number.
    t: ns since the start of the recording.  ordinal: its number on its connection and direction, None where
    it is no frame.
    rulings: in the order in which the rules act; none for a frame that passes.  expected: the places of the
    expectations that select it.
    """

    capture: str
    connection: str
    client: str
    direction: Direction
    t: int
    ordinal: int | None
    op: Op | None
    subject: bytes
    rulings: tuple[Ruling, ...] = ()
    expected: tuple[int, ...] = ()


class _Connection:
    """One connection of a recording, with the rules and the expectations on it.

    greeted: its CONNECT was seen.  latest: the rule that last took an action of `_LINK`.
    """

    def __init__(self, rules: BoundRules, expectations: BoundRules, requests: Requests) -> None:
        self.rules = rules
        self.expectations = expectations
        self.follows = Consequences(rules, requests)
        self.greeted = False
        self.latest: dict[str, str] = {}

    @property
    def client(self) -> str:
        """The client's name, else its user, else its number."""
        view = self.expectations.view  # which sees all frames
        return view.connect.name or view.connect.user or f"#{view.ordinal}"


class Rehearsal:
    """The rules of a file, and its expectations, on the recordings that `run` is given.

    missing: sentences about what is missing in the recordings.
    """

    def __init__(
        self, rules: Iterable[Rule], expectations: Iterable[Expectation] = (), seed: int = 0
    ) -> None:
        self.missing: Counter[str] = Counter()
        self._rules = tuple(rules)
        self._selections = [one.selection for one in expectations]
        self._seed = seed

    def run(self, capture: Path, lost: Tell | None = None) -> Iterator[JudgedFrame]:
        """Return the frames of a recording, by time, with their verdicts.  Raises CaptureError."""
        return _Recording(self, capture).judged(lost)

    def chains(self) -> tuple[RuleChain, RuleChain]:
        """Return the rules, and the expectations as rules, for one recording: rules count on each anew."""
        rules = [_fresh(rule) for rule in self._rules]
        selections = [_fresh(rule) for rule in self._selections]
        return RuleChain(rules, seed=self._seed), RuleChain(selections)


def _fresh(rule: Rule) -> Rule:
    return Rule(rule.name, rule.kind, rule.selector, rule.action, rule.gate, rule.table, rule.where)


def _ignore(text: str) -> None:
    """Do nothing with a sentence that the next reading says again."""


def _subs(listed: Iterable[Any]) -> Iterator[Subscription]:
    """Yield the subscriptions that a preamble lists."""
    for sid, subject, queue, most, delivered in listed:
        yield Subscription(sid, subject, queue, subject, most, delivered)


def _ruling(firing: Firing, frame: Frame | None) -> Ruling:
    unseen = frame is not None and frame.missing and firing.detail.endswith(TOO_LARGE)
    return Ruling(firing.rule, CANNOT_TELL if unseen else firing.action, firing.detail)


class _Recording:
    """The connections of one recording so far."""

    def __init__(self, rehearsal: Rehearsal, capture: Path) -> None:
        self._missing = rehearsal.missing
        self._capture = capture
        self._chain, self._expectations = rehearsal.chains()
        self._connections: dict[ConnectionId, _Connection] = {}
        self._requests = Requests()
        self._keys: defaultdict[int, ClientKeys] = defaultdict(ClientKeys)
        self._now = 0
        self._last_fired = ""

    def judged(self, lost: Tell | None) -> Iterator[JudgedFrame]:
        start: int | None = None
        for chain in (self._chain, self._expectations):
            chain.begin(0, lambda now: now + (start or 0))
        tells = iter([None if lost is None else _ignore, lost])  # it is read twice, and tells once
        for ref, item in arrivals(lambda: open_capture(self._capture, next(tells))):
            wall = ref.wall(item.t)
            start = wall if start is None else start
            self._now = max(self._now, wall - start)
            conn = ref.connection(item)
            if isinstance(item, GapRecord):
                self._missing["frames are missing in a recording: what they change is not seen"] += 1
            if conn is None:
                continue
            if isinstance(item, OpenRecord | Preamble):
                yield from self._open(conn, item)
            elif isinstance(item, Frames):
                yield from self._frames(ref, item)

    # -- connections

    def _open(self, conn: ConnectionId, item: OpenRecord | Preamble) -> Iterator[JudgedFrame]:
        if conn in self._connections:  # the preamble of a later segment
            return
        if isinstance(item, OpenRecord):
            one = self._add(conn, item.info, ())
        else:
            facts = dict(item.info.get("open", {}))
            number = int(facts.get("ordinal") or conn.number)
            alike = self._keys[conn.run].known(str(facts.get("key", "")), number)
            one = self._add(conn, {**facts, "alike": alike}, _subs(item.info.get("subs", ())))
            self._introduce(one, item.info)
        yield from self._fired(conn, one)
        if one.rules.rules.opening != "serve":
            one.follows.ended = self._last_fired

    def _add(self, conn: ConnectionId, facts: dict[str, Any], subs: Iterable[Subscription]) -> _Connection:
        now = self._now
        rules = BoundRules(self._chain, conn.number, facts, now, subs)
        known = [
            Subscription(sub.sid, sub.subject, sub.queue, sub.subject) for sub in rules.view.subs.values()
        ]
        expectations = BoundRules(self._expectations, conn.number, facts, now, known)
        made = self._connections[conn] = _Connection(rules, expectations, self._requests)
        return made

    def _introduce(self, one: _Connection, info: dict[str, Any]) -> None:
        """Tell the rules the INFO and CONNECT of a connection that was open already."""
        for name, direction in (("info", S2C), ("connect", C2S)):
            for frame in parse_frames(bytes(info.get(name) or b""), direction):
                for bound in (one.rules, one.expectations):
                    bound.ask(direction, frame, (bound.view.key, bound.view.alike), self._now)
                one.greeted = one.greeted or direction == C2S

    def _keys_at(self, conn: ConnectionId, one: _Connection, frame: Frame) -> Keys:
        """Return the keys of a connection at a CONNECT."""
        view = one.rules.view
        if not one.greeted:
            one.greeted = True
            with suppress(ValueError):  # the server refuses it too
                return self._keys[conn.run].of(parse_connect(frame.args).name, view.ordinal)
        return view.key, view.alike

    # -- frames

    def _frames(self, ref: BlockRef, item: Frames) -> Iterator[JudgedFrame]:
        if item.flags & Flags.CUT:
            return
        for captured in frames_of(ref, item):
            frame = captured.head
            if frame is None or captured.in_ordinal is None:
                continue
            conn, direction = captured.conn, captured.direction
            one = self._connections.get(conn)
            if one is None:
                self._missing["a connection has no beginning in the recording: its client is not known"] += 1
                one = self._add(conn, {}, ())
            yield from self._due(conn, one)
            keys = self._keys_at(conn, one, frame) if frame.op == Op.CONNECT else NO_KEYS
            expected = self._selected(one, direction, frame, keys)
            rulings = self._rulings(one, direction, frame, keys)
            yield self._judged(
                conn, one, direction, captured.in_ordinal, frame.op, frame.subject, rulings, expected
            )
            yield from self._fired(conn, one)

    def _due(self, conn: ConnectionId, one: _Connection) -> Iterator[JudgedFrame]:
        """Let the rules act whose time has come."""
        if one.follows.ended:
            return
        _, close, _ = one.rules.rules.due(self._now)
        yield from self._fired(conn, one)
        if close is not None:
            one.follows.ended = self._last_fired

    def _selected(self, one: _Connection, direction: Direction, frame: Frame, keys: Keys) -> tuple[int, ...]:
        """Return the places of the expectations that select a frame."""
        selections = self._expectations.rules
        bound = one.expectations
        before = [bound.rules.matches(rule) for rule in selections]
        bound.ask(direction, frame, keys, self._now)
        return tuple(
            place for place, rule in enumerate(selections) if bound.rules.matches(rule) > before[place]
        )

    def _rulings(
        self, one: _Connection, direction: Direction, frame: Frame, keys: Keys
    ) -> tuple[Ruling, ...]:
        """Ask the rules about a frame, and note what follows from their decision."""
        by = one.follows.of(direction, frame)
        if by is not None:
            one.follows.stopped(direction, frame, by)
            return (Ruling(by, WOULD_NOT_COME),)
        lost = self._lost(one, direction, frame)
        if lost is not None:
            one.follows.stopped(direction, frame, lost.rule)
            return (lost,)
        sub = one.rules.view.subs.get(frame.sid) if direction == S2C else None
        decision = one.rules.ask(direction, frame, keys, self._now)
        moved = sub is not None and sub.upstream != sub.subject
        rulings = self._fired_at(one, frame, decision)
        stopped = decision is not None and (decision.out == () or decision.close is not None)
        if decision is not None and decision.conditions_changed:
            stopped = stopped or self._lost(one, direction, frame) is not None
        if stopped and rulings:
            last = rulings[-1]
            if decision is not None and decision.close is not None and last.verdict != CANNOT_TELL:
                one.follows.ended = last.rule
            if frame.op in MESSAGE_OPS:
                one.follows.stopped(direction, frame, last.rule)
        elif frame.op in MESSAGE_OPS:
            one.follows.passed(direction, frame)
        return rulings or ((Ruling(self._rewriting(one), CANNOT_TELL),) if moved else ())

    def _lost(self, one: _Connection, direction: Direction, frame: Frame) -> Ruling | None:
        """Return the verdict of a link that loses a frame, None where it does not."""
        conditions, _ = one.rules.rules.conditions(direction, self._now)
        if conditions is None:
            return None
        if conditions.swallow and frame.op in MESSAGE_OPS:
            action = "swallow"
        elif conditions.finish:
            action = "half_close"
        else:
            return None
        return Ruling(one.latest.get(action, ""), _LINK[action])

    def _fired_at(self, one: _Connection, frame: Frame, decision: Decision | None) -> tuple[Ruling, ...]:
        """Return the verdicts of the rules that acted on a frame."""
        firings = () if decision is None else decision.firings
        one.latest.update({firing.action: firing.rule for firing in firings if firing.action in _LINK})
        return tuple(_ruling(firing, frame) for firing in firings)

    def _rewriting(self, one: _Connection) -> str:
        return next((rule.name for rule in one.rules.rules.index.everything if rule.kind == "rewrite"), "")

    # -- results

    def _fired(self, conn: ConnectionId, one: _Connection) -> Iterator[JudgedFrame]:
        """Yield the firings that belong to no frame."""
        fired = one.rules.rules.fired
        found, fired[:] = list(fired), []
        for firing in found:
            self._last_fired = firing.rule
            if firing.action in _LINK:
                one.latest[firing.action] = firing.rule
            direction = S2C if firing.direction == S2C.label else C2S
            op = None if not firing.op else Op.SUB  # a live subscription that a rule in shadow would end
            yield self._judged(
                conn, one, direction, None, op, firing.subject.encode(), (_ruling(firing, None),), ()
            )
        for rule, subject in one.rules.revoked:
            yield self._judged(conn, one, C2S, None, Op.SUB, subject, (Ruling(rule, "deny"),), ())
        one.rules.revoked.clear()

    def _judged(
        self,
        conn: ConnectionId,
        one: _Connection,
        direction: Direction,
        ordinal: int | None,
        op: Op | None,
        subject: bytes,
        rulings: tuple[Ruling, ...],
        expected: tuple[int, ...],
    ) -> JudgedFrame:
        return JudgedFrame(
            str(self._capture),
            str(conn),
            one.client,
            direction,
            self._now,
            ordinal,
            op,
            subject,
            rulings,
            expected,
        )
