"""`natsproxy rules`: check a rules file, explain it for one frame, make rules of a recording."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path

import click

from natsproxy.addresses import Address, parse_address
from natsproxy.capture.format.records import Firing, Note
from natsproxy.capture.read.reader import open_capture
from natsproxy.cli.exits import CouldNotRun, FoundWrong
from natsproxy.cli.paths import FilePath
from natsproxy.cli.rules_list import list_words
from natsproxy.config.build import read_text, rules_file, rules_in
from natsproxy.errors import ConfigError, NatsproxyError
from natsproxy.protocol.connect import Connect
from natsproxy.protocol.info import Info
from natsproxy.protocol.subjects import is_valid_subscribe
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.engine.explain import SERVER_ONLY, Explanation, SampleView, sample
from natsproxy.rules.engine.explain import explain as explain_frame
from natsproxy.rules.file.parser import load
from natsproxy.rules.file.serialize import exact_rules, to_toml
from natsproxy.rules.file.values import direction as read_direction
from natsproxy.rules.file.values import op as read_op
from natsproxy.rules.kinds import KINDS
from natsproxy.rules.model.rule import Rule
from natsproxy.rules.model.selector import SENDABLE, WITH_SUBJECT
from natsproxy.wire.ops import Op

_FILE = click.argument("file", type=FilePath())


@click.group()
def rules() -> None:
    """Check rules files, explain them for a frame, list what they may say."""


def _text(file: Path) -> tuple[str, Path]:
    """Return the text of a file (standard input for `-`) and its name for error messages."""
    if file != Path("-"):
        return read_text(file, "rules"), file
    try:
        return (sys.stdin.buffer.read().decode() if sys.stdin is not None else ""), Path("standard input")
    except UnicodeDecodeError as error:
        raise ConfigError(f"standard input: not valid TOML: {error}") from None


def _load(file: Path) -> tuple[Rule, ...]:
    return RuleChain(rules_in(*_text(file))).rules


@rules.command()
@_FILE
@click.option("--json", "as_json", is_flag=True, help="One JSON object per rule.")
def check(file: Path, as_json: bool) -> None:
    """Check a rules file.

    Exit code: 0 no mistake, 1 a mistake (one sentence names file, line and key), 2 no such file.

    \b
    natsproxy rules check faults.toml
    generate-faults | natsproxy rules check -
    """
    text, place = _text(file)
    try:
        loaded = RuleChain(rules_in(text, place)).rules
    except NatsproxyError as error:
        raise FoundWrong(str(error)) from None
    if as_json:
        for rule in loaded:
            gate = rule.gate.describe()
            facts = {"rule": rule.name, "kind": rule.kind, "selector": rule.selector.describe(), "gate": gate}
            click.echo(json.dumps(facts))
        return
    for rule in loaded:
        click.echo(f"{rule.name}: {rule.kind}, {rule.selector.describe()}; {rule.gate.describe()}")
    click.echo(f"{len(loaded)} rule{'' if len(loaded) == 1 else 's'}, no mistake found")


def _ip(_: click.Context, __: click.Parameter, value: str) -> str:
    """Return an IP address, with or without a port, in the form that a connection has it."""
    bare_ipv6 = value.count(":") > 1 and not value.startswith("[")
    try:
        address = parse_address(f"[{value}]" if bare_ipv6 else value, port=0)
        return str(Address(str(ip_address(address.host)), address.port))
    except ValueError:
        text = f"{value!r} is not an IP address, with or without a port ([::1]:4222)"
        raise click.BadParameter(text) from None


@rules.command()
@_FILE
@click.option("--op", default="PUB", show_default=True, help="The operation of the frame.")
@click.option("--subject", default="", help="Its subject.")
@click.option("--queue", default="", help="The queue of a SUB.")
@click.option("--reply", default="", help="The reply subject of a message.")
@click.option("--direction", "given", default=None, help="c2s or s2c, for an operation of both directions.")
@click.option("--client-name", default="", help="The name in CONNECT.")
@click.option("--client-user", default="", help="The user in CONNECT.")
@click.option("--client-lang", default="", help="The language in CONNECT.")
@click.option("--client-version", default="", help="The version in CONNECT.")
@click.option("--account", default="", help="The account that the server names in INFO.")
@click.option("--server", default="", help="The server's name in INFO.")
@click.option(
    "--address", default="127.0.0.1", metavar="IP[:PORT]", callback=_ip, help="The client's address."
)
@click.option(
    "--ordinal",
    default=1,
    type=click.IntRange(1),
    metavar="N",
    help="The connection's number, in order of accepting.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per rule.")
def explain(
    file: Path,
    op: str,
    subject: str,
    queue: str,
    reply: str,
    given: str | None,
    client_name: str,
    client_user: str,
    client_lang: str,
    client_version: str,
    account: str,
    server: str,
    address: str,
    ordinal: int,
    as_json: bool,
) -> None:
    """Explain which rules would act on a frame, on which condition and with which result.

    Notes name the differences from nats-server that only the server itself could avoid.

    \b
    natsproxy rules explain faults.toml --op PUB --subject orders.eu.1
    natsproxy rules explain faults.toml --op SUB --subject 'orders.>' --client-name billing
    """
    loaded = _load(file)
    try:
        frame_op = read_op(op)
        _check_subject(frame_op, _raw(subject))
        direction, frame = sample(frame_op, _raw(subject), queue=_raw(queue), reply=_raw(reply))
        direction = direction if given is None else read_direction(given)
        if not SENDABLE[direction] >> frame_op & 1:
            raise ValueError(f"{frame_op.label} never goes {direction.label}")
    except (ValueError, NatsproxyError) as error:
        raise CouldNotRun(f"no such frame exists: {error}") from None
    connect = Connect(name=client_name, user=client_user, lang=client_lang, version=client_version)
    someone = SampleView(connect, Info(remote_account=account, server_name=server), address, ordinal)
    steps = explain_frame(RuleChain(loaded), someone, direction, frame)
    if as_json:
        for step in steps:
            click.echo(json.dumps(_as_dict(step)))
        return
    for step in steps:
        click.echo(f"{'*' if step.acts else ' '} {step.rule.name} ({step.rule.kind}): {step.result}")
        if step.acts:
            click.echo(f"    {step.condition}")
    if not any(step.acts for step in steps):
        click.echo(f"No rule acts on {op.upper()} {subject}".rstrip() + ": it passes unchanged.")
    if any(step.acts and step.rule.kind in ("permissions", "deny", "rewrite") for step in steps):
        for sentence in SERVER_ONLY:
            click.echo(f"Note: {sentence}")


def _check_subject(op: Op, subject: bytes) -> None:
    if not WITH_SUBJECT >> op & 1:
        if subject:
            raise ValueError(f"{op.label} has no subject")
        return
    if not subject:
        raise ValueError(f"{op.label} needs a subject: --subject orders.new")
    if len(subject.split()) != 1 or (op == Op.SUB and not is_valid_subscribe(subject)):
        raise ValueError(f"{op.label} cannot have the subject {subject.decode(errors='replace')!r}")


def _as_dict(step: Explanation) -> dict[str, object]:
    return {
        "rule": step.rule.name,
        "kind": step.rule.kind,
        "acts": step.acts,
        "condition": step.condition,
        "result": step.result,
    }


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


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
        if isinstance(item, Firing):
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


rules.add_command(list_words)
