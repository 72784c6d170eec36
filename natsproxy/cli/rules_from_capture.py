"""`natsproxy rules from-capture`: the rules of a recording, made exact by its firings."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from natsproxy.capture.format.records import FiringRecord, Note
from natsproxy.capture.read.reader import open_capture
from natsproxy.cli.exits import CouldNotRun
from natsproxy.cli.paths import FilePath
from natsproxy.config.files import rules_file
from natsproxy.rules.file.parser import load
from natsproxy.rules.file.serialize import exact_rules, to_toml
from natsproxy.rules.kinds import KINDS
from natsproxy.rules.model.rule import Rule


@click.command("from-capture")
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
