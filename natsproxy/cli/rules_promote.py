"""`natsproxy rules promote`: rules in shadow put in force, and what that would have broken."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click

from natsproxy.cli.admin_client import AdminClient, optional_admin
from natsproxy.cli.exits import CouldNotRun
from natsproxy.cli.paths import FilePath, tell_lost
from natsproxy.cli.rules_file import rules_text
from natsproxy.config.files import rules_in
from natsproxy.errors import Exit
from natsproxy.events import SHADOWED
from natsproxy.printable import printable
from natsproxy.protocol.template import template
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import parse_rules
from natsproxy.rules.file.serialize import to_toml
from natsproxy.rules.kinds import KINDS
from natsproxy.rules.model.rule import Rule
from natsproxy.trial.promotion import broken, enforced, shadowed, text_enforced
from natsproxy.trial.rehearsal import Rehearsal
from natsproxy.trial.report import FrameRange, Key, Report, row_facts


class _ShadowFirings(NamedTuple):
    """The firings of rules in shadow, told in both ways.

    broken: of all.  of: where, for people.  lines: one for each sort of frame.  facts: for JSON.
    """

    broken: int
    of: str
    lines: list[str]
    notes: list[str]
    facts: dict[str, Any]


@click.command()
@click.argument("file", required=False, type=FilePath())
@click.argument("captures", nargs=-1, type=FilePath())
@optional_admin
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random numbers.")
def promote(
    file: Path | None,
    captures: tuple[Path, ...],
    connect: Callable[[], AdminClient],
    as_json: bool,
    seed: int,
) -> None:
    """Print a rules file without shadow, and what that would have broken.

    With CAPTURES: on recordings, those of the time of shadow or any others.  Without: at the running proxy
    that --admin names, since its start; its own rules are printed where FILE is not given.  A comment above
    the rules has each rule, frames and client that would have been denied and, of recordings, what would not
    have come after that.
    Exit code: 0 nothing would have broken, 1 something would, 2 could not run.

    \b
    natsproxy rules promote shadow.toml monday.ncap > rules.toml
    natsproxy rules promote shadow.toml traffic/ --json
    natsproxy rules promote shadow.toml --admin http://127.0.0.1:8080
    """
    client = None if captures else connect()
    if file is not None:
        text, source = rules_text(file)
        rules = RuleChain(rules_in(text, source)).rules
    else:
        assert client is not None
        source, answer = Path(client.url), client.ask("GET", "rules")
        rules = parse_rules([row["rule"] for row in answer["rules"] if row["enabled"]], KINDS)
        text = to_toml(rule.table for rule in rules)
    names = shadowed(rules)
    if not names:
        raise CouldNotRun(f'{source}: no rule is in shadow (mode = "shadow")')
    found = _of_captures(rules, names, captures, seed) if client is None else _of_proxy(rules, names, client)
    if as_json:
        click.echo(json.dumps({**found.facts, "limits": found.notes, "rules": text_enforced(text)}))
    else:
        would = f"{found.broken or 'nothing'}{':' if found.broken else ''}"
        click.echo(f"# {found.of}: these rules would have broken {would}")
        for line in found.lines:
            click.echo(printable(f"# {line}"))
        for note in found.notes:
            click.echo(f"# Note: {note}")
        click.echo(text_enforced(text), nl=False)
    raise SystemExit(Exit.FOUND_WRONG if found.broken else Exit.OK)


def _of_captures(
    rules: tuple[Rule, ...], names: frozenset[str], captures: tuple[Path, ...], seed: int
) -> _ShadowFirings:
    chain = RuleChain(enforced(rules))
    rehearsal, report = Rehearsal(chain.rules, seed=seed), Report(chain.rules, ())
    for capture in captures:
        for one in rehearsal.run(capture, tell_lost):
            report.add(one)
    rows = broken(report, names)
    facts = {"frames": report.frames, "broken": [row_facts(key, row) for key, row in rows]}
    count = sum(row.count for _, row in rows)
    lines = [_line(key, row) for key, row in rows]
    return _ShadowFirings(count, f"{report.frames} frames", lines, report.limits(rehearsal.missing), facts)


def _line(key: Key, row: FrameRange) -> str:
    times = f"{row.first.t / 1e9:.6f} s" + (f" to {row.last.t / 1e9:.6f} s" if row.count > 1 else "")
    return f"{key.rule}: {key.verdict}: {row.count} {key.what} of {key.client}, {times}"


def _of_proxy(rules: tuple[Rule, ...], names: frozenset[str], client: AdminClient) -> _ShadowFirings:
    """Return what a running proxy has counted in shadow.  Raises CouldNotRun where it has other rules."""
    running = {row["rule"]["name"]: row for row in client.ask("GET", "rules")["rules"]}
    for rule in rules:
        if rule.name in names:
            _refuse_other(rule, running.get(rule.name))
    counts = {name: running[name]["would_fire"] for name in sorted(names)}
    sorts = Counter[tuple[str, ...]]()
    times: dict[tuple[str, ...], list[str]] = {}
    latest = [client.ask("GET", "firings", query={"rule": name, "limit": 200}) for name in counts]
    for one in (one for answer in latest for one in answer["firings"]):
        if one["action"] in SHADOWED:
            subject = template(one["subject"].encode()).decode("utf-8", "replace")
            sort = (one["rule"], one["action"], f"{one['op']} {subject}".rstrip(), one["key"])
            sorts[sort] += one["count"]
            times.setdefault(sort, []).append(one["time"])
    rows: list[dict[str, Any]] = [
        {
            **dict(zip(Key._fields, sort, strict=True)),
            "count": number,
            "first": times[sort][0],
            "last": times[sort][-1],
        }
        for sort, number in sorted(sorts.items())
    ]
    notes = []
    for name, number in counts.items():
        kept = sum(row["count"] for row in rows if row["rule"] == name)
        if kept < number:
            notes.append(f"{name}: of {number} firings the proxy has kept {kept}")
    lines = [
        "{rule}: {verdict}: {count} {what} of {client}, {first}".format_map(row)
        + (f" to {row['last']}" if row["count"] > 1 else "")
        for row in rows
    ]
    traffic = client.ask("GET", "traffic", query={"limit": 0})
    messages = traffic["in_msgs"] + traffic["out_msgs"]
    facts = {"messages": messages, "counts": counts, "broken": rows}
    return _ShadowFirings(
        sum(counts.values()), f"{messages} messages through {client.url}", lines, notes, facts
    )


def _refuse_other(rule: Rule, running: dict[str, Any] | None) -> None:
    """Refuse a rule that the running proxy has not had in shadow: it has counted nothing of it."""
    why = None
    if running is None:
        why = "it is not among its rules"
    elif running["rule"] != rule.as_json():
        why = "there it says something else"
    elif not running["enabled"]:
        why = "it is disabled there"
    if why is not None:
        raise CouldNotRun(f"the proxy has not tried rule {rule.name!r}: {why}")
