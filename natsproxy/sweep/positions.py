"""The places of a recorded run where a fault can act: each frame that arrived, and the state around it.

A position is counted by the rule engine itself: each selection becomes a rule that never fires, and n is the
number of frames that it has matched.  So a rule made of a position acts on that frame and no other.
The frames before a CONNECT (the INFO) have the key that their connection has then, `#1`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple

from natsproxy.capture.format.connection import ConnectionId
from natsproxy.printable import printable
from natsproxy.protocol.jetstream import ack_names_at, flow_names_at, parse_ack, parse_api
from natsproxy.protocol.template import template
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.engine.rule_engine import RuleEngine
from natsproxy.rules.engine.trial import TrialView, ask
from natsproxy.rules.file.parser import parse_rules
from natsproxy.rules.kinds import KINDS
from natsproxy.rules.model.gate import ordinal
from natsproxy.rules.model.rule import Rule
from natsproxy.sweep.selection import FrameSelection, pattern, select
from natsproxy.sweep.state import ANSWERS, Consumer, Conversation
from natsproxy.sweep.traffic import Arrived, RunTraffic, traffic
from natsproxy.sweep.values import Place, Position
from natsproxy.wire.ops import C2S

_MOST_DIFFERENCES: Final = 20


class _Found(NamedTuple):
    """A frame with its selection, and the state just before it.  of, acked: see `Place`."""

    one: Arrived
    selection: FrameSelection
    state: str
    of: str
    acked: bool


def places(capture: Path) -> list[Place]:
    """Return the places of a recorded run, in the order in which its frames arrived.  Raises CaptureError."""
    return places_of(traffic(capture))


def places_of(run: RunTraffic) -> list[Place]:
    """Return the places of a run."""
    found, by_clock = _conversations(run)
    numbers = _counted([one for one, *_ in found], [selection for _, selection, *_ in found])
    kinds = Counter((one.key, selection, of) for one, selection, _, of, _ in found)
    seen: Counter[tuple[str, FrameSelection, str]] = Counter()
    made: list[Place] = []
    for at, ((one, selection, state, of, acked), n) in enumerate(zip(found, numbers, strict=True)):
        kind = one.key, selection, of
        seen[kind] += 1
        timed = at in by_clock
        words = BY_CLOCK if timed else ", ".join(filter(None, (_part(seen[kind], kinds[kind]), state)))
        position = Position(one.key, *selection, n)
        frame = one.frame
        reply, t = bool(frame.reply) and parse_ack(frame.reply) is None, one.t - run.began
        made.append(Place(position, words, t, one.ordinal, frame.size, reply, timed, of, acked))
    return made


PARTS: Final = ("only", "first", "between", "last")
"""The places of a frame among those of its kind, the first word of a state."""
BY_CLOCK: Final = "by the clock"
"""The state of a frame that a timer decides: it comes at any other."""


def _part(number: int, count: int) -> str:
    if number == 1:
        return "first" if count > 1 else "only"
    return "last" if number == count else "between"


def conversation_of(state: str) -> str:
    """Return the part of a state that is not about its frame: the same for all frames there."""
    words = state.split(", ")
    return ", ".join(word for word in words if word not in PARTS and not word.startswith(ANSWERS))


# -- the conversations


def _conversations(run: RunTraffic) -> tuple[list[_Found], set[int]]:
    """Return the frames with their states, and the places of those that a clock decides."""
    published, acked = _habits(run.frames)
    again = _later(run)
    by_clock: set[int] = set()
    conversations: dict[ConnectionId, Conversation] = {}
    found: list[_Found] = []
    for place, one in enumerate(run.frames):
        conversation = conversations.get(one.conn)
        if conversation is None:
            conversation = Conversation(
                one.conn in again, published, acked, by_clock=by_clock, generated=run.generated
            )
            conversations[one.conn] = conversation
        selection = select(one.direction, one.frame, conversation.asked, run.generated)
        of = _of(one, selection, conversation.asked.get(one.frame.subject, b""), run.generated)
        asks = bool(one.frame.reply) and one.direction == C2S
        stored = asks and selection.subject in published
        found.append(_Found(one, selection, conversation.words(one, selection), of, stored))
        conversation.take(place, one, selection)
    for conversation in conversations.values():
        conversation.end()
    return found, by_clock


def _habits(frames: list[Arrived]) -> tuple[set[str], set[Consumer]]:
    """Return the patterns of subjects whose publishes get an ack, and the consumers that are acked."""
    asked: defaultdict[ConnectionId, dict[bytes, bytes]] = defaultdict(dict)
    published: set[str] = set()
    acked: set[Consumer] = set()
    for one in frames:
        frame = one.frame
        if one.direction == C2S:
            if frame.reply:
                asked[one.conn][frame.reply] = frame.subject
            if (ack := parse_ack(frame.subject)) is not None:
                acked.add((ack.stream, ack.consumer))
        elif frame.subject in asked[one.conn]:
            selection = select(one.direction, frame, asked[one.conn])
            if selection.what == "publish-ack":
                published.add(selection.subject)
    return published, acked


def _later(run: RunTraffic) -> set[ConnectionId]:
    """Return the connections that began after an earlier one of their client had ended."""
    names = {one.conn: client_of(one.key) for one in run.frames}
    later: set[ConnectionId] = set()
    for conn, name in names.items():
        begun = run.opened.get(conn, 0)
        earlier = (run.closed.get(other) for other, one in names.items() if other != conn and one == name)
        if any(end is not None and end <= begun for end in earlier):
            later.add(conn)
    return later


def client_of(key: str) -> str:
    """Return the client's name in a connection key; `#` for one without a name."""
    return "#" if key.startswith("#") else key.rpartition("/")[0]


