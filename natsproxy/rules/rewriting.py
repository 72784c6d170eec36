"""Rewriting: the server sees other subjects than the client, and neither notices.

Theory
1. Rules are asked in file order; the first whose source covers a subject decides, once (no chaining).  The
   grammar is nats-server's (`protocol/mapping.py`); `prefix = "p"` is the mapping of `>` to `p.>`.
2. Two-way rules (the default) also rewrite SUBs, reply subjects, what comes back, `-ERR` texts and the
   `Nats-Subject` of a 503; so they must be undoable, and one that is not is refused.  `two_way = false` is
   the server's own behaviour: publishes only.
3. A SUB that a mapping covers only in part would miss messages.  It is refused as a permission violation,
   unless `partial = "pass"`.
4. `_INBOX`, `$JS`, `$SYS` and `$SRV` are left alone unless a source begins with that very token; `$JS.ACK`,
   `$JS.FC`, `_R_` and `_GR_` carry the server's state and are always left alone.
5. A MSG is translated by its sid where that SUB was rewritten, else by the inverse of the first mapping that
   has one for it (JetStream and inboxes deliver subjects that nobody subscribed to).
6. With `jetstream = true`, subjects in the JetStream API are translated too (`jsbody.py`).
7. Rewriting is not isolation: inboxes and the names of streams are shared by all clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from natsproxy.protocol import errors
from natsproxy.protocol.headers import get as get_header
from natsproxy.protocol.headers import set_header
from natsproxy.protocol.mapping import Mapping, SubjectTransform
from natsproxy.protocol.subjects import collide, compile_pattern, has_wildcard
from natsproxy.rules.base import Action, Rule, Stage
from natsproxy.rules.jsbody import is_api, translate_api_subject, translate_body
from natsproxy.rules.roles import MSGS, PUBS, History
from natsproxy.rules.seam import Decision, View
from natsproxy.rules.selector import Selector
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame, Need
from natsproxy.wire.interest import Clause
from natsproxy.wire.ops import C2S, S2C, Direction, Op, op_mask
from natsproxy.wire.parse import frames as parse_frames

if TYPE_CHECKING:
    from natsproxy.rules.draft import Draft

RESERVED: Final = frozenset({b"_INBOX", b"$JS", b"$SYS", b"$SRV"})
STATEFUL: Final = (b"$JS.ACK.", b"$JS.FC.", b"_R_.", b"_GR_.")
CACHE: Final = 8192
Draws = Callable[[Rule], float]
K = TypeVar("K")
V = TypeVar("V")


class Rewriting(Action):
    """The settings of one rewrite rule."""

    stage = Stage.REWRITE
    label = "rewrite"
    guards = True

    def __init__(
        self,
        mapping: Mapping,
        *,
        two_way: bool = True,
        partial_pass: bool = False,
        jetstream: bool = False,
        replies: bool = True,
        keep: tuple[bytes, ...] = (),
    ) -> None:
        self.mapping = mapping
        self.two_way = two_way
        self.partial_pass = partial_pass
        self.jetstream = jetstream
        self.replies = replies and two_way
        self.keep = tuple(compile_pattern(pattern) for pattern in keep)
        self.transform: SubjectTransform | None = mapping.only if two_way else None
        self.inverse = self.transform.inverse() if self.transform is not None else None
        self._first = mapping.source.partition(b".")[0]

    def clauses(self, selector: Selector) -> tuple[tuple[Direction, Clause], ...]:
        """Return nothing: the rewriter asks for all rewrite rules together."""
        return ()

    def spares(self, subject: bytes) -> bool:
        """Tell whether the rule leaves a subject of the client alone whatever its source."""
        first = subject.partition(b".")[0]
        if first in RESERVED and first != self._first:
            return True
        return subject.startswith(STATEFUL) or any(match(subject) for match in self.keep)

    def covers(self, subject: bytes) -> bool:
        """Tell whether the rule decides for the subject of a publish."""
        return self.mapping.choices[0][0].matches(subject) and not self.spares(subject)


class Refused:
    """The answer to a SUB that cannot be rewritten whole; `by` is the rule."""

    def __init__(self, by: Rule) -> None:
        self.by = by


class Rewriter:
    """All rewrite rules of a plan, as one function each way.  Immutable but for its caches."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = [(rule, rule.action) for rule in rules if isinstance(rule.action, Rewriting)]
        self._two_way = [(rule, action) for rule, action in self._rules if action.inverse is not None]
        self._jetstream = any(action.jetstream for _, action in self._rules)
        self._replies = any(action.replies for _, action in self._rules)
        self._publish: dict[bytes, Rule | bytes | None] = {}
        self._heads: dict[bytes, bytes] = {}
        self._subscribe: dict[bytes, bytes | Refused | None] = {}
        self._back: dict[tuple[bytes, bytes], bytes] = {}
        self._sides: dict[tuple[Selector, bytes], bool] = {}

    def clauses(self, direction: Direction, need: Need) -> list[Clause]:
        """Return what the scanner must look out for."""
        if direction == C2S:
            everything = None if self._replies else tuple(action.mapping.source for _, action in self._rules)
            found = [Clause(PUBS, Need.LINE, everything)]
            if self._two_way:
                found.append(Clause(op_mask(Op.SUB), Need.LINE))
            if self._jetstream:
                found.append(Clause(PUBS, Need.PAYLOAD, (b"$JS.API.>", b"$JS.*.API.>")))
            return found
        if not self._two_way:
            return []
        sources = tuple(action.inverse.source for _, action in self._two_way if action.inverse is not None)
        return [
            Clause(MSGS, need, None if self._replies else sources),
            Clause(op_mask(Op.HMSG), max(need, Need.HEADERS)),
            Clause(op_mask(Op.ERR), Need.LINE),
        ]

    # -- subjects

    def publish(self, subject: bytes, draws: Draws) -> bytes | None:
        """Return where a publish goes: None for where it says, `b""` for nowhere (a lost share)."""
        found = self._known(subject)
        if found is None or isinstance(found, bytes):
            return found
        assert isinstance(found.action, Rewriting)
        return found.action.mapping.apply(subject, lambda limit: int(draws(found) * limit))

    def _known(self, subject: bytes) -> Rule | bytes | None:
        """Return `_destination`, remembered."""
        if subject not in self._publish:
            _remember(self._publish, subject, self._destination(subject))
        return self._publish[subject]

    def deciding(self, subject: bytes) -> Rule | None:
        """Return the rule that decides for the subject of a publish."""
        return next((rule for rule, action in self._rules if action.covers(subject)), None)

    def _destination(self, subject: bytes) -> Rule | bytes | None:
        """Return the destination where it is certain, else the rule that must throw dice."""
        rule = self.deciding(subject)
        if rule is None:
            return None
        assert isinstance(rule.action, Rewriting)
        only = rule.action.mapping.only
        if only is None or b"random" in only.destination.lower():
            return rule
        return only.apply(subject)

    def subscribe(self, subject: bytes) -> bytes | Refused | None:
        """Return what a SUB becomes: None for itself."""
        if subject not in self._subscribe:
            _remember(self._subscribe, subject, self._subscription(subject))
        return self._subscribe[subject]

    def _subscription(self, subject: bytes) -> bytes | Refused | None:
        wild = has_wildcard(subject)
        for rule, action in self._two_way:
            transform = action.transform
            if transform is None or action.spares(subject):
                continue
            if not wild and transform.matches(subject):
                return transform.apply(subject)
            whole = transform.apply_pattern(subject) if wild else None
            if whole is not None:
                return whole
            if wild and not action.partial_pass and collide(transform.source, subject):
                return Refused(rule)
        return None

    def reply(self, subject: bytes) -> bytes:
        """Return the server's form of a subject that someone subscribes to (a reply, a filter)."""
        found = self.subscribe(subject) if subject else None
        return found if isinstance(found, bytes) else subject

    def original(self, subject: bytes, subscribed: bytes = b"") -> bytes:
        """Return the client's form of a subject.

        subscribed: the subject of the rewritten SUB that it came by, `b""` for none.
        """
        key = (subscribed, subject)
        found = self._back.get(key)
        if found is None:
            found = self._undo(subject, subscribed)
            _remember(self._back, key, found)
        return found

    def _undo(self, subject: bytes, subscribed: bytes) -> bytes:
        if not subject or subject.startswith(STATEFUL):
            return subject
        candidates = self._two_way
        if subscribed:
            mine = [item for item in candidates if item[1].transform is not None
                    and item[1].transform.apply_pattern(subscribed) is not None]  # fmt: skip
            candidates = mine[:1] + candidates
        for _, action in candidates:
            found = action.inverse.apply_pattern(subject) if action.inverse is not None else None
            if found is not None and not action.spares(found):
                return found
        return subject

    def selects(self, selector: Selector, subject: bytes) -> bool:
        """Tell whether a `side = "server"` selector is about the server's subject."""
        key = (selector, subject)
        found = self._sides.get(key)
        if found is None:
            found = not any(compile_pattern(pattern)(subject) for pattern in selector.unless) and (
                selector.subjects is None or any(compile_pattern(p)(subject) for p in selector.subjects)
            )
            _remember(self._sides, key, found)
        return found

    def answers(self, subject: bytes) -> bool:
        """Tell whether the answer to a PUB of this subject is an API body that must be translated."""
        return self._jetstream and subject.startswith(b"$JS.") and is_api(subject)

    # -- frames

    def quick(self, frame: Frame) -> Decision | None:
        """Return the decision on a plain PUB whose destination is known, None to ask at length."""
        if frame.op != Op.PUB or frame.reply:
            return None
        head = self._heads.get(frame.subject)
        if head is None:
            to = self._known(frame.subject)
            if not isinstance(to, bytes) or not to or self.answers(frame.subject):
                return None
            head = b"PUB " + to
            _remember(self._heads, frame.subject, head)
        rest = frame.buffer[frame.line_end : frame.end]
        return Decision((b"%b %d\r\n%b" % (head, frame.size, rest),), cause="rewrite")

    def quick_back(self, frame: Frame, view: View) -> Decision | None:
        """Return the decision on a plain MSG that is rewritten back, None to ask at length."""
        if frame.op != Op.MSG or frame.reply:
            return None
        sub = view.subs.get(frame.sid)
        by = sub.subject if sub is not None and sub.upstream != sub.subject else b""
        told = self.original(frame.subject, by)
        if told == frame.subject:
            return None
        rest = frame.buffer[frame.line_end : frame.end]
        return Decision((b"MSG %b %b %d\r\n%b" % (told, frame.sid, frame.size, rest),), cause="rewrite")

    def forward(self, frame: Frame, draft: Draft | None, view: View, draws: Draws) -> Decision | None:
        """Return the decision on a c2s frame that the other rules let go on."""
        current = frame if draft is None else draft.frame
        if current.op == Op.SUB:
            return self._forward_sub(current, draft)
        if not PUBS >> current.op & 1:
            return draft.decision() if draft is not None else None
        raw = self._publication(current, draws)
        if raw is None and draft is None:
            return None
        if draft is None:
            return Decision(out=(raw,) if raw else (), ok=not raw, cause="rewrite")
        decision = draft.decision()
        if raw is not None:
            rest = tuple(self._again(extra, draws) for extra in draft.extra)
            decision.out = (raw, *rest) * draft.copies if raw else ()
            decision.ok = not raw
        return decision

    def _again(self, raw: bytes, draws: Draws) -> bytes:
        found = self._publication(next(parse_frames(raw, C2S)), draws)
        return raw if found is None else found

    def _publication(self, frame: Frame, draws: Draws) -> bytes | None:
        """Return the bytes that go on for a PUB, None for its own, `b""` for none."""
        subject = self.publish(frame.subject, draws)
        if subject == b"":
            return b""
        reply = self.reply(frame.reply) if self._replies else frame.reply
        if self.answers(frame.subject):
            return self._api_call(frame, subject or frame.subject, reply)
        if subject is None and reply == frame.reply:
            return None
        return encode.with_line(frame, subject=subject or frame.subject, reply=reply)

    def _api_call(self, frame: Frame, subject: bytes, reply: bytes) -> bytes:
        subject = translate_api_subject(subject, self.reply)
        moved = relined(frame, subject, reply)
        if frame.missing:
            return moved.raw
        body = translate_body(frame.body, self.reply)
        return moved.raw if body == frame.body else encode.with_payload(moved, body=body)

    def _forward_sub(self, frame: Frame, draft: Draft | None) -> Decision | None:
        found = self.subscribe(frame.subject)
        if found is None:
            return draft.decision() if draft is not None else None
        decision = Decision() if draft is None else draft.decision()
        decision.cause = "rewrite"
        if isinstance(found, Refused):
            decision.out = ()
            decision.answer += errors.err_frame(errors.subscribe_denied(frame.subject, frame.queue))
            decision.cause = found.by.name
            return decision
        raw = encode.with_line(frame, subject=found)
        decision.out = (raw,) * (draft.copies if draft is not None else 1)
        decision.upstream_subject = found
        return decision

    def back(self, frame: Frame, view: View, history: History) -> Frame:
        """Return an s2c frame in the client's subjects; the same object where nothing changes."""
        if frame.op == Op.ERR:
            return self._error_back(frame)
        if not MSGS >> frame.op & 1:
            return frame
        sub = view.subs.get(frame.sid)
        by = sub.subject if sub is not None and sub.upstream != sub.subject else b""
        subject = self.original(frame.subject, by)
        reply = self.original(frame.reply) if self._replies and frame.reply else frame.reply
        result = frame
        if subject != frame.subject or reply != frame.reply:
            result = relined(frame, subject, reply)
        if frame.missing:
            return result
        return self._payload_back(result, history)

    def _payload_back(self, frame: Frame, history: History) -> Frame:
        headers, body = frame.headers, frame.body
        if headers and (named := get_header(headers, b"Nats-Subject")) is not None:
            told = self.original(named)
            headers = headers if told == named else set_header(headers, b"Nats-Subject", told)
        if self._jetstream and any(isinstance(waiter, Rewriter) for waiter in history.waiting(frame.subject)):
            body = translate_body(body, self.original)
        if headers == frame.headers and body == frame.body:
            return frame
        return next(parse_frames(encode.with_payload(frame, headers=headers, body=body), S2C))

    def _error_back(self, frame: Frame) -> Frame:
        text = errors.err_text(frame.args)
        named = errors.classify(text).subject
        told = self.original(named) if named else named
        if told == named:
            return frame
        raw = errors.err_frame(text.replace(errors.quote(named), errors.quote(told), 1))
        return next(parse_frames(raw, S2C))


def relined(frame: Frame, subject: bytes, reply: bytes) -> Frame:
    """Return a message frame with another subject and reply, all else (a missing part included) as it was."""
    if subject == frame.subject and reply == frame.reply:
        return frame
    line = encode.message_line(frame.op, subject, frame.sid, reply, frame.header_size, frame.size)
    buffer = line + frame.buffer[frame.line_end : frame.end]
    return frame._replace(
        buffer=buffer, start=0, end=len(buffer), line_end=len(line), subject=subject, reply=reply
    )


def _remember(cache: dict[K, V], key: K, value: V) -> None:
    if len(cache) >= CACHE:
        cache.clear()
    cache[key] = value
