"""The effect of each rule on a frame, without sending it: the answers of `natsproxy rules explain`.

Theory
1. The engine that serves traffic decides on one concrete frame of one concrete connection (`trial.py`).
2. What a question does not name has a plain value: a client without a name, a message without headers and
   payload.  Where a rule looks at such a property, the answer names it among its assumptions.
3. Gates and limits depend on earlier frames, so gates are assumed open and limits reached; the answer states
   them in words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from natsproxy.events import Firing
from natsproxy.protocol.headers import build
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.engine.trial import TrialView, ask
from natsproxy.rules.interface import Decision
from natsproxy.rules.model.counts import Count
from natsproxy.rules.model.gate import OPEN
from natsproxy.rules.model.roles import MSGS, PUBS, Role
from natsproxy.rules.model.rule import LinkAction, Rule, Stage
from natsproxy.rules.model.selector import MESSAGES, SENDABLE
from natsproxy.rules.rewriting.subjects import Rewriting
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame, Need
from natsproxy.wire.ops import C2S, OPS, S2C, Direction, Op, op_mask
from natsproxy.wire.parse import frames

SERVER_ONLY: Final = (
    "A message that permissions keep from one queue member goes to another on nats-server; here it is lost.",
    "A request whose only receivers were filtered gets a 503 from nats-server; here it times out.",
    "What permissions keep from a pull goes to the next pull on nats-server; here JetStream awaits its ack.",
    "nats-server's own 503 on a denied reply subject passes its filter; here it is filtered.",
    "nats-server opens a reply (allow_responses) as it delivers the request; here it opens as that passes.",
    "nats-server checks permissions after its account's mappings; natsproxy checks the client's subject.",
    "Rewriting is not isolation: inboxes and stream names are shared by all clients.",
)
"""Differences from nats-server."""
MOST_PAYLOAD: Final = 64 << 20
"""nats-server's own bound of `max_payload`."""
_DRAWS: Final = 100
"""The number of random choices of a weighted mapping that are tried."""
_FROM_CLIENT: Final = SENDABLE[C2S] & ~Op.OK.bit  # a client may send +OK, and none does

_ARGS: Final = {Op.ERR: b"'Stale Connection'"}
"""The arguments of an explained frame, by op, where they are not a JSON object."""


@dataclass(frozen=True, slots=True)
class Question:
    """A frame to explain.

    given: the properties that were named: "queue", "reply", "headers", "payload".  role: the one that it was
    asked to have.  request: the subject of the publish or call that it answers.
    """

    direction: Direction
    frame: Frame
    given: frozenset[str] = frozenset()
    role: Role | None = None
    request: bytes = b""
    queue: bytes = b""


class Explanation(NamedTuple):
    """One rule's effect: whether it acts, its gate in words, and the result (or why it does not act)."""

    rule: Rule
    acts: bool
    condition: str
    result: str


class FrameExplanation(NamedTuple):
    """One explanation per rule, in the order in which they run, and what was assumed."""

    rules: list[Explanation]
    assumptions: list[str]


# -- the question


def question(
    op: Op | None,
    subject: bytes,
    *,
    direction: Direction | None = None,
    queue: bytes = b"",
    reply: bytes = b"",
    role: Role | None = None,
    headers: Sequence[tuple[bytes, bytes]] = (),
    status: bytes = b"",
    body: bytes | None = None,
    size: int | None = None,
) -> Question:
    """Return the question about a frame with these properties.

    op: None for the plainest one that may have the others.  direction: of an op that goes both ways.  status:
    a code, perhaps with its text.  size: of headers and body.  Raises ValueError for properties that no frame
    has together.
    """
    example = None if role is None else next(frames(role.example, role.direction))
    block = _block(headers, status) if headers or status else example.headers if example else b""
    if op is None:
        op = _plainest(example, bool(block), bool(status))
    _refuse(op, role, bool(headers or status), body is not None or size is not None)
    if direction is None:
        direction = C2S if _FROM_CLIENT >> op & 1 else S2C
    elif not SENDABLE[direction] >> op & 1:
        raise ValueError(f"{op.label} never goes {direction.label}")
    given = {"queue": queue, "reply": reply, "headers": headers or status}
    named = {name for name, value in given.items() if value}
    if not MESSAGES >> op & 1:
        return Question(direction, next(frames(_other(op, subject, queue), direction)), frozenset(named))
    block = (block or build(())) if OPS[op].headers else b""
    if body is None:
        body = example.body if example is not None and size is None else b""
    if size is not None:
        body = _sized(body, size - len(block))
    if body or size is not None:
        named.add("payload")
    own = example.subject if example and role and (role.requests or not subject) else subject
    raw = encode.message(
        op,
        own,
        sid=b"" if direction == C2S else b"1",
        reply=reply or (example.reply if example else b""),
        headers=block,
        body=body,
    )
    request = subject if role is not None and role.requests else b""
    return Question(direction, next(frames(raw, direction)), frozenset(named), role, request, queue)


