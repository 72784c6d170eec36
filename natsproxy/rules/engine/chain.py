"""The chain: the loaded rules of a proxy, shared by all its connections.

Theory
1. A c2s frame passes faults, permissions, limits, rewriting; an s2c frame is rewritten back first, then
   passes permissions, then faults.  Inside a stage the order is that of the file.
2. Every selector looks at the frame as received (s2c: after rewriting back) and every gate counts that,
   whatever other rules did.  Only then do actions run, in order.
3. Verdicts compose: replacements chain (each sees the one before), delays add up, copies multiply, injected
   frames add up.  The first drop, denial, answer or close ends it; later rules still count.
4. A chain is immutable.  A new one takes over the rules of the old one that have the same name and content,
   and with them their counts; their states move over when a connection is bound again.  A rule of the same
   name and other content may go on with the counts of the one that it replaces (`Action.succeed`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from natsproxy.addresses import mask_urls
from natsproxy.errors import ConfigError
from natsproxy.protocol.jetstream import api_verb_at
from natsproxy.protocol.subjects import TAIL, collide, is_subset
from natsproxy.rules.engine.rule_engine import RuleEngine
from natsproxy.rules.engine.rule_index import RuleIndex
from natsproxy.rules.engine.subscription_check import LiveSubscriptions
from natsproxy.rules.file.serialize import to_toml
from natsproxy.rules.interface import ConnectionRules, SubscriptionCheck, View
from natsproxy.rules.model.rule import Rule
from natsproxy.rules.model.selector import ANYBODY
from natsproxy.rules.rewriting.frames import FrameRewriter
from natsproxy.rules.rewriting.subjects import Rewriting
from natsproxy.units import parse_version

MAX_INDEXES: Final = 256
"""Sets of applying rules whose compiled form a chain keeps."""
ACCOUNT_IN_INFO: Final = (2, 12, 0)
"""The first nats-server version that names a client's account in INFO."""


class RuleChain:
    """The loaded rules.  seed: of all random numbers.  previous: the chain that this one replaces."""

    def __init__(
        self, rules: Iterable[Rule] = (), *, seed: int = 0, previous: RuleChain | None = None
    ) -> None:
        # The old object, not an equal one: it holds the count over all connections.
        known = {(rule.name, rule.content): rule for rule in previous.rules} if previous is not None else {}
        self.rules: tuple[Rule, ...] = tuple(known.get((rule.name, rule.content), rule) for rule in rules)
        self.seed = seed
        self._begun = False
        self._replaced = {} if previous is None else {rule.name: rule.action for rule in previous.rules}
        self.guards = any(rule.action.guards for rule in self.rules)
        peers = [rule.selector.peer for rule in self.rules]
        self._general = [place for place, peer in enumerate(peers) if peer == ANYBODY]
        self._selective = [place for place, peer in enumerate(peers) if peer != ANYBODY]
        self._by_account = [rule for rule in self.rules if rule.selector.peer.account is not None]
        self._indexes: dict[tuple[int, ...], RuleIndex] = {}
        self._text: str | None = None
        refuse_hidden(self.rules)
        refuse_second(self.rules)
        refuse_ways_around(self.rules)

    @property
    def text(self) -> str:
        """The rules as a rules file, for captures, passwords in URLs hidden; empty where there are none."""
        if self._text is None:
            self._text = mask_urls(to_toml(rule.table for rule in self.rules)) if self.rules else ""
        return self._text

    def begin(self, now: int, unix: Callable[[int], int] | None = None) -> None:
        """Come into force: rules that are new count their time from here; unix: see `Hours`."""
        self._begun = True
        for rule in self.rules:
            if unix is not None and rule.gate.hours is not None:
                rule.gate.hours.unix = unix
            if unix is not None:
                rule.action.set_clock(unix)
            if rule.shared.since < 0:
                rule.shared.since = now
                if (former := self._replaced.get(rule.name)) is not None:
                    rule.action.succeed(former)
        self._replaced = {}

    def bind(
        self, view: View, previous: ConnectionRules | None, now: int, check: SubscriptionCheck | None = None
    ) -> RuleEngine:
        """Return the rules that apply to a connection.

        Where nobody has called `begin`, the rules count their time from the first connection.  Raises
        ConfigError when a rule selects by account and the server is too old to name it.
        """
        self._refuse_unknown_account(view)
        if not self._begun:
            self.begin(now)
        before, index = previous if isinstance(previous, RuleEngine) else None, self._index_for(view)
        if before is not None and before.index is index:
            before.rebind()
            return before
        known = None if before is None else before.index
        if not isinstance(check, LiveSubscriptions) or not check.holds(index, known):
            check = LiveSubscriptions(index, known, view)
        return RuleEngine(self.seed, index, view, before, now, check)

    def check(self, view: View, previous: ConnectionRules) -> LiveSubscriptions | None:
        """Return the check of live subscriptions to run before `bind` at a swap; None if none is needed."""
        self._refuse_unknown_account(view)
        before, index = previous.index if isinstance(previous, RuleEngine) else None, self._index_for(view)
        return None if before is index else LiveSubscriptions(index, before, view)

    def compile(self, views: Iterable[View] = ()) -> None:
        """Do ahead of time the work of binding such connections, and of recording the rules."""
        self.index(())
        if self._selective:
            for view in views:
                self._index_for(view)
        _ = self.text

    def _index_for(self, view: View) -> RuleIndex:
        return self.index(tuple(p for p in self._selective if self.rules[p].selector.peer.admits(view)))

    def index(self, selected: tuple[int, ...]) -> RuleIndex:
        """Return the index of the rules for all clients and of those at `selected`, the places of others."""
        index = self._indexes.get(selected)
        if index is None:
            # Bounded: rules that select by client name make an index for each name, and clients choose names.
            if len(self._indexes) >= MAX_INDEXES:
                self._indexes.clear()
            rules = tuple(self.rules[place] for place in sorted([*self._general, *selected]))
            rewriting = [rule for rule in rules if isinstance(rule.action, Rewriting)]
            rewriter = FrameRewriter(rewriting) if rewriting else None
            index = self._indexes[selected] = RuleIndex(rules, rewriter)
        return index

    def _refuse_unknown_account(self, view: View) -> None:
        version = view.info.version
        if not (version and self._by_account) or parse_version(version) >= ACCOUNT_IN_INFO:
            return
        rule = self._by_account[0]
        raise ConfigError(
            f"{rule.where}: rule {rule.name!r} selects by account, which nats-server {version} does not tell "
            f"its clients (2.12 is the first that does)"
        )


