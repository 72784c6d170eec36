"""From a rules file (TOML) or its JSON twin to checked rules; every mistake is one sentence with its place.

A file holds `[[rules]]` tables and nothing else.  One without any is a mistake (half of a file that is being
written looks so): `rules = []` says that there are to be none.  A table has a `name` (unique), a `kind`, the
keys of the selector and of the gate (below), and the settings of its kind, all on one level:

    [[rules]]
    name = "slow orders"
    kind = "latency"
    subject = "orders.>"
    client = { name = "svc-*" }
    probability = 0.1
    delay = "250ms"

tomllib does not say where a key stood, so the place is looked up in the text afterwards: the n-th `[[rules]]`
header, and in its part the line that begins with the key.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, Final

from natsproxy.errors import ConfigError
from natsproxy.protocol.subjects import collide, is_subset
from natsproxy.rules.file import values
from natsproxy.rules.model.gate import Gate
from natsproxy.rules.model.roles import Role
from natsproxy.rules.model.rule import REQUIRED, Convert, Kind, Rule, Setting
from natsproxy.rules.model.selector import (
    ANYBODY,
    MESSAGES,
    SENDABLE,
    WITH_SUBJECT,
    Peer,
    Selector,
    role_named,
)
from natsproxy.wire.ops import C2S, S2C, Direction, Op, op_mask

Expand = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Puts what a rule's table names elsewhere (a capture) into the table; ValueError: a clause about `delay`."""
IDENTITY: Final = (
    Setting("name", values.line, REQUIRED, "unique; names the rule in logs, metrics, captures and dice"),
    Setting("kind", values.text, REQUIRED, "what the rule does"),
)
SELECTOR: Final = (
    Setting("direction", values.direction, None, '"c2s" or "s2c"; without it: both, as far as the ops go'),
    Setting("op", values.several(values.op), None, "operations by their names on the wire"),
    Setting("subject", values.several(values.pattern), None, "subject patterns, as the client writes them"),
    Setting("unless", values.several(values.pattern), (), "subject patterns that are excepted"),
    Setting("side", values.one_of("client", "server"), "client", "whose subjects are meant"),
    Setting("queue", values.several(values.pattern), None, "queue names, wildcards allowed"),
    Setting("header", values.table(values.line), {}, 'header names and shell patterns ("*": any value)'),
    Setting("status", values.several(values.status), (), "status codes of HMSG"),
    Setting("min_size", values.size, 0, "least payload, headers included"),
    Setting("max_size", values.size, None, "most payload, headers included"),
    Setting("role", lambda value: role_named(values.text(value)), None, "the part it plays in JetStream"),
    Setting(
        "client", lambda value: _peer(value), ANYBODY, "name, user, account, lang, version, address, ordinal"
    ),
)
GATE: Final = (
    Setting("probability", values.probability, None, "how likely, 0 to 1, by the seeded dice"),
    Setting("every", values.count, None, "each n-th match"),
    Setting("first", values.count, None, "the first n matches"),
    Setting("after", values.natural, 0, "not the first n matches"),
    Setting("limit", values.count, None, "at most n firings"),
    Setting("between", values.window, None, 'a time window, ["2s", "5s"], from the start of the connection'),
    Setting("only", values.firings, None, "exact firings: connection key to match numbers"),
    Setting("per", values.one_of("connection", "proxy"), "connection", "what is counted over"),
)


ONE_TABLE: Final = "each rule begins with [[rules]], in two pairs of brackets"
"""What to say of `[rules]`."""
NONE_NAMED: Final = "there are no rules in it: `rules = []` says that there are to be none"
"""What to say of a file that is empty, or holds comments only."""


class Place:
    """Where rules stand in a file: source name and text (None for JSON and settings made in code)."""

    def __init__(self, source: str = "rules", text: str | None = None) -> None:
        self.source = source
        self._lines = [] if text is None else text.splitlines()
        header = re.compile(r"\s*\[\[\s*rules\s*\]\]")
        self._starts = [n for n, line in enumerate(self._lines) if header.match(line)]

    def of(self, index: int, key: str | None = None) -> str:
        """Return `file:line` of a rule or of a key in it, as near as it can be told."""
        if index >= len(self._starts):
            return f"{self.source}, rule {index + 1}" if index >= 0 else self.source
        start = self._starts[index]
        stop = self._starts[index + 1] if index + 1 < len(self._starts) else len(self._lines)
        if key is not None:
            wanted = re.compile(rf"""\s*(\[\s*rules\s*\.\s*)?["']?{re.escape(key)}["']?\s*[].=]""")
            start = next((n for n in range(start, stop) if wanted.match(self._lines[n])), start)
        return f"{self.source}:{start + 1}"


