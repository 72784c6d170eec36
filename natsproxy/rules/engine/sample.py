"""The questions of `natsproxy rules explain`, and the form of its answers.

A question is a made-up frame on a made-up connection.  It names some properties of them and leaves others
open.  A property that is open contradicts no rule: it becomes a condition of the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from natsproxy.protocol.connect import Connect
from natsproxy.protocol.headers import build
from natsproxy.protocol.info import Info
from natsproxy.rules.interface import Subscription
from natsproxy.rules.model.roles import Role
from natsproxy.rules.model.rule import Rule
from natsproxy.rules.model.selector import MESSAGES, Peer
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame, Need
from natsproxy.wire.ops import C2S, OPS, S2C, Direction, Op, op_mask
from natsproxy.wire.parse import frames

_PLAIN: Final = b"NATS/1.0\r\n\r\n"
_TWINS: Final = {Op.PUB: Op.HPUB, Op.MSG: Op.HMSG}
_FROM_SERVER: Final = (Op.MSG, Op.HMSG, Op.INFO, Op.ERR, Op.OK)


@dataclass
class SampleView:
    """A made-up connection to explain a frame for, as a `View`.

    known: the fields of `Peer` that the question names.
    """

    connect: Connect = field(default_factory=Connect)
    info: Info = field(default_factory=Info)
    address: str = "127.0.0.1:0"
    ordinal: int = 1
    known: frozenset[str] = frozenset()
    conn: int = 0
    key: str = ""
    verbose: bool = False
    pedantic: bool = False
    subs: dict[bytes, Subscription] = field(default_factory=dict)
    subs_version: int = 0
    tls_subject: str = ""

    def count_sid(self, sid: bytes) -> None:
        """Count nothing."""

    def watch_subject(self, direction: Direction, subject: bytes, need: Need) -> None:
        """Watch nothing."""

    def unwatch_subject(self, direction: Direction, subject: bytes) -> None:
        """Watch nothing."""

    def conditions(self, peer: Peer) -> list[str] | None:
        """Return the conditions of a rule that are open, None where a known one does not hold."""
        known = {key: value if key in self.known else None for key, value in peer._asdict().items()}
        if not Peer(**known).admits(self):
            return None
        unknown = {key: None if key in self.known else value for key, value in peer._asdict().items()}
        return [f"its client has {words}" for words in Peer(**unknown).words()]


class Explanation(NamedTuple):
    """One rule's effect: whether it may act, on which condition, and its result (or why it does not act)."""

    rule: Rule
    acts: bool
    condition: str
    result: str


def when(rule: Rule, conditions: Iterable[str]) -> str:
    """Return the words for the gate of a rule and the conditions that a question leaves open."""
    unsure = " and ".join(dict.fromkeys(conditions))
    if not unsure:
        return rule.gate.describe()
    return f"if {unsure}" + ("" if rule.gate.open else f"; {rule.gate.describe()}")


@dataclass(frozen=True, slots=True)
class Sample:
    """A frame to explain.

    known: its properties that are named: "queue", "reply", "size", "headers", "status" (its code),
    "description" (the text behind that), "body".  role: the one that it has.  request: the subject of the
    publish or call that it answers.  twin: the op that it has if it has headers, where that is open.
    """

    direction: Direction
    frame: Frame
    known: frozenset[str] = frozenset()
    role: Role | None = None
    request: bytes = b""
    twin: Op | None = None


def sample(
    op: Op | None,
    subject: bytes,
    *,
    queue: bytes = b"",
    reply: bytes = b"",
    role: Role | None = None,
    headers: Sequence[tuple[bytes, bytes]] = (),
    status: bytes = b"",
    body: bytes | None = None,
    size: int | None = None,
) -> Sample:
    """Return the sample of a question.

    op: None for the plainest one that may have the other properties.  status: a code, perhaps with its text.
    Raises ValueError for properties that no frame has together.
    """
    op, twin = (op, None) if op is not None else _plainest(role, bool(headers), bool(status))
    _refuse(op, role, bool(headers or status), body is not None or size is not None)
    direction = S2C if op in _FROM_SERVER else C2S
    if not MESSAGES >> op & 1:
        frame = next(frames(_other(op, subject, queue), direction))
        return Sample(direction, frame, frozenset(["queue"] if queue else []))
    example = None if role is None else next(frames(role.example, role.direction))
    block = _block(headers, status) if headers or status else example.headers if example else b""
    content = body if body is not None else example.body if example else b""
    own = example.subject if example and (role is None or role.requests or not subject) else subject
    raw = encode.message(
        op,
        own,
        sid=b"" if direction == C2S else b"1",
        reply=reply or (example.reply if example else b""),
        headers=(block or _PLAIN) if OPS[op].headers else b"",
        body=content,
    )
    frame = next(frames(raw, direction))
    decided = Need.LINE if role is None else role.need
    known = {
        "reply": bool(reply),
        "headers": bool(headers),
        "status": bool(headers or status) or decided == Need.HEADERS,
        "description": bool(headers) or b" " in status or decided == Need.HEADERS,
        "body": body is not None or decided == Need.PAYLOAD,
        "size": size is not None or (body is not None and (bool(headers) or not frame.headers)),
    }
    return Sample(
        direction,
        frame if size is None else frame._replace(size=size),
        frozenset(name for name, named in known.items() if named),
        role,
        subject if role is not None and role.requests else b"",
        twin,
    )


def _plainest(role: Role | None, headers: bool, status: bool) -> tuple[Op, Op | None]:
    """Return the op of a frame with these properties, and the one that it may have instead."""
    if role is not None:
        op = next(frames(role.example, role.direction)).op
        twin = _TWINS.get(op)
        if twin is None or not role.ops & op_mask(twin):
            return op, None
        return (twin, None) if headers or status else (op, twin)
    if headers or status:
        return (Op.HMSG if status else Op.HPUB), None
    return Op.PUB, Op.HPUB


def _refuse(op: Op, role: Role | None, headers: bool, payload: bool) -> None:
    if role is not None and not role.ops & op_mask(op):
        raise ValueError(f"{op.label} never is {role.name}, {role.text}")
    if headers and not OPS[op].headers:
        raise ValueError(f"{op.label} has no headers")
    if payload and not MESSAGES & op_mask(op):
        raise ValueError(f"{op.label} has no payload")


def _block(headers: Sequence[tuple[bytes, bytes]], status: bytes) -> bytes:
    code, _, description = status.partition(b" ")
    return build(tuple(headers), code=code, description=description)


def _other(op: Op, subject: bytes, queue: bytes) -> bytes:
    """Return a frame that is no message."""
    made = {
        Op.SUB: lambda: encode.sub(subject, b"1", queue),
        Op.UNSUB: lambda: encode.unsub(b"1"),
        Op.INFO: lambda: encode.info(b"{}"),
        Op.CONNECT: lambda: encode.connect(b"{}"),
        Op.ERR: lambda: encode.err("Stale Connection"),
    }
    return made[op]() if op in made else op.label.encode() + b"\r\n"
