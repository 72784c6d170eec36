"""The current rules of a proxy: those of the rules file, changes made on top, and temporary faults.

1. The *base* is what a rules file (or the code that made the proxy) says.  `load` brings a new one.
2. A rule that is the same in the file as at the last `load` keeps later changes: changed, disabled, removed,
   moved.  A rule that the file adds, changes or drops is as the file says; changes on top of it are lost, and
   `load` names it.  Rules that were added on top stay, after those of the file.
3. A disabled rule keeps its count over all connections; counts of single connections begin anew.
4. A temporary fault is a rule like any other until it expires; then it is removed.
5. Each change is atomic, and has a revision of its own: an edit of a list that somebody else has changed
   meanwhile is refused (`StaleRules`).
6. Thousands of rules take seconds to read and to compile: `load_in_thread` does that beside the traffic, and
   installs the outcome at once.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from types import MappingProxyType
from typing import NamedTuple

import trio

from natsproxy.errors import ConfigError
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.model.rule import Rule


class StaleRules(ConfigError):
    """The rules have changed since they were read."""


@dataclass(frozen=True, slots=True)
class RuleEntry:
    """A rule in the book.  ends: the time at which it is removed, in seconds of trio's clock; None: never."""

    rule: Rule
    enabled: bool = True
    ends: float | None = None


class Loaded(NamedTuple):
    """The outcome of a load: the names of rules that are gone, and of changes on top that the file undid."""

    gone: tuple[str, ...]
    undone: tuple[str, ...]


class _Plan(NamedTuple):
    """A load before it happens: the rules of the file, all entries, and what becomes of others."""

    base: tuple[Rule, ...]
    entries: dict[str, RuleEntry]
    loaded: Loaded


