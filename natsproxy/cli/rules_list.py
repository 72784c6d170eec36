"""`natsproxy rules list`: every word of a rules file, from the tables that the parser reads.

A word is a kind, a key of selectors or gates, a role, or a setting of a kind; `WORDS` finds it by its name.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import click

from natsproxy.cli.exits import CouldNotRun
from natsproxy.rules.file.keys import GATE, IDENTITY, SELECTOR, keys_of
from natsproxy.rules.kinds import KINDS
from natsproxy.rules.model.roles import ROLES, Role
from natsproxy.rules.model.rule import Kind, Setting
from natsproxy.rules.model.selector import Peer
from natsproxy.wire.ops import OPS, Op, op_mask

Facts = Mapping[str, Any]
"""A word: its name, its sort and its text; perhaps its settings or values, and an example."""


def _setting(setting: Setting) -> dict[str, str]:
    return {"name": setting.name, "text": setting.text}


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
}
"""The words that a key takes."""
SECTIONS: Final[dict[str, list[Facts]]] = {
    "kinds": [_kind(kind) for kind in KINDS.values()],
    "selectors": [_key(setting, "selector") for setting in SELECTOR],
    "gates": [_key(setting, "gate") for setting in GATE],
    "roles": [_role(role) for role in ROLES.values()],
    "identity": [_key(setting, "identity") for setting in IDENTITY],
}
_TITLES: Final = {
    "kinds": "The kinds of rules:",
    "selectors": "Selectors choose frames and connections; all that a rule names must hold:",
    "gates": "Gates choose among the matches of the selector; all that a rule names must hold:",
    "roles": "Roles, the parts that frames play in JetStream:",
    "identity": "Each rule has:",
}
_SINGULAR: Final = {"kinds": "kinds", "selector": "selectors", "gate": "gates"}


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


WORDS: Final[dict[str, Facts]] = {
    **_own_settings(),
    **{facts["name"]: facts for section in reversed(SECTIONS.values()) for facts in section},
}
"""Each word; a kind comes before a key of the same name."""


def _complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in (*SECTIONS, *WORDS) if name.startswith(incomplete)]


@click.command("list")
@click.argument("word", required=False, shell_complete=_complete)
@click.option("--short", is_flag=True, help="One line for each.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each.")
def list_words(word: str | None, short: bool, as_json: bool) -> None:
    """List what rules may say: kinds, selectors, gates, roles.

    With a WORD only that: a kind, a key, a role, a setting, or one of the words kinds, selectors, gates,
    roles.

    \b
    natsproxy rules list
    natsproxy rules list --short
    natsproxy rules list latency
    natsproxy rules list between
    natsproxy rules list roles --json
    """
    section = None if word is None else _SINGULAR.get(word, word)
    if section in SECTIONS:
        listed = {section: SECTIONS[section]}
    elif word is None:
        listed = SECTIONS
    else:
        listed = {"": [_named(word)]}
    if as_json:
        for facts in (facts for found in listed.values() for facts in found):
            click.echo(json.dumps(facts))
        return
    for number, (title, found) in enumerate(listed.items()):
        if number:
            click.echo()
        if short or (title and title != "kinds"):
            _table(_TITLES.get(title, ""), found)
        else:
            _whole(found)


def show_section(name: str) -> None:
    """Print one sort of words, a line for each."""
    _table(_TITLES[name], SECTIONS[name])


def _named(word: str) -> Facts:
    if word in WORDS:
        return WORDS[word]
    near = difflib.get_close_matches(word.lower(), (*WORDS, *SECTIONS), 1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join((*SECTIONS, *KINDS))}"
    raise CouldNotRun(f"there is no word {word!r} in rules; {hint}")


def _whole(listed: Iterable[Facts]) -> None:
    for number, facts in enumerate(listed):
        if number:
            click.echo()
        click.echo(f"{facts['name']}: {facts['text']}")
        for title in ("settings", "values"):
            if facts.get(title):
                click.echo()
                _table(f"{title}:", facts[title])
        if facts.get("also"):
            click.echo(f"\nalso: {', '.join(facts['also'])}")
        if facts.get("example"):
            click.echo(f"\nexample:\n{facts['example']}")


def _table(title: str, rows: Iterable[Facts]) -> None:
    rows = list(rows)
    width = max(12, *(len(facts["name"]) for facts in rows))
    if title:
        click.echo(title)
    for facts in rows:
        click.echo(f"  {facts['name']:<{width}} {facts['text']}".rstrip())