def load(
    text: str, kinds: Mapping[str, Kind], *, source: str = "rules", expand: Expand | None = None
) -> tuple[Rule, ...]:
    """Read the text of a rules file.  Raises ConfigError with the place of the first mistake."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: not valid TOML: {error}") from None
    for key in document:
        if key != "rules":
            raise ConfigError(
                f"{source}: there is no key {key!r} here: a rules file holds [[rules]] tables only; "
                "settings go into the file of --config, which may hold [[rules]] too"
            )
    if not document:
        raise ConfigError(f"{source}: {NONE_NAMED}")
    tables = document["rules"]
    if not isinstance(tables, list):
        raise ConfigError(f"{source}: {ONE_TABLE}")
    return parse_rules(tables, kinds, place=Place(source, text), expand=expand)


def parse_rules(
    tables: Iterable[Any],
    kinds: Mapping[str, Kind],
    *,
    place: Place | None = None,
    expand: Expand | None = None,
) -> tuple[Rule, ...]:
    """Read rules as plain tables (JSON, the configuration).  Raises ConfigError."""
    place = place or Place()
    rules: list[Rule] = []
    names: dict[str, str] = {}
    for index, table in enumerate(tables):
        if not isinstance(table, Mapping):
            raise ConfigError(f"{place.of(index)}: a rule must be a table, not {table!r}")
        rule = _parse_rule(_Reader(table, index, place), kinds, expand)
        if rule.name in names:
            where = place.of(index, "name")
            raise ConfigError(f"{where}: a rule named {rule.name!r} stands at {names[rule.name]} already")
        names[rule.name] = rule.where
        rules.append(rule)
    return tuple(rules)


def _parse_rule(reader: _Reader, kinds: Mapping[str, Kind], expand: Expand | None) -> Rule:
    if expand is not None:
        try:
            reader.table = expand(reader.table)
        except ValueError as error:
            raise reader.error("delay", str(error)) from None
    table = reader.table
    identity = reader.read(IDENTITY)
    reader.title = f"rule {identity['name']!r}"
    kind = kinds.get(identity["kind"])
    if kind is None:
        raise reader.error_about(_unknown(identity["kind"], list(kinds), "kind"), "kind")
    reader.refuse_unknown(kind, [setting.name for setting in keys_of(kind)])
    settings = reader.read(kind.settings)
    selector = _selector(reader, kind)
    gate = _gate(reader.read(GATE)) if kind.gated else Gate()
    try:
        action = kind.make(settings, selector)
        if kind.link is not None and not selector.framed and not gate.counts:
            bending = kind.link(settings)
            if bending is not None:
                action, selector = bending, replace(selector, ops=0)
    except (ValueError, ConfigError) as error:
        raise reader.error_about(str(error)) from None
    where = reader.place.of(reader.index)
    return Rule(identity["name"], kind.name, selector, action, gate, dict(table), where)


def keys_of(kind: Kind) -> list[Setting]:
    """Return all keys that a rule of a kind may have."""
    selector = [setting for setting in SELECTOR if kind.selects is None or setting.name in kind.selects]
    return [*IDENTITY, *kind.settings, *selector, *(GATE if kind.gated else ())]


class _Reader:
    """Reads the keys of one rule and says where a wrong one stands."""

    def __init__(self, table: Mapping[str, Any], index: int, place: Place) -> None:
        self.table = table
        self.index = index
        self.place = place
        name = table.get("name")
        self.title = f"rule {name!r}" if isinstance(name, str) else f"rule {index + 1}"

    def error(self, key: str | None, text: str) -> ConfigError:
        subject = f"{key} {text}" if key else text
        return ConfigError(f"{self.place.of(self.index, key)}: {self.title}: {subject}")

    def error_about(self, text: str, key: str | None = None) -> ConfigError:
        """Return an error at a key, by default at the one that its text begins with (if it does)."""
        if key is None:
            word = re.match(r"\w*", text)
            key = word[0] if word is not None and word[0] in self.table else None
        return ConfigError(f"{self.place.of(self.index, key)}: {self.title}: {text}")

    def read(self, settings: Iterable[Setting]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for setting in settings:
            if setting.name not in self.table:
                if setting.default is REQUIRED:
                    raise self.error(None, f"it needs {setting.name!r} ({setting.text})")
                result[setting.name] = setting.default
                continue
            try:
                result[setting.name] = setting.convert(self.table[setting.name])
            except ValueError as error:
                raise self.error(setting.name, str(error)) from None
        return result

    def refuse_unknown(self, kind: Kind, known: list[str]) -> None:
        everywhere = {setting.name for setting in (*SELECTOR, *GATE)}
        for key in self.table:
            if key in known:
                continue
            if key in everywhere:
                raise self.error(key, f"has no meaning in a rule of kind {kind.name!r}")
            raise self.error_about(_unknown(key, known), key)


def _unknown(word: str, known: list[str], what: str = "key") -> str:
    near = get_close_matches(word, known, 1, 0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(known))}"
    return f"there is no {what} {word!r}; {hint}"


_PEER: Final[dict[str, Convert]] = {"ordinal": values.count, "address": values.network}


def _peer(value: Any) -> Peer:
    table = values.table(lambda item: item)(value)
    for key, item in table.items():
        if key not in Peer._fields:
            raise ValueError(f"has {key!r}: {_unknown(key, list(Peer._fields))}")
        try:
            convert: Convert = _PEER.get(key, values.line)
            convert(item)
        except ValueError as error:
            raise ValueError(f"has {key!r}, which {error}") from None
    return Peer(**table)


def _gate(found: dict[str, Any]) -> Gate:
    return Gate(per_proxy=found.pop("per") == "proxy", **found)


def _selector(reader: _Reader, kind: Kind) -> Selector:
    found = reader.read(SELECTOR)
    role: Role | None = found["role"]
    named = [
        key
        for key in ("op", "subject", "queue", "header", "status", "role", "min_size", "max_size")
        if key in reader.table
    ]
    ops = op_mask(*found["op"]) if found["op"] else kind.ops
    if not ops and named:
        ops = MESSAGES
    ops = _narrow(reader, ops, found, role)
    _refuse_idle(reader, found)
    if ops & ~kind.takes:
        raise reader.error(
            "role" if role is not None else "op",
            f"of a rule of kind {kind.name!r} can be {_ops(kind.takes)} only",
        )
    selector = Selector(
        directions=_directions(reader, found["direction"], kind, role, ops),
        ops=ops,
        subjects=found["subject"] if found["subject"] or not role or role.requests else role.patterns,
        unless=found["unless"],
        queues=found["queue"],
        headers=tuple(
            (name.encode(), None if glob == "*" else glob) for name, glob in found["header"].items()
        ),
        statuses=found["status"],
        min_size=found["min_size"],
        max_size=found["max_size"],
        role=role,
        peer=found["client"],
        side=found["side"],
        framed=bool(named),
    )
    if selector.ops and not any(selector.wants(direction) for direction in selector.directions):
        wrong = "/".join(direction.label for direction in selector.directions)
        if found["op"]:
            raise reader.error("op", f"never goes {wrong}")
        raise reader.error("direction", f"is {wrong}, where {_ops(selector.ops)} never goes")
    return selector


def _ops(mask: int) -> str:
    return ", ".join(op.label for op in Op if mask >> op & 1)


def _refuse_idle(reader: _Reader, found: Mapping[str, Any]) -> None:
    """Refuse what could never select anything."""
    role: Role | None = found["role"]
    if found["max_size"] is not None and found["max_size"] < found["min_size"]:
        raise reader.error("max_size", f"is below min_size, {found['min_size']}")
    subjects = found["subject"] or (b">",)
    if all(any(is_subset(one, other) for other in found["unless"]) for one in subjects):
        raise reader.error("unless", "excepts all that the rule is about")
    if role is None or role.requests is not None or role.patterns is None or found["subject"] is None:
        return
    if not any(collide(one, other) for one in subjects for other in role.patterns):
        listed = ", ".join(pattern.decode() for pattern in role.patterns)
        raise reader.error("subject", f"contradicts the role {role.name!r}, which is about {listed}")


_HOLDERS: Final = (
    ("queue", op_mask(Op.SUB, Op.MSG, Op.HMSG), "a queue"),
    ("header", op_mask(Op.HPUB, Op.HMSG), "headers"),
    ("status", op_mask(Op.HPUB, Op.HMSG), "a status"),
)
"""Which ops can have what a key asks for."""


def _narrow(reader: _Reader, ops: int, found: Mapping[str, Any], role: Role | None) -> int:
    """Return the ops that can be what the other keys ask for; refuse contradictions."""
    if role is not None:
        if found["op"] and not ops & role.ops:
            raise reader.error("op", f"contradicts the role {role.name!r}")
        ops = ops & role.ops or role.ops
    for key, holders, what in _HOLDERS:
        if found[key]:
            if not ops & holders:
                raise reader.error(key, f"selects nothing: {_ops(ops)} never has {what}")
            ops &= holders
    if found["subject"] is None and not found["unless"]:
        return ops
    if found["op"] and ops & ~WITH_SUBJECT:
        raise reader.error("op", "names an operation without a subject, which 'subject' cannot select")
    return ops & WITH_SUBJECT


def _directions(
    reader: _Reader, wanted: Direction | None, kind: Kind, role: Role | None, ops: int
) -> tuple[Direction, ...]:
    if role is not None:
        if wanted is not None and wanted != role.direction:
            raise reader.error("direction", f"contradicts the role {role.name!r}")
        return (role.direction,)
    if wanted is not None:
        return (wanted,)
    if kind.direction is not None:
        return (kind.direction,)
    both = tuple(direction for direction in Direction if ops & SENDABLE[direction])
    return both or (C2S, S2C)