class RuleBook:
    """The rules of one proxy.  Its calls are those of one thread, the proxy's.

    compile: makes a chain of rules, in any thread, or raises ConfigError.  install: puts it in force, or
    raises ConfigError and changes nothing.  ended: called with the name of a fault that has expired.
    base: the rules of the file, and entries the current ones, by their names, in order.
    """

    def __init__(
        self,
        compile: Callable[[tuple[Rule, ...]], RuleChain],
        install: Callable[[RuleChain], None],
        ended: Callable[[str], None],
        base: Iterable[Rule] = (),
    ) -> None:
        self.base: Mapping[str, Rule] = {rule.name: rule for rule in base}
        self._compile = compile
        self._install = install
        self._ended = ended
        self._entries = {name: RuleEntry(rule) for name, rule in self.base.items()}
        self._life = secrets.token_hex(4)  # revisions of another process do not match
        self._revision = 0
        self._changed = trio.Event()

    @property
    def entries(self) -> Mapping[str, RuleEntry]:
        """The rules by their names, in the order in which they act."""
        return MappingProxyType(self._entries)

    @property
    def revision(self) -> str:
        """The revision: another one after each change."""
        return f"{self._life}-{self._revision}"

    def origin(self, entry: RuleEntry) -> str:
        """Return "file", "changed" (there is one of that name in the file) or "added"."""
        known = self.base.get(entry.rule.name)
        if known is None:
            return "added"
        return "file" if known is entry.rule or known.content == entry.rule.content else "changed"

    @property
    def removed(self) -> list[str]:
        """The names of rules that stand in the file and were removed since."""
        return [name for name in self.base if name not in self._entries]

    # -- the file

    def load(self, rules: Iterable[Rule]) -> Loaded:
        """Load the rules of the file again (see 2 above).  Raises ConfigError, and changes nothing."""
        plan = self._plan(tuple(rules))
        self._commit(plan.entries)
        self.base = {rule.name: rule for rule in plan.base}
        return plan.loaded

    async def load_in_thread(self, read: Callable[[], tuple[Rule, ...] | None]) -> Loaded:
        """Do the same with the rules that `read` returns, which a thread calls; None: nothing changes.

        Raises ConfigError, and changes nothing.
        """
        rules = await trio.to_thread.run_sync(read, abandon_on_cancel=True)
        if rules is None:
            return Loaded((), ())
        while True:
            revision = self._revision
            plan, chain = await trio.to_thread.run_sync(self._prepare, rules, abandon_on_cancel=True)
            if revision == self._revision:  # else somebody has changed the rules meanwhile
                break
        self._commit(plan.entries, chain)
        self.base = {rule.name: rule for rule in plan.base}
        return plan.loaded

    def _prepare(self, rules: tuple[Rule, ...]) -> tuple[_Plan, RuleChain]:
        plan = self._plan(rules)
        return plan, self._compile(_enabled(self._with_known(plan.entries)))

    def _plan(self, rules: tuple[Rule, ...]) -> _Plan:
        """Return the outcome of a load on the current rules; it changes nothing."""
        before = {name: rule.content for name, rule in self.base.items()}
        after = {rule.name: rule.content for rule in rules}
        new = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        entries = dict(self._entries) if list(before) == list(after) else {}  # else in the file's order
        for rule in rules:
            if rule.name in new:
                entries[rule.name] = RuleEntry(rule)
            elif rule.name in self._entries:
                entries[rule.name] = self._entries[rule.name]
        for name, entry in self._entries.items():
            if name not in before and name not in after:
                entries[name] = entry
        undone = tuple(
            name for name in [*before, *after] if name in new and self._undone(name, before, after)
        )
        gone = tuple(name for name in self._entries if name not in entries)
        return _Plan(rules, entries, Loaded(gone, tuple(dict.fromkeys(undone))))

    def _undone(self, name: str, before: Mapping[str, str], after: Mapping[str, str]) -> bool:
        """Tell whether a change on top is lost because the file has changed its rule."""
        entry = self._entries.get(name)
        now = entry.rule.content if entry is not None else None
        on = entry is None or entry.enabled
        return not (on and now in (before.get(name), after.get(name)))

    def reset(self) -> None:
        """Bring back the rules of the file, and nothing else."""
        self._commit({name: RuleEntry(rule) for name, rule in self.base.items()})

    # -- changes on top

    def replace(self, rules: Iterable[tuple[Rule, bool]], revision: str | None = None) -> None:
        """Put a list of rules in place of all; each comes with whether it is enabled.

        A temporary fault that is in the list under its name keeps its end.  revision: the one that the
        list was made of, None for any.  Raises StaleRules for another one, ConfigError for bad rules.
        """
        self.check(revision)
        self._commit(
            {rule.name: RuleEntry(rule, enabled, self._end_of(rule.name)) for rule, enabled in rules}
        )

    def put(self, rule: Rule, *, enabled: bool | None = None, lasts: float | None = None) -> None:
        """Add a rule at the end, or put it in the place of the one of its name.

        enabled: None for as it was.  lasts: seconds after which it is removed, None for as it was.
        Raises ConfigError.
        """
        before = self._entries.get(rule.name, RuleEntry(rule))
        ends = before.ends if lasts is None else trio.current_time() + lasts
        entry = RuleEntry(rule, before.enabled if enabled is None else enabled, ends)
        self._commit({**self._entries, rule.name: entry})

    def remove(self, name: str) -> None:
        """Remove a rule.  Raises KeyError."""
        entries = dict(self._entries)
        del entries[name]
        self._commit(entries)

    def enable(self, name: str, on: bool = True) -> None:
        """Let a rule act, or not.  Raises KeyError and ConfigError."""
        self._commit({**self._entries, name: replace(self._entries[name], enabled=on)})

    def check(self, revision: str | None) -> None:
        """Raise StaleRules where this is not the revision; None is any."""
        if revision is not None and revision != self.revision:
            raise StaleRules("somebody has changed the rules meanwhile: read them again")

    def _end_of(self, name: str) -> float | None:
        return self._entries[name].ends if name in self._entries else None

    def _commit(self, entries: dict[str, RuleEntry], chain: RuleChain | None = None) -> None:
        """Put entries in force; chain: of the enabled ones, where it was made already."""
        entries = self._with_known(entries)
        self._install(self._compile(_enabled(entries)) if chain is None else chain)
        self._entries = entries
        self._revision += 1
        self._changed.set()

    def _with_known(self, entries: dict[str, RuleEntry]) -> dict[str, RuleEntry]:
        """Keep the old object of an unchanged rule: it has the count over all connections."""
        found = dict(entries)
        for name, entry in entries.items():
            known = self._entries.get(name)
            if known is not None and known.rule.content == entry.rule.content:
                found[name] = replace(entry, rule=known.rule)
        return found

    # -- time

    async def run(self) -> None:
        """Remove expired faults, until cancelled."""
        while True:
            self._changed = trio.Event()
            ends = [entry.ends for entry in self._entries.values() if entry.ends is not None]
            with trio.move_on_at(min(ends, default=inf)):
                await self._changed.wait()
            now = trio.current_time()
            over = [name for name, one in self._entries.items() if one.ends is not None and one.ends <= now]
            for name in over:
                self.remove(name)
                self._ended(name)


def _enabled(entries: Mapping[str, RuleEntry]) -> tuple[Rule, ...]:
    return tuple(entry.rule for entry in entries.values() if entry.enabled)
