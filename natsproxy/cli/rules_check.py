"""`natsproxy rules check`: the rules of a file, or the mistakes in it."""

from __future__ import annotations

import json
from collections.abc import Callable

import click

from natsproxy.cli.exits import FoundWrong
from natsproxy.cli.rules_file import rules_source
from natsproxy.errors import NatsproxyError
from natsproxy.rules.model.rule import Rule


@click.command()
@rules_source
@click.option("--json", "as_json", is_flag=True, help="One JSON object per rule.")
def check(read: Callable[[], tuple[Rule, ...]], as_json: bool) -> None:
    """Check a rules file, or the rules of a configuration file.

    Exit code: 0 no mistake, 1 mistakes (a sentence for each rule names file, line and key), 2 no such file.
    natsproxy run --test checks all of a configuration.

    \b
    natsproxy rules check faults.toml
    natsproxy rules check --config natsproxy.toml
    generate-faults | natsproxy rules check -
    """
    try:
        loaded = read()
    except NatsproxyError as error:
        raise FoundWrong(str(error)) from None
    if as_json:
        for rule in loaded:
            gate = rule.action.condition() or rule.gate.describe()
            facts = {"rule": rule.name, "kind": rule.kind, "selector": rule.selector.describe(), "gate": gate}
            click.echo(json.dumps(facts))
        return
    for rule in loaded:
        gate = rule.action.condition() or rule.gate.describe()
        click.echo(f"{rule.name}: {rule.kind}, {rule.selector.describe()}; {gate}")
    click.echo(f"{len(loaded)} rule{'' if len(loaded) == 1 else 's'}, no mistake found")
