"""`natsproxy rules list`: every word of a rules file, for people and as JSON."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from typing import Final

import click

from natsproxy.cli.exits import CouldNotRun
from natsproxy.rules.file.serialize import value_to_toml
from natsproxy.rules.kinds import KINDS
from natsproxy.rules.words import SECTIONS, WORDS, Facts

_TITLES: Final = {
    "kinds": "The kinds of rules:",
    "selectors": "Selectors choose frames and connections; all that a rule names must hold:",
    "gates": "Gates choose among the matches of the selector; all that a rule names must hold:",
    "roles": "Roles, the parts that frames play in JetStream:",
    "identity": "Each rule has:",
}
_SINGULAR: Final = {"kinds": "kinds", "selector": "selectors", "gate": "gates"}


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
        listed = {"": _named(word)}
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


def _named(word: str) -> list[Facts]:
    if word in WORDS:
        return WORDS[word]
    near = difflib.get_close_matches(word.lower(), (*WORDS, *SECTIONS), 1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join((*SECTIONS, *KINDS))}"
    raise CouldNotRun(f"there is no word {word!r} in rules; {hint}")


def _whole(listed: Iterable[Facts]) -> None:
    for number, facts in enumerate(listed):
        if number:
            click.echo()
        click.echo(f"{facts['name']}: {facts['text']}{_default(facts)}")
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
        click.echo(f"  {facts['name']:<{width}} {facts['text']}{_default(facts)}".rstrip())


def _default(facts: Facts) -> str:
    return f"  [{value_to_toml(facts['default'])}]" if "default" in facts else ""
