"""The command line: one file per command, loaded when it is asked for."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import click
from click.shell_completion import CompletionItem

from natsproxy import __version__
from natsproxy.cli.exits import GuardedGroup

COMMANDS = {
    "run": ("natsproxy.cli.run:run", "Relay between clients and a server."),
    "config": ("natsproxy.cli.config:config", "Print the settings of natsproxy run."),
    "capture": ("natsproxy.cli.capture:capture", "Look into captures, check and mend them."),
    "rules": ("natsproxy.cli.rules:rules", "Check rules, ask what they would do, list what they can."),
    "replay": ("natsproxy.cli.replay:replay", "Play clients to a server, or the server to clients."),
    "cassette": ("natsproxy.cli.cassette:cassette", "Run programs against captures in place of a server."),
    "analyze": ("natsproxy.cli.analyze:analyze", "Write the tables of captures as Parquet, with Spark."),
}
"""Where each command lives, and what it is for: help and completion load none of them."""


class _Lazy(GuardedGroup):
    """Loads a command's module only when it is used, so that `--help` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, (place, _) in COMMANDS.items() if find_spec(place.partition(":")[0])]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place, _ = COMMANDS.get(cmd_name, ("", ""))
        module, _, name = place.partition(":")
        if not module or find_spec(module) is None:
            return None
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names of commands, or of the few options that stand before them."""
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        found = [CompletionItem(name, help=COMMANDS[name][1]) for name in names]
        return found + click.Command.shell_complete(self, ctx, incomplete)


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Stand between NATS clients and nats-server: record, replay, rules and faults.

    \b
    natsproxy run --upstream nats://127.0.0.1:4223 --record traffic.ncap
    natsproxy capture cat traffic.ncap
    natsproxy rules list

    \b
    Exit codes, of every command:
      0    done; a service that a signal ended in good order, too
      1    what it looked at is wrong: damage, a difference, a mistake in rules
      2    it could not run: usage, a missing file, nobody at the address
      130  a signal broke the work off
    """