def refuse_second(rules: tuple[Rule, ...]) -> None:
    """Raise ConfigError for a second rule of a kind of which there can be one only."""
    first: dict[str, Rule] = {}
    for rule in rules:
        if rule.action.alone and (other := first.setdefault(rule.kind, rule)) is not rule:
            raise ConfigError(
                f"{rule.where}: rule {rule.name!r} is a second one of kind {rule.kind!r}, beside "
                f"{other.name!r}: it would undo what that does; give one rule several subjects"
            )


def refuse_hidden(rules: tuple[Rule, ...]) -> None:
    """Raise ConfigError for a rewrite that can never act since one before it covers its whole source."""
    rewrites = [(rule, rule.action) for rule in rules if isinstance(rule.action, Rewriting)]
    for place, (rule, action) in enumerate(rewrites):
        source = action.mapping.source
        for former, other in rewrites[:place]:
            same = former.selector.peer in (ANYBODY, rule.selector.peer)
            if same and is_subset(source, other.mapping.source) and not other.excludes(source):
                raise ConfigError(
                    f"{rule.where}: rule {rule.name!r} can never act, since {former.name!r} before it covers "
                    f"its source"
                )


def refuse_ways_around(rules: tuple[Rule, ...]) -> None:
    """Raise ConfigError for a rewrite that leads to calls of the JetStream API that a rule denies.

    The denial judges the client's subject, which would not be an API subject then.
    """
    denials = [rule for rule in rules if rule.action.guards and "api" in rule.table]
    for rule in rules if denials else ():
        if not isinstance(rule.action, Rewriting) or _is_api_prefix(rule.action.mapping.source):
            continue
        reached = [transform.reach for transform, _ in rule.action.mapping.choices]
        for denial in denials:
            if any(collide(one, call) for one in reached for call in denial.selector.subjects or ()):
                raise ConfigError(
                    f"{rule.where}: rule {rule.name!r} leads to calls of the JetStream API that "
                    f"{denial.name!r} denies, and would be a way around it: deny them by 'subject', as the "
                    f"client writes them"
                )


def _is_api_prefix(source: bytes) -> bool:
    """Tell whether a pattern covers all API calls of a domain: mapped as a whole, they stay API calls."""
    tokens = source.split(b".")
    at = api_verb_at(tokens)
    return at is not None and tokens[at:] == [TAIL]
