"""The command line: arguments in, calls to the packages below, text and an exit code out.

Each command has one file; `COMMANDS` names it, and it is imported when the command runs.  No other package
imports click.  `options` makes flags of settings; `params`, `filters`, `paths` and `table` hold the other
shared options and output, `exits` turns errors and signals into exit codes, `foreground` runs trio code until
a signal stops it, `service` and `supervision` are the process of `run`.

Read `exits` first (the promises that hold for every command), then `run`.
"""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from natsproxy import __version__
from natsproxy.cli.exits import GuardedGroup
from natsproxy.cli.lazy import LazyGroup

COMMANDS = {
    "run": ("natsproxy.cli.run:run", "Relay between clients and a server."),
    "config": ("natsproxy.cli.config:config", "Print the settings of natsproxy run."),
    "toxiproxy": ("natsproxy.cli.toxiproxy:toxiproxy", "Serve Toxiproxy's HTTP API over proxies for NATS."),
    "ctl": ("natsproxy.cli.ctl:ctl", "Steer a running proxy."),
    "top": ("natsproxy.cli.top:top", "Show the connections of a running proxy."),
    "tap": ("natsproxy.cli.tap:tap", "Print the frames that pass a running proxy."),
    "healthcheck": (
        "natsproxy.cli.healthcheck:healthcheck",
        "Check whether a proxy is ready, by the exit code.",
    ),
    "cert": ("natsproxy.cli.cert:cert", "Make a CA and certificates for trying out TLS."),
    "capture": ("natsproxy.cli.capture:capture", "Show, check and repair captures."),
    "check": ("natsproxy.cli.check:check", "Find what went wrong in the traffic of captures."),
    "verify": ("natsproxy.cli.verify:verify", "Check the signed stamps of messages: who published them."),
    "permissions": (
        "natsproxy.cli.permissions:permissions",
        "Write the permissions that the traffic of captures needs.",
    ),
    "rules": ("natsproxy.cli.rules:rules", "Check and explain rules, list their kinds."),
    "help": ("natsproxy.cli.help:help_", "Print the help of a topic or a command."),
    "replay": ("natsproxy.cli.replay:replay", "Play clients to a server, or the server to clients."),
    "cassette": ("natsproxy.cli.cassette:cassette", "Run programs against captures in place of a server."),
    "sweep": ("natsproxy.cli.sweep:sweep", "Find the frame whose loss breaks a program."),
    "analyze": ("natsproxy.cli.analyze:analyze", "Write the tables of captures as Parquet, with Spark."),
}
"""Module and one-line help of each command, so that help and completion need not import the commands."""


class _TopGroup(LazyGroup, GuardedGroup):
    """The group of `COMMANDS`, whose help imports none of them."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a command, or one of the options before it."""
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        found = [CompletionItem(name, help=COMMANDS[name][1]) for name in names]
        return found + click.Command.shell_complete(self, ctx, incomplete)


@click.group(
    cls=_TopGroup,
    places={name: place for name, (place, _) in COMMANDS.items()},
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__)
def main() -> None:
    """Proxy between NATS clients and nats-server: record, replay, change and break traffic.

    \b
    natsproxy run --upstream nats://127.0.0.1:4223 --record traffic.ncap
    natsproxy capture cat traffic.ncap
    natsproxy rules list
    natsproxy help

    Exit codes are the same for all commands: natsproxy help exit-codes
    """
