"""Rewriting: the server sees other subjects than the client, and neither notices.

This module is about subjects; `rewriter.py` applies it to frames.

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
7. Rules that change at run time take open subscriptions along: they are made anew under the server's new
   subject, or end with a permissions -ERR where that cannot be (`session/resubscribe.py`).
8. Rewriting is not isolation: inboxes and the names of streams are shared by all clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from natsproxy.protocol.mapping import Mapping, SubjectTransform
from natsproxy.protocol.subjects import collide, compile_pattern, has_empty_token, has_wildcard
from natsproxy.rules.bounded_cache import remember
from natsproxy.rules.model.roles import MSGS, PUBS
from natsproxy.rules.model.rule import Action, Rule, Stage
from natsproxy.rules.model.selector import Selector
from natsproxy.wire.frames import Need
from natsproxy.wire.interest import Clause
from natsproxy.wire.ops import C2S, Direction, Op, op_mask

RESERVED: Final = frozenset({b"_INBOX", b"$JS", b"$SYS", b"$SRV"})
STATEFUL: Final = (b"$JS.ACK.", b"$JS.FC.", b"_R_.", b"_GR_.")
Draw = Callable[[Rule], float]


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
        only = mapping.only
        self.certain = None if only is None or b"random" in only.destination.lower() else only
        self.transform: SubjectTransform | None = mapping.only if two_way else None
        self.inverse = self.transform.inverse() if self.transform is not None else None
        self.first = mapping.source.partition(b".")[0]

    def clauses(self, selector: Selector) -> tuple[tuple[Direction, Clause], ...]:
        """Return nothing: the rewriter asks for all rewrite rules together."""
        return ()

    def spares(self, subject: bytes) -> bool:
        """Tell whether the rule leaves a subject of the client alone whatever its source."""
        first = subject.partition(b".")[0]
        if first in RESERVED and first != self.first:
            return True
        if subject.startswith(STATEFUL):
            return True
        return bool(self.keep) and any(match(subject) for match in self.keep)

    def covers(self, subject: bytes) -> bool:
        """Tell whether the rule decides for the subject of a publish."""
        return self.mapping.choices[0][0].matches(subject) and not self.spares(subject)


class Moved(NamedTuple):
    """A subject in its other form, and the rule that moved it there."""

    subject: bytes
    by: Rule


class Refused(NamedTuple):
    """The answer to a SUB that cannot be rewritten whole; `by` is the rule."""

    by: Rule


class SubjectRewriter:
    """All rewrite rules of a plan, as one function each way.  Immutable but for its caches."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = [(rule, rule.action) for rule in rules if isinstance(rule.action, Rewriting)]
        self._two_way = [(rule, action) for rule, action in self._rules if action.inverse is not None]
        self.jetstream = any(action.jetstream for _, action in self._rules)
        self.replies = any(action.replies for _, action in self._rules)
        self._publish: dict[bytes, Rule | Moved | None] = {}
        self._subscribe: dict[bytes, Moved | Refused | None] = {}
        self._back: dict[tuple[bytes, bytes], Moved | None] = {}
        self._sides: dict[tuple[Selector, bytes], bool] = {}
        # First tokens tell most inboxes and acks apart from what moves, without a place in a cache.
        named = {action.first for _, action in self._rules}
        self._spared = (*STATEFUL, *(token + b"." for token in RESERVED - named))
        self._moved_from = tuple(
            pattern.partition(b".")[0].partition(b"*")[0].partition(b">")[0]
            for pattern in self._inverse_sources()
        )

    def _inverse_sources(self) -> list[bytes]:
        return [action.inverse.source for _, action in self._two_way if action.inverse is not None]

    def clauses(self, direction: Direction, need: Need) -> list[Clause]:
        """Return what the scanner must look out for."""
        if direction == C2S:
            everything = None if self.replies else tuple(action.mapping.source for _, action in self._rules)
            found = [Clause(PUBS, Need.LINE, everything)]
            if self._two_way:
                found.append(Clause(op_mask(Op.SUB), Need.LINE))
                found.append(Clause(op_mask(Op.HPUB), Need.HEADERS))
            if self.jetstream:
                found.append(Clause(PUBS, Need.PAYLOAD, (b"$JS.API.>", b"$JS.*.API.>")))
            return found
        if not self._two_way:
            return []
        return [
            Clause(MSGS, need, None if self.replies else tuple(self._inverse_sources())),
            Clause(op_mask(Op.HMSG), max(need, Need.HEADERS)),
            Clause(op_mask(Op.ERR), Need.LINE),
        ]

    # -- to the server

    def publish(self, subject: bytes, draws: Draw) -> Moved | None:
        """Return where a publish goes: None for where it says, to `b""` for nowhere (a lost share)."""
        found = self.destination(subject)
        if found is None or isinstance(found, Moved):
            return found
        assert isinstance(found.action, Rewriting)
        to = found.action.mapping.apply(subject, lambda limit: int(draws(found) * limit))
        return None if to is None else Moved(to, found)

    def destination(self, subject: bytes) -> Rule | Moved | None:
        """Return the destination of a publish where it is certain, else the rule that must throw dice."""
        if subject in self._publish:
            return self._publish[subject]
        return remember(self._publish, subject, self._destination(subject), len(subject))

    def deciding(self, subject: bytes) -> Rule | None:
        """Return the rule that decides for the subject of a publish."""
        return next((rule for rule, action in self._rules if action.covers(subject)), None)

    def _destination(self, subject: bytes) -> Rule | Moved | None:
        for rule, action in self._rules:
            if action.spares(subject):
                continue
            if action.certain is None:
                if action.covers(subject):
                    return rule
                continue
            to = action.certain.apply(subject)
            if to is not None:
                return Moved(to, rule)
        return None

    def subscribe(self, subject: bytes) -> Moved | Refused | None:
        """Return what a SUB becomes: None for itself."""
        if subject.startswith(self._spared):
            return None
        if subject in self._subscribe:
            return self._subscribe[subject]
        return remember(self._subscribe, subject, self._subscription(subject), len(subject))

    def _subscription(self, subject: bytes) -> Moved | Refused | None:
        wild = has_wildcard(subject)
        for rule, action in self._two_way:
            transform = action.transform
            if transform is None or action.spares(subject):
                continue
            if wild:
                whole = transform.apply_pattern(subject)
            else:
                whole = transform.apply(subject) if transform.matches(subject) else None
            if whole is not None:
                return Moved(whole, rule)
            if wild and not action.partial_pass and collide(transform.source, subject):
                return Refused(rule)
        return None

    def reply(self, subject: bytes) -> bytes:
        """Return the server's form of a subject that someone subscribes to (a reply, a filter)."""
        found = self.subscribe(subject) if subject else None
        return found.subject if isinstance(found, Moved) else subject

    # -- to the client

    def original(self, subject: bytes, subscribed: bytes = b"") -> bytes:
        """Return the client's form of a subject; see `undone`."""
        found = self.undone(subject, subscribed)
        return subject if found is None else found.subject

    def undone(self, subject: bytes, subscribed: bytes = b"") -> Moved | None:
        """Return the client's form of a subject, None where it is the same.

        subscribed: the subject of the rewritten SUB that it came by, `b""` for none.
        """
        if not subject.startswith(self._moved_from):
            return None
        key = (subscribed, subject)
        if key in self._back:
            return self._back[key]
        return remember(self._back, key, self._undo(subject, subscribed), len(subject) + len(subscribed))

    def _undo(self, subject: bytes, subscribed: bytes) -> Moved | None:
        if has_empty_token(subject) or subject.startswith(STATEFUL):
            return None  # what is never mapped there is not mapped back
        candidates = self._two_way
        if subscribed:
            mine = [
                item
                for item in candidates
                if item[1].transform is not None and item[1].transform.apply_pattern(subscribed) is not None
            ]
            candidates = mine[:1] + candidates
        for rule, action in candidates:
            found = action.inverse.apply_pattern(subject) if action.inverse is not None else None
            if found is not None and not action.spares(found):
                return Moved(found, rule) if found != subject else None
        return None

    def selects(self, selector: Selector, subject: bytes) -> bool:
        """Tell whether a `side = "server"` selector is about the server's subject."""
        key = (selector, subject)
        found = self._sides.get(key)
        if found is None:
            found = not any(compile_pattern(pattern)(subject) for pattern in selector.unless) and (
                selector.subjects is None or any(compile_pattern(p)(subject) for p in selector.subjects)
            )
            remember(self._sides, key, found, len(subject))
        return found