def _of(one: Arrived, selection: FrameSelection, request: bytes, generated: Collection[bytes]) -> str:
    """Return what a frame is about, in words for people."""
    frame = one.frame
    ack = frame.subject if parse_ack(frame.subject) else frame.reply if parse_ack(frame.reply) else b""
    tokens = template(ack or frame.subject, generated).split(b".")
    at = ack_names_at(len(tokens)) if ack else None
    if selection.what == "flow-reply":
        at = flow_names_at(len(tokens))
    if at is not None:
        return f"{_text(tokens[at])}/{_text(tokens[at + 1])}"
    call = parse_api(template(request or frame.subject, generated))
    if call is None:
        return pattern(request, generated) if request else selection.subject
    if call.verb == b"CONSUMER.MSG.NEXT":
        return f"{_text(call.stream)}/{_text(call.consumer)}"
    return " ".join(_text(part) for part in (call.verb, call.stream, call.consumer) if part)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


# -- the count, by the engine


def _counted(frames: list[Arrived], selections: list[FrameSelection]) -> list[int]:
    """Return the number of each frame among those of its connection that its selection admits."""
    order = list(dict.fromkeys(selections))
    tables = [
        {"name": str(at), "kind": "drop", "only": {}, **selection.table()}
        for at, selection in enumerate(order)
    ]
    rules = dict(zip(order, parse_rules(tables, KINDS), strict=True))
    chain = RuleChain(rules.values())
    bound: dict[ConnectionId, tuple[RuleEngine, TrialView]] = {}
    return [
        _number(one, rules[selection], chain, bound)
        for one, selection in zip(frames, selections, strict=True)
    ]


def _number(
    one: Arrived, rule: Rule, chain: RuleChain, bound: dict[ConnectionId, tuple[RuleEngine, TrialView]]
) -> int:
    if one.conn not in bound:
        view = TrialView(conn=one.conn.number, key=one.key)
        bound[one.conn] = chain.bind(view, None, one.t), view
    rules, view = bound[one.conn]
    ask(rules, view, one.direction, one.frame, one.t)
    return rules.matches(rule)


# -- several runs


def common(baselines: list[list[Place]]) -> tuple[list[Place], list[str]]:
    """Return the places of the first baseline that all of them have, and what differs, a sentence each.

    What a clock decides may come more or less often: it is left out without a word.
    """
    if not baselines:
        return [], []
    positions = [{place.position: place for place in one} for one in baselines]
    shared = set(positions[0]).intersection(*positions[1:])
    kept = [place for place in baselines[0] if place.position in shared]
    odd = [place for one in positions for position, place in one.items() if position not in shared]
    groups = dict.fromkeys(place.position[:4] for place in odd if not place.by_clock)
    sentences = [_difference(group, baselines) for group in groups]
    rest = len(sentences) - _MOST_DIFFERENCES
    more = [f"{rest} more kinds of frames differ in number"] if rest > 0 else []
    return kept, sentences[:_MOST_DIFFERENCES] + more


def _difference(group: tuple[str, str, str, str], baselines: list[list[Place]]) -> str:
    counts = [max((p.position.n for p in one if p.position[:4] == group), default=0) for one in baselines]
    place = next(p for one in baselines for p in one if p.position[:4] == group)
    listed = ", ".join(map(str, counts[:-1])) + f" and {counts[-1]}"
    return f"{_where(place.position)} · {_noun(place)}: {listed} in the baselines"


# -- names

_NOUNS: Final = {
    "ack": "ack of {}",
    "nak": "nak of {}",
    "term": "term of {}",
    "wpi": "work in progress of {}",
    "next": "ack that pulls from {}",
    "api": "call of {}",
    "pull": "pull from {}",
    "flow-reply": "answer to flow control of {}",
    "delivery": "delivery of {}",
    "redelivery": "redelivery of {}",
    "heartbeat": "heartbeat on {}",
    "flow-control": "flow control on {}",
    "no-responders": "503 on {}",
    "publish-ack": "publish ack of {}",
    "api-reply": "answer of {}",
    "pull-reply": "status of a pull from {}",
    "SUB": "SUB to {}",
}
"""The words for a role or op; an op that is not in it is `OP on SUBJECT`, or `OP`."""


def name(place: Place) -> str:
    """Return a place's name for people, on one line: `worker · s2c · 3rd delivery of ORDERS/worker`."""
    return printable(f"{_where(place.position)} · {ordinal(place.position.n)} {_noun(place)}")


def _where(position: Position) -> str:
    key = position.connection
    shown = client_of(key) if key.endswith("/1") and not key.startswith("#") else key
    return f"{shown} · {position.direction}"


def _noun(place: Place) -> str:
    what, subject = place.position.what, place.position.subject
    of = place.of or subject
    if not of:
        return what
    if what in ("MSG", "HMSG") and of != subject:
        return f"{what} that answers {of}"
    noun = _NOUNS.get(what, what + " on {}").format(of)
    return f"{noun} ({subject})" if what in ("delivery", "redelivery") else noun
