"""Rules in shadow put in force: what that would break on recorded traffic, and the rules without shadow."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from natsproxy.rules.file.parser import parse_rules
from natsproxy.rules.file.serialize import to_toml
from natsproxy.rules.kinds import KINDS
from natsproxy.rules.kinds.permissions import MODE, SHADOW
from natsproxy.rules.model.rule import Rule
from natsproxy.trial.report import FrameRange, Key, Report

_LINE: Final = re.compile(
    rf"""^[ \t]*{MODE.name}[ \t]*=[ \t]*["']{SHADOW}["'][ \t]*(#.*)?\n?""", re.MULTILINE
)


def shadowed(rules: Iterable[Rule]) -> frozenset[str]:
    """Return the names of the rules in shadow."""
    return frozenset(rule.name for rule in rules if rule.action.shadow)


def enforced(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Return rules with those in shadow put in force."""
    return parse_rules(_without_shadow(rule.table for rule in rules), KINDS)


def _without_shadow(tables: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in table.items() if (key, value) != (MODE.name, SHADOW)}
        for table in tables
    ]


def text_enforced(text: str) -> str:
    """Return the text of a rules file without shadow; its comments stay, where the lines alone can go."""
    wanted = _without_shadow(tomllib.loads(text)["rules"])
    shorter = _LINE.sub("", text)
    try:
        same = tomllib.loads(shorter)["rules"] == wanted
    except tomllib.TOMLDecodeError:  # the line stood inside a text or a table
        same = False
    return shorter if same else to_toml(wanted)


def broken(report: Report, names: frozenset[str]) -> list[tuple[Key, FrameRange]]:
    """Return the rows of a report that rules in shadow would cause."""
    return sorted((key, row) for key, row in report.rows.items() if key.rule in names)
