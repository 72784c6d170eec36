"""Rewriting of subjects: the server sees other subjects than the client, and neither notices.

`frames.py` applies this module to frames.

Theory
1. Rules are tried in file order; the first whose source covers a subject decides, once (no chaining).  The
   grammar is nats-server's (`protocol/mapping.py`); `prefix = "p"` is the mapping of `>` to `p.>`.
2. Two-way rules (the default) also rewrite SUBs, reply subjects, delivered messages, `-ERR` texts and the
   `Nats-Subject` of a 503; a two-way rule that has no inverse is refused.  `two_way = false` is
   the server's own behaviour: publishes only.
3. A SUB that a mapping covers only in part would miss messages.  It is refused as a permission violation,
   unless `partial = "pass"`.
4. `_INBOX`, `$JS`, `$SYS` and `$SRV` are left alone unless a source begins with that very token; `$JS.ACK`,
   `$JS.FC`, `_R_` and `_GR_` carry the server's state and are always left alone.
5. A MSG is translated by its sid where that SUB was rewritten, else by the inverse of the first mapping that
   has one for it (JetStream and inboxes deliver subjects that nobody subscribed to).
6. With `jetstream = true`, subjects in the JetStream API are translated too (`jetstream_api.py`).
7. Rules that change at run time apply to open subscriptions: each is resubscribed under its new
   subject on the server, or ends with a permissions -ERR where no subject fits (`session/subscriptions.py`).
8. Rewriting is not isolation: inboxes and the names of streams are shared by all clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from natsproxy.protocol.mapping import Mapping, SubjectTransform
from natsproxy.protocol.subjects import collide, compile_pattern, has_empty_token, has_wildcard
from natsproxy.rules.bounded_cache import store
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
    """The settings of one rewrite rule.  certain: its only mapping, None where the choice is random."""

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
        # `{{random(n)}}` draws for each message, so its result cannot be cached.
        self.certain = None if only is None or b"random" in only.destination.lower() else only
        self.transform: SubjectTransform | None = mapping.only if two_way else None
        self.inverse = self.transform.inverse() if self.transform is not None else None
        self.first = mapping.source.partition(b".")[0]
        self._reserved = RESERVED - {self.first}
        self._excluded = (*STATEFUL, *(token + b"." for token in self._reserved))

    def clauses(self, selector: Selector) -> tuple[tuple[Direction, Clause], ...]:
        """Return nothing: the rewriter makes the clauses of all rewrite rules together."""
        return ()

    def excludes(self, subject: bytes) -> bool:
        """Tell whether the rule leaves a client's subject alone although its source covers it."""
        if subject.startswith(self._excluded) or subject in self._reserved:
            return True
        return bool(self.keep) and any(match(subject) for match in self.keep)

    def covers(self, subject: bytes) -> bool:
        """Tell whether the rule decides for the subject of a publish."""
        return self.mapping.choices[0][0].matches(subject) and not self.excludes(subject)


class Rewritten(NamedTuple):
    """A subject in its other form, and the rule that rewrote it."""

    subject: bytes
    rule: Rule


class Refused(NamedTuple):
    """The result for a SUB that the rule covers in part only, and so would miss messages."""

    rule: Rule