def _plainest(example: Frame | None, headers: bool, status: bool) -> Op:
    """Return the op of a frame with these properties."""
    if example is not None:
        plain = example.op in (Op.PUB, Op.HPUB)
        return (Op.HPUB if plain else Op.HMSG) if headers else example.op
    if headers:
        return Op.HMSG if status else Op.HPUB
    return Op.PUB


def _refuse(op: Op, role: Role | None, headers: bool, payload: bool) -> None:
    if role is not None and not role.ops & op_mask(op):
        raise ValueError(f"{op.label} is never {role.name}, {role.text}")
    if headers and not OPS[op].headers:
        raise ValueError(f"{op.label} has no headers")
    if payload and not MESSAGES & op_mask(op):
        raise ValueError(f"{op.label} has no payload")


def _block(headers: Sequence[tuple[bytes, bytes]], status: bytes) -> bytes:
    code, _, description = status.partition(b" ")
    return build(tuple(headers), code=code, description=description)


def _sized(body: bytes, size: int) -> bytes:
    """Return a body cut or filled to a size."""
    if not 0 <= size <= MOST_PAYLOAD:
        raise ValueError(f"its size must be at least that of its headers and at most {MOST_PAYLOAD} bytes")
    return body[:size].ljust(size, b"x")


def _other(op: Op, subject: bytes, queue: bytes) -> bytes:
    """Return a frame that is no message."""
    values = {"subject": subject, "queue": queue, "sid": b"1", "args": _ARGS.get(op, b"{}")}
    form = next(iter(OPS[op].forms.values()))
    if queue:
        form = next((one for one in OPS[op].forms.values() if "queue" in one), form)
    return b" ".join([OPS[op].token, *(values[field] for field in form)]) + b"\r\n"


# -- the answer


class _Run(NamedTuple):
    """The effect of the rules of a fresh connection on the frame.

    fired: those that acted, by name.  matched: the names of those that selected it.
    """

    present: frozenset[Rule]
    decision: Decision | None
    fired: dict[str, Firing]
    matched: set[str]


def explain(
    chain: RuleChain, view: TrialView, asked: Question, unknown: Iterable[str] = ()
) -> FrameExplanation:
    """Explain what the rules do to a frame.  unknown: the properties of the client that were not given."""
    opened = RuleChain(
        replace(rule, gate=OPEN, action=rule.action.exhausted(), shared=Count(since=-1))
        for rule in chain.rules
    )
    run = _run(opened, view, asked)
    present = {rule.name for rule in run.present}
    found = [
        Explanation(
            rule, False, "", f"applies to other clients: those with {', '.join(rule.selector.peer.words())}"
        )
        for rule in chain.rules
        if rule.name not in present
    ]
    here = [rule for rule in chain.rules if rule.name in present]
    for rule in sorted(here, key=lambda one: one.action.stage, reverse=asked.direction == S2C):
        firing = run.fired.get(rule.name)
        if isinstance(rule.action, Rewriting) and rule.action.certain is None and asked.direction == C2S:
            result = _by_chance(opened, view, asked, rule)
        else:
            result = "" if firing is None else _result(rule, firing, run.decision)
        if result:
            found.append(Explanation(rule, True, rule.action.condition() or rule.gate.describe(), result))
        else:
            found.append(Explanation(rule, False, "", _why_not(rule, run, asked)))
    acting = [step.rule for step in found if step.acts]
    return FrameExplanation(found, _assumptions(chain, here, acting, asked, unknown))


def _run(chain: RuleChain, view: TrialView, asked: Question) -> _Run:
    """Open a connection, send what the question presupposes, and ask about its frame."""
    view = replace(view, subs={}, watched={})
    rules = chain.bind(view, None, 0)
    frame = asked.frame
    if frame.op == Op.UNSUB or MSGS >> frame.op & 1:
        ask(rules, view, C2S, next(frames(encode.sub(b">", b"1", asked.queue), C2S)), 0)
        if asked.request:
            call = encode.pub(asked.request, b"", reply=frame.subject)
            ask(rules, view, C2S, next(frames(call, C2S)), 0)
    elif frame.reply:
        ask(rules, view, C2S, next(frames(encode.sub(frame.reply, b"2"), C2S)), 0)
    present = rules.index.present
    before = {rule: rules.matches(rule) for rule in present}
    rules.due(0)
    decision = ask(rules, view, asked.direction, frame, 0)
    firings = [*rules.fired, *(() if decision is None else decision.firings)]
    matched = {rule.name for rule in present if rules.matches(rule) > before[rule]}
    return _Run(present, decision, {firing.rule: firing for firing in firings}, matched)


