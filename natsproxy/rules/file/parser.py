"""The parser of rules files (TOML) and of the same in JSON; an error is one sentence with its place.

A file holds `[[rules]]` tables, and perhaps `[[expect]]` tables (`expectations.py`).  One without rules is
refused, since a half-written file looks the same: `rules = []` declares an empty file.  A table has a `name`
(unique), a `kind`, the keys of the selector and of the gate (below), and the settings of its kind, all on one
level:

    [[rules]]
    name = "slow orders"
    kind = "latency"
    subject = "orders.>"
    client = { name = "svc-*" }
    probability = 0.1
    delay = "250ms"
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from natsproxy.errors import ConfigError, Mistakes
from natsproxy.protocol.jetstream import api_patterns
from natsproxy.protocol.subjects import collide, is_subset
from natsproxy.rules.file import expectations
from natsproxy.rules.file.expectations import Expectation, expectation
from natsproxy.rules.file.keys import EVERYWHERE, GATE, IDENTITY, SELECTOR, keys_of
from natsproxy.rules.file.reader import RulePlaces, RuleReader, unknown_word
from natsproxy.rules.model.gate import OPEN, Gate, Hours
from natsproxy.rules.model.roles import Role
from natsproxy.rules.model.rule import Kind, LinkAction, Rule
from natsproxy.rules.model.selector import (
    MESSAGES,
    SENDABLE,
    WITH_SUBJECT,
    Selector,
)
from natsproxy.wire.ops import C2S, S2C, Direction, Op, op_mask

Expand = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Replaces a reference to a capture in a rule's table by values; raises ValueError about `delay`."""
EXPECT: Final = expectations.KIND.name
"""The name of the list of expectations."""
ONE_TABLE: Final = "each rule begins with [[rules]], in two pairs of brackets"
"""The error for `[rules]`."""
NONE_NAMED: Final = "there are no rules in it: write `rules = []` if that is intended"
"""The error for a file that is empty, or holds comments only."""


def load(
    text: str, kinds: Mapping[str, Kind], *, source: str = "rules", expand: Expand | None = None
) -> tuple[Rule, ...]:
    """Read the text of a rules file.  Raises ConfigError with a mistake of each rule, and its place."""
    document = _document(text, source)
    if "rules" not in document:
        raise ConfigError(f"{source}: {NONE_NAMED}")
    tables = document["rules"]
    if not isinstance(tables, list):
        raise ConfigError(f"{source}: {ONE_TABLE}")
    _expectations(document, text, source)
    return parse_rules(tables, kinds, place=RulePlaces(source, text), expand=expand)


def load_expectations(text: str, *, source: str = "rules") -> tuple[Expectation, ...]:
    """Read the expectations in the text of a rules file.  Raises ConfigError."""
    return _expectations(_document(text, source), text, source)


def _document(text: str, source: str) -> dict[str, Any]:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: not valid TOML: {error}") from None
    for key in document:
        if key not in ("rules", EXPECT):
            raise ConfigError(
                f"{source}: there is no key {key!r} here: a rules file holds [[rules]] and [[expect]] tables "
                "only; settings go into the file of --config, which may hold [[rules]] too"
            )
    return document


def _expectations(document: Mapping[str, Any], text: str, source: str) -> tuple[Expectation, ...]:
    tables = document.get(EXPECT, [])
    place = RulePlaces(source, text, EXPECT, "expectation")
    if not isinstance(tables, list):
        raise ConfigError(f"{source}: each expectation begins with [[expect]], in two pairs of brackets")
    named = [
        {"name": str(number), **table, "kind": EXPECT} if isinstance(table, Mapping) else table
        for number, table in enumerate(tables, 1)
    ]
    return tuple(expectation(rule) for rule in parse_rules(named, {EXPECT: expectations.KIND}, place=place))


def parse_rules(
    tables: Iterable[Any],
    kinds: Mapping[str, Kind],
    *,
    place: RulePlaces | None = None,
    expand: Expand | None = None,
    first: int = 0,
) -> tuple[Rule, ...]:
    """Read rules as plain tables (JSON, the configuration).  Raises ConfigError with a mistake of each.

    first: the place of the first of them in its list, from 0.
    """
    place = place or RulePlaces()
    rules: list[Rule] = []
    names: dict[str, str] = {}
    mistakes = Mistakes()
    for index, table in enumerate(tables, first):
        with mistakes.noted():
            if not isinstance(table, Mapping):
                raise ConfigError(
                    f"{place.of(index)}: {place.noun} {index + 1} must be a table, not {table!r}"
                )
            rule = _parse_rule(RuleReader(table, index, place), kinds, expand)
            if rule.name in names:
                where = place.of(index, "name")
                raise ConfigError(f"{where}: there is one named {rule.name!r} already, at {names[rule.name]}")
            names[rule.name] = rule.where
            rules.append(rule)
    mistakes.refuse()
    return tuple(rules)


