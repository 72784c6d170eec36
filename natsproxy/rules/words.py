"""The words of rules with their texts: kinds, selectors, gates, roles, from the tables that the parser reads.

A word is a kind, a key of selectors or gates, a role, or a setting of a kind; `WORDS` finds it by its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from natsproxy.rules.file.keys import GATE, IDENTITY, SELECTOR, keys_of
from natsproxy.rules.kinds import KINDS
from natsproxy.rules.model.roles import ROLES, Role
from natsproxy.rules.model.rule import REQUIRED, Kind, Setting
from natsproxy.rules.model.selector import Peer
from natsproxy.wire.ops import OPS, Op, op_mask

Facts = Mapping[str, Any]
"""A word: its name, its sort and its text; perhaps its settings or values, and an example."""


def _setting(setting: Setting) -> Facts:
    found: dict[str, Any] = {"name": setting.name, "text": setting.text}
    if setting.default is REQUIRED:
        found["required"] = True
    elif isinstance(setting.default, str | int):  # all others stand for "none"
        found["default"] = setting.default
    return found


def _kind(kind: Kind) -> Facts:
    own = {setting.name for setting in kind.settings}
    return {
        "name": kind.name,
        "sort": "kind",
        "text": kind.text,
        "settings": list(map(_setting, kind.settings)),
        "also": [setting.name for setting in keys_of(kind) if setting.name not in own],
        "example": kind.example.strip(),
    }


def _key(setting: Setting, sort: str) -> Facts:
    values = _VALUES.get(setting.name, ())
    more = {"values": list(values)} if values else {}
    example = {"example": setting.example} if setting.example else {}
    return {**_setting(setting), "sort": sort, **more, **example}


def _role(role: Role) -> Facts:
    ops = "/".join(op.label for op in Op if role.ops & op_mask(op))
    about = [pattern.decode() for pattern in role.requests or role.patterns or ()]
    where = f"{'of answers to' if role.requests else 'on'} {', '.join(about)}" if about else "on any subject"
    return {
        "name": role.name,
        "sort": "role",
        "text": f"{role.text}: {role.direction.label} {ops}, {where}",
        "example": f'role = "{role.name}"',
    }


def _ways(op: Op) -> str:
    return " and ".join(
        label for label, sent in (("c2s", OPS[op].from_client), ("s2c", OPS[op].from_server)) if sent
    )


_VALUES: Final[dict[str, Iterable[dict[str, str]]]] = {
    "kind": [{"name": kind.name, "text": kind.text} for kind in KINDS.values()],
    "role": [{"name": role.name, "text": role.text} for role in ROLES.values()],
    "op": [{"name": op.label, "text": _ways(op)} for op in Op],
    "client": [{"name": name, "text": ""} for name in Peer._fields],
    "direction": [{"name": "c2s", "text": "client to server"}, {"name": "s2c", "text": "server to client"}],
    "side": [
        {"name": "client", "text": "subjects as clients write them"},
        {"name": "server", "text": "subjects as the server sees them"},
    ],
    "per": [
        {"name": "connection", "text": "each connection counts for itself, also one that comes back"},
        {"name": "proxy", "text": "all connections count together, from when the rule comes into force"},
    ],
}
"""The words that a key takes."""
SECTIONS: Final[dict[str, list[Facts]]] = {
    "kinds": [_kind(kind) for kind in KINDS.values()],
    "selectors": [_key(setting, "selector") for setting in SELECTOR],
    "gates": [_key(setting, "gate") for setting in GATE],
    "roles": [_role(role) for role in ROLES.values()],
    "identity": [_key(setting, "identity") for setting in IDENTITY],
}


def _own_settings() -> dict[str, Facts]:
    """Return the settings that only some kinds have."""
    found: dict[str, dict[str, list[str]]] = {}
    for kind in KINDS.values():
        for setting in kind.settings:
            found.setdefault(setting.name, {}).setdefault(setting.text, []).append(kind.name)
    return {
        name: {
            "name": name,
            "sort": "setting",
            "text": "; ".join(f"of {', '.join(kinds)}: {text}" for text, kinds in meanings.items()),
        }
        for name, meanings in found.items()
    }


def _words() -> dict[str, list[Facts]]:
    keys = {
        facts["name"]: [facts]
        for name, section in reversed(SECTIONS.items())
        for facts in section
        if name != "kinds"
    }
    found = {name: [facts] for name, facts in _own_settings().items()} | keys
    for facts in SECTIONS["kinds"]:
        found[facts["name"]] = [*keys.get(facts["name"], ()), facts]
    return found


WORDS: Final = _words()
"""All words by name; a name may be that of a key and of a kind."""
WORDS["suspend"] = WORDS["swallow"]  # what operators call it