def _by_chance(chain: RuleChain, view: TrialView, asked: Question, rule: Rule) -> str:
    """Return the possible results of a rule that acts at random, empty if it never acts."""
    found: Counter[str] = Counter()
    for chain.seed in range(_DRAWS):
        firing = _run(chain, view, asked).fired.get(rule.name)
        if firing is not None:
            found[firing.detail] += 1
    unchanged = ["unchanged"] if found and found.total() < _DRAWS else []
    return " or ".join([*sorted(found), *unchanged]) + (", by chance" if found else "")


def _result(rule: Rule, firing: Firing, decision: Decision | None) -> str:
    if rule.action.shadow:
        return f"{firing.action}: the frame passes: the rule is in shadow and only reports"
    if isinstance(rule.action, LinkAction) and (rule.action.lasting or not rule.selector.ops):
        return f"changes the link: {rule.action.describe()}"
    answer = b"" if decision is None else decision.answer
    if answer and (firing.action == "deny" or rule.action.stage == Stage.PERMISSION):
        return answer.decode("utf-8", "replace").strip()
    if rule.action.stage == Stage.LIMIT:
        return rule.action.describe()
    if rule.action.stage == Stage.PERMISSION:
        return "filtered: it is not delivered"
    return firing.detail or rule.action.describe()


def _why_not(rule: Rule, run: _Run, asked: Question) -> str:
    if rule.action.stage == Stage.REWRITE:
        return "leaves the frame unchanged"
    if rule.name in run.matched:
        over = run.decision is not None and (run.decision.out == () or run.decision.close is not None)
        return "comes too late: the frame has ended" if over else "leaves the frame unchanged"
    if rule.action.stage == Stage.PERMISSION and rule.selector.wants(asked.direction) & asked.frame.op.bit:
        return "admits it"
    return f"selects other frames: {rule.selector.describe()}"


def _assumptions(
    chain: RuleChain, here: list[Rule], acting: list[Rule], asked: Question, unknown: Iterable[str]
) -> list[str]:
    """Return the assumptions about what the question leaves open, where a rule looks at it."""
    peers = [rule.selector.peer._asdict() for rule in chain.rules]
    found = [
        f"the client has no {name.replace('_', ' ')}"
        for name in unknown
        if any(peer[name] is not None for peer in peers)
    ]
    frame, given = asked.frame, asked.given
    ops = _TWINS.get(frame.op, frame.op.bit)
    looking = [rule for rule in here if rule.selector.wants(asked.direction) & ops]
    roles = [rule.selector.role for rule in looking if rule.selector.role is not None]
    needs = [rule.need for rule in looking]
    message = MESSAGES >> frame.op & 1
    if message and asked.role is None:
        if "headers" not in given and any(need == Need.HEADERS for need in needs):
            found.append("it has no headers")
        sized = any(rule.selector.min_size or rule.selector.max_size is not None for rule in looking)
        if "payload" not in given and (sized or any(need == Need.PAYLOAD for need in needs)):
            found.append("its payload is empty")
        if any(role.requests is not None for role in roles):
            found.append("it answers no earlier request")
    if message and not frame.reply and any(_looks_at_reply(rule) for rule in looking):
        found.append("it has no reply subject")
    if any(rule.selector.queues is not None for rule in looking) and not asked.queue and not frame.queue:
        found.append("it belongs to no queue group")
    delivered = MSGS >> frame.op & 1
    if delivered and any(rule.action.filtered or isinstance(rule.action, Rewriting) for rule in here):
        found.append("the client has subscribed to '>'")
    found += [
        f"no earlier frame has started {rule.name!r}"
        for rule in here
        if isinstance(rule.action, LinkAction) and rule.action.lasting and rule.selector.ops
        if rule not in acting
    ]
    found += [f"the gate of {rule.name!r} lets it through" for rule in acting if not rule.gate.open]
    return found


_TWINS: Final = {op: PUBS if PUBS >> op & 1 else MSGS for op in Op if MESSAGES >> op & 1}
"""The ops that a message has with headers and without."""


def _looks_at_reply(rule: Rule) -> bool:
    role = rule.selector.role
    return rule.action.answers or (role is not None and role.name in ("delivery", "redelivery"))
