"""`natsproxy rules`: check a rules file, try it on a frame or a recording, make rules of a recording."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import click

from natsproxy.capture.format.records import FiringRecord, Note
from natsproxy.capture.read.reader import open_capture
from natsproxy.cli.exits import CouldNotRun, FoundWrong
from natsproxy.cli.paths import FilePath
from natsproxy.cli.rules_cookbook import cookbook
from natsproxy.cli.rules_explain import explain
from natsproxy.cli.rules_file import rules_source
from natsproxy.cli.rules_list import list_words
from natsproxy.cli.rules_promote import promote
from natsproxy.cli.rules_test import test
from natsproxy.config.files import rules_file
from natsproxy.errors import NatsproxyError
from natsproxy.rules.file.parser import load
from natsproxy.rules.file.serialize import exact_rules, to_toml
from natsproxy.rules.kinds import KINDS
from natsproxy.rules.model.rule import Rule


@click.group()
def rules() -> None:
    """Check rules files, try them on a frame or on recordings, list what they may say."""


@rules.command()
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


@rules.command("from-capture")
@click.argument("capture", type=FilePath())
@click.option("--rules", "file", type=FilePath(), help="The rules, if the capture has none.")
def from_capture(capture: Path, file: Path | None) -> None:
    """Print the rules of a recording; each gate names exactly the matches that fired.

    A rule counts its matches from the moment it came into force.  A comment marks each rule that came into
    force during the recording: played again, it counts from the start of each connection.

    \b
    natsproxy rules from-capture chaos.ncap > again.toml
    natsproxy run --rules again.toml --seed SEED
    """
    reader = open_capture(capture)
    firings, texts = [], [segment.rules or "" for segment in reader.segments()]
    at_start = len(texts)
    for _, item in reader.items():
        if isinstance(item, FiringRecord):
            firings.append(item.info)
        elif isinstance(item, Note) and "rules" in item.info:
            texts.append(str(item.info["rules"]))
    if file is None and not any(texts):
        raise CouldNotRun(f"{capture} holds no rules: name them with --rules FILE")
    chains = [load(text, KINDS, source=str(capture)) if text else () for text in texts]
    loaded = rules_file(file) if file is not None else _all_of(chains)
    seed = next(reader.segments()).seed
    click.echo(f"# {len(firings)} firings recorded; to repeat them: --seed {seed}")
    first = {rule.name for rule in _all_of(chains[:at_start])}
    for rule in loaded:
        if file is None and rule.name not in first:
            click.echo(f"# {rule.name!r} came into force during the recording and counts from there")
    click.echo(to_toml(exact_rules(loaded, firings)), nl=False)


def _all_of(chains: Iterable[Iterable[Rule]]) -> tuple[Rule, ...]:
    """Return the rules of all chains of a recording, each in its last version."""
    return tuple({rule.name: rule for chain in chains for rule in chain}.values())


rules.add_command(cookbook)
rules.add_command(explain)
rules.add_command(list_words)
rules.add_command(promote)
rules.add_command(test)
