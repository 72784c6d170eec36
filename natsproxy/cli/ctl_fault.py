"""`natsproxy ctl fault KIND`: a rule of any kind, for a time.

The options are those settings of the kind that the parser of rules reads; only the command of the named kind
is made.
"""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Sequence
from typing import Any, Final

import click

from natsproxy.cli.admin_client import AdminClient, admin_options, json_option
from natsproxy.rules.file.keys import IDENTITY, keys_of
from natsproxy.rules.file.serialize import value_to_toml
from natsproxy.rules.kinds import KINDS
from natsproxy.rules.model.rule import Kind, Setting

_IDENTITY: Final = {setting.name for setting in IDENTITY}


class _KindGroup(click.Group):
    """A group whose commands are the kinds of rules."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(KINDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        kind = KINDS.get(cmd_name) or KINDS.get(cmd_name.replace("-", "_"))
        return None if kind is None else _command(kind)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Kinds"):
            formatter.write_dl([(name, KINDS[name].text) for name in sorted(KINDS)])


@click.group(cls=_KindGroup, subcommand_metavar="KIND [OPTIONS]")
def fault() -> None:
    """Add a fault to a running proxy, for a time.

    natsproxy ctl fault KIND --help shows the options of a kind, natsproxy rules list KIND explains it.
    Without --for a fault lasts until natsproxy ctl rules remove NAME.

    \b
    natsproxy ctl fault latency --subject 'orders.>' --delay 200ms --for 30s
    natsproxy ctl fault drop --role publish-ack --first 1
    natsproxy ctl fault deny --subject 'secret.>' --client name=svc-a --for 2s
    """


def _command(kind: Kind) -> click.Command:
    settings = [setting for setting in keys_of(kind) if setting.name not in _IDENTITY]

    @admin_options
    @json_option
    def run(client: AdminClient, as_json: bool, name: str | None, lasts: str | None, **given: Any) -> None:
        table: dict[str, Any] = {"kind": kind.name} if name is None else {"name": name, "kind": kind.name}
        for setting in settings:
            if texts := given[_key(setting)]:
                table[setting.name] = value_of(setting, texts)
        made = client.ask("POST", "rules", {"rule": table, "for": lasts})
        click.echo(json.dumps(made) if as_json else made["rule"]["name"])

    text = f"{kind.text[0].upper()}{kind.text[1:]}.\n\n\b\n{_example(kind)}"
    command = click.command(name=kind.name, help=text)(run)
    command.params = [
        click.Option(
            ["--for", "lasts"], metavar="DURATION", help="Remove the fault after this time: 30s, 5m."
        ),
        click.Option(["--name"], metavar="NAME", help="Name of the rule; default: one is made up."),
        *(_option(setting) for setting in settings),
        *command.params,
    ]
    return command


def _example(kind: Kind) -> str:
    """Return the example of a kind as a command line."""
    table = tomllib.loads(kind.example)["rules"][0]
    words = ["natsproxy", "ctl", "fault", kind.name]
    for key, value in table.items():
        if key not in _IDENTITY:
            words += [_flag(key), value if isinstance(value, str) else value_to_toml(value)]
    return shlex.join([*words, "--for", "30s"])


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _key(setting: Setting) -> str:
    return f"setting_{setting.name}"


def _option(setting: Setting) -> click.Option:
    text = f"{setting.text[0].upper()}{setting.text[1:]}."
    return click.Option([_flag(setting.name), _key(setting)], multiple=True, metavar="VALUE", help=text)


def value_of(setting: Setting, texts: Sequence[str]) -> Any:
    """Return the value of a setting as a rules file has it, from the texts of its option.

    A text is TOML, a bare word, or KEY=VALUE for a table; several make a list or one table.
    """
    values = [_value(setting, text) for text in texts]
    if len(values) == 1:
        return values[0]
    if all(isinstance(value, dict) for value in values):
        return {key: item for value in values for key, item in value.items()}
    return values


def _value(setting: Setting, text: str) -> Any:
    key, equals, rest = text.partition("=")
    tried = [text] if not equals else [text, {key.strip(): rest.strip()}, {key.strip(): _toml(rest)}]
    for value in (_toml(text), *tried):
        try:
            setting.convert(value)
        except ValueError:
            continue
        return value
    return text  # the proxy says what is wrong with it


def _toml(text: str) -> Any:
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text