def _parse_rule(reader: RuleReader, kinds: Mapping[str, Kind], expand: Expand | None) -> Rule:
    if expand is not None:
        try:
            reader.table = expand(reader.table)
        except ValueError as error:
            raise reader.error("delay", str(error)) from None
    table = reader.table
    identity = reader.read(IDENTITY)
    reader.title = f"{reader.place.noun} {identity['name']!r}"
    kind = kinds.get(identity["kind"])
    if kind is None:
        raise reader.error_about(unknown_word(identity["kind"], list(kinds), "kind"), "kind")
    reader.refuse_unknown(kind, [setting.name for setting in keys_of(kind)], EVERYWHERE)
    settings = reader.read(kind.settings)
    selector = _selector(reader, kind)
    gate = _gate(reader) if kind.gated else Gate()
    try:
        action = kind.make(settings, selector)
        if gate.hours is not None and isinstance(action, LinkAction) and not (selector.ops or action.opening):
            raise ValueError(
                "hours has no meaning for an open link: it is asked about frames and new clients"
            )
        if action.ops:
            selector = replace(selector, ops=action.ops)
        # The same effect on whole runs of frames, which costs far less than frame by frame.
        if kind.link is not None and not selector.framed and not gate.counts:
            link_action = kind.link(settings)
            if link_action is not None:
                action, selector = link_action, replace(selector, ops=0)
    except (ValueError, ConfigError) as error:
        raise reader.error_about(str(error)) from None
    where = reader.place.of(reader.index)
    return Rule(identity["name"], kind.name, selector, action, gate, dict(table), where)


def _gate(reader: RuleReader) -> Gate:
    found = reader.read(GATE)
    spans, zone = found.pop("hours"), found.pop("zone")
    if spans is None and "zone" in reader.table:
        raise reader.error("zone", "is that of 'hours', which are not given")
    hours = None if spans is None else Hours(spans, zone)
    gate = Gate(per_proxy=found.pop("per") == "proxy", hours=hours, **found)
    return OPEN if gate == OPEN else gate  # which each connection asks of each rule


def _selector(reader: RuleReader, kind: Kind) -> Selector:
    found = reader.read(SELECTOR)
    if found["api"]:
        if found["subject"]:
            raise reader.error("api", "stands in place of 'subject': give one of them")
        found["subject"] = tuple(pattern for verb in found["api"] for pattern in api_patterns(verb))
    role: Role | None = found["role"]
    named = [
        key
        for key in (
            "op",
            "subject",
            "api",
            "queue",
            "header",
            "without",
            "status",
            "role",
            "min_size",
            "max_size",
        )
        if key in reader.table
    ]
    ops = op_mask(*found["op"]) if found["op"] else kind.ops
    # A condition on frames, such as a subject, turns a rule about connections into one about messages.
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
        headers=_headers(found["header"]),
        without=_headers(found["without"]),
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


def _headers(found: Mapping[str, str]) -> tuple[tuple[bytes, str | None], ...]:
    return tuple((name.encode(), None if glob == "*" else glob) for name, glob in found.items())


def _ops(mask: int) -> str:
    return ", ".join(op.label for op in Op if mask >> op & 1)


def _refuse_idle(reader: RuleReader, found: Mapping[str, Any]) -> None:
    """Refuse a selector that never selects anything."""
    role: Role | None = found["role"]
    if found["max_size"] is not None and found["max_size"] < found["min_size"]:
        raise reader.error("max_size", f"is below min_size, {found['min_size']}")
    subjects = found["subject"] or (b">",)
    if all(any(is_subset(one, other) for other in found["unless"]) for one in subjects):
        raise reader.error("unless", "excludes all that the rule is about")
    if role is None or role.requests is not None or role.patterns is None or found["subject"] is None:
        return
    if not any(collide(one, other) for one in subjects for other in role.patterns):
        listed = ", ".join(pattern.decode() for pattern in role.patterns)
        raise reader.error(
            "api" if found["api"] else "subject",
            f"contradicts the role {role.name!r}, which is about {listed}",
        )


_HOLDERS: Final = (
    ("api", op_mask(Op.PUB, Op.HPUB), "a call of the API"),
    ("queue", op_mask(Op.SUB, Op.MSG, Op.HMSG), "a queue"),
    ("header", op_mask(Op.HPUB, Op.HMSG), "headers"),
    ("without", MESSAGES, "headers"),
    ("status", op_mask(Op.HPUB, Op.HMSG), "a status"),
)
"""Keys with the ops that can have the property."""


def _narrow(reader: RuleReader, ops: int, found: Mapping[str, Any], role: Role | None) -> int:
    """Return the ops that the other keys leave; refuse contradictions."""
    if role is not None:
        if found["op"] and not ops & role.ops:
            raise reader.error("op", f"contradicts the role {role.name!r}")
        ops = ops & role.ops or role.ops
    for key, holders, noun in _HOLDERS:
        if found[key]:
            if not ops & holders:
                raise reader.error(key, f"selects nothing: {_ops(ops)} never has {noun}")
            ops &= holders
    if found["subject"] is None and not found["unless"]:
        return ops
    if found["op"] and ops & ~WITH_SUBJECT:
        raise reader.error("op", "names an operation without a subject, which 'subject' cannot select")
    return ops & WITH_SUBJECT


def _directions(
    reader: RuleReader, wanted: Direction | None, kind: Kind, role: Role | None, ops: int
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