class SubjectRewriter:
    """All rewrite rules of an index as one function per direction.  Immutable but for its caches.

    excluded_prefixes: those of subjects that are never rewritten for the server.  restored_prefixes: those of
    the only subjects that are ever rewritten for the client.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = [(rule, rule.action) for rule in rules if isinstance(rule.action, Rewriting)]
        self._two_way = [(rule, action) for rule, action in self._rules if action.inverse is not None]
        self.jetstream = any(action.jetstream for _, action in self._rules)
        self.replies = any(action.replies for _, action in self._rules)
        self._destinations: dict[bytes, Rule | Rewritten | None] = {}
        self._subscriptions: dict[bytes, Rewritten | Refused | None] = {}
        self._undone: dict[tuple[bytes, bytes], Rewritten | None] = {}
        self._selections: dict[tuple[Selector, bytes], bool] = {}
        # Most inboxes and acks are told by their first token, without an entry in a cache.
        named = {action.first for _, action in self._rules}
        self.excluded_prefixes = (*STATEFUL, *(token + b"." for token in RESERVED - named))
        self.restored_prefixes = tuple(
            pattern.partition(b".")[0].partition(b"*")[0].partition(b">")[0]
            for pattern in self._inverse_sources()
        )

    def _inverse_sources(self) -> list[bytes]:
        return [action.inverse.source for _, action in self._two_way if action.inverse is not None]

    def clauses(self, direction: Direction, need: Need) -> list[Clause]:
        """Return the clauses of a direction for the scanner.  need: that of the other rules on messages."""
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

    def publish(self, subject: bytes, draw: Draw) -> Rewritten | None:
        """Return the server's subject of a publish: None if unchanged, `b""` if dropped (a lost share)."""
        found = self.destination(subject)
        if found is None or isinstance(found, Rewritten):
            return found
        assert isinstance(found.action, Rewriting)
        to = found.action.mapping.apply(subject, lambda limit: int(draw(found) * limit))
        return None if to is None else Rewritten(to, found)

    def destination(self, subject: bytes) -> Rule | Rewritten | None:
        """Return the certain destination of a publish, or the rule whose choice is random."""
        if subject in self._destinations:
            return self._destinations[subject]
        return store(self._destinations, subject, self._find_destination(subject), len(subject))

    def _find_destination(self, subject: bytes) -> Rule | Rewritten | None:
        for rule, action in self._rules:
            if action.excludes(subject):
                continue
            if action.certain is None:
                if action.covers(subject):
                    return rule
                continue
            to = action.certain.apply(subject)
            if to is not None:
                return Rewritten(to, rule)
        return None

    def subscribe(self, subject: bytes) -> Rewritten | Refused | None:
        """Return the server's subject of a SUB, None if unchanged."""
        if subject.startswith(self.excluded_prefixes):
            return None
        if subject in self._subscriptions:
            return self._subscriptions[subject]
        return store(self._subscriptions, subject, self._find_subscription(subject), len(subject))

    def _find_subscription(self, subject: bytes) -> Rewritten | Refused | None:
        wild = has_wildcard(subject)
        for rule, action in self._two_way:
            transform = action.transform
            if transform is None or action.excludes(subject):
                continue
            if wild:
                whole = transform.apply_pattern(subject)
            else:
                whole = transform.apply(subject) if transform.matches(subject) else None
            if whole is not None:
                return Rewritten(whole, rule)
            if wild and not action.partial_pass and collide(transform.source, subject):
                return Refused(rule)
        return None

    def reply(self, subject: bytes) -> bytes:
        """Return the server's form of a subject that someone subscribes to (a reply, a filter)."""
        found = self.subscribe(subject) if subject else None
        return found.subject if isinstance(found, Rewritten) else subject

    # -- to the client

    def undo(self, subject: bytes, subscribed: bytes = b"") -> Rewritten | None:
        """Return the client's form of a subject, None if unchanged.

        subscribed: the subject of the rewritten SUB that it came by, `b""` for none.
        """
        if not subject.startswith(self.restored_prefixes):
            return None
        key = (subscribed, subject)
        if key in self._undone:
            return self._undone[key]
        return store(self._undone, key, self._find_undo(subject, subscribed), len(subject) + len(subscribed))

    def _find_undo(self, subject: bytes, subscribed: bytes) -> Rewritten | None:
        if has_empty_token(subject) or subject.startswith(STATEFUL):
            return None  # subjects that are never mapped on the way out
        candidates = self._two_way
        if subscribed:
            own = [
                item
                for item in candidates
                if item[1].transform is not None and item[1].transform.apply_pattern(subscribed) is not None
            ]
            # The mapping of the SUB first: several mappings may have an inverse for this subject.
            candidates = own[:1] + candidates
        for rule, action in candidates:
            found = action.inverse.apply_pattern(subject) if action.inverse is not None else None
            if found is not None and not action.excludes(found):
                return Rewritten(found, rule) if found != subject else None
        return None

    def selects(self, selector: Selector, subject: bytes) -> bool:
        """Tell whether a `side = "server"` selector is about the server's subject."""
        key = (selector, subject)
        found = self._selections.get(key)
        if found is None:
            found = not any(compile_pattern(pattern)(subject) for pattern in selector.unless) and (
                selector.subjects is None or any(compile_pattern(p)(subject) for p in selector.subjects)
            )
            store(self._selections, key, found, len(subject))
        return found
