"""Rules as text, and exact rules from a recorded run: "drop 5 %" becomes "drop these 37 frames".

Exact rules are the rules of the run with every gate replaced by the firings in the capture: for each
connection key the numbers of the matches that fired (`only`).  Selectors and actions stay, and so do names,
since the random numbers of actions (which byte is damaged, how long a frame waits) depend on them: with the
seed of the run, exact rules repeat it, and a user can take out single firings to see whether they matter.
Rules without a gate act on all frames that they select, in both runs, and are kept as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from natsproxy.rules.file.keys import GATE
from natsproxy.rules.model.rule import Rule

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_GATES = tuple(setting.name for setting in GATE)


def to_toml(tables: Iterable[Mapping[str, Any]]) -> str:
    """Return rule tables as the text of a rules file; `rules = []` where there are none."""
    parts = []
    for table in tables:
        lines = [f"{_key(key)} = {value_to_toml(value)}" for key, value in table.items()]
        parts.append("\n".join(["[[rules]]", *lines, ""]))
    return "\n".join(parts) or "rules = []\n"


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def _text(text: str) -> str:
    # JSON's escapes are TOML's, but for DEL, which TOML wants escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def value_to_toml(value: Any) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(str(key))} = {value_to_toml(item)}" for key, item in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, Sequence):
        return f"[{', '.join(map(value_to_toml, value))}]"
    return repr(value)


def exact_rules(rules: Iterable[Rule], firings: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the tables of the exact rules of a run.

    firings: the fields of `events.Firing`, as captures have them.
    """
    fired: dict[str, dict[str, set[int]]] = {}
    for firing in firings:
        direction, key = str(firing.get("direction", "")), str(firing.get("key", ""))
        m = firing.get("m")
        if isinstance(m, int) and m > 0:
            fired.setdefault(str(firing.get("rule", "")), {}).setdefault(f"{direction} {key}", set()).add(m)
    return [_exact(rule, fired.get(rule.name, {})) for rule in rules]


def _exact(rule: Rule, fired: Mapping[str, set[int]]) -> dict[str, Any]:
    # Without a gate every match fires: a list of them would only break on other traffic.
    if rule.gate.open:
        return dict(rule.table)
    table = {key: value for key, value in rule.table.items() if key not in _GATES}
    # The window of a link rule stays: it is a time, and the number of a match cannot express it.
    if "between" in rule.table and not rule.selector.ops:
        table["between"] = rule.table["between"]
    return {**table, "only": {key: sorted(found) for key, found in sorted(fired.items())}}
