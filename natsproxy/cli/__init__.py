"""The command line: one file per command, loaded when it is asked for."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import click

from natsproxy import __version__
from natsproxy.cli.exits import GuardedGroup

COMMANDS = {
    "run": "natsproxy.cli.run:run",
    "config": "natsproxy.cli.config:config",
    "capture": "natsproxy.cli.capture:capture",
    "rules": "natsproxy.cli.rules:rules",
    "replay": "natsproxy.cli.replay:replay",
    "cassette": "natsproxy.cli.cassette:cassette",
    "analyze": "natsproxy.cli.analyze:analyze",
}
"""Where each command lives."""


class _Lazy(GuardedGroup):
    """Loads a command's module only when it is used, so that `--help` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, place in COMMANDS.items() if find_spec(place.partition(":")[0])]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = COMMANDS.get(cmd_name)
        module, _, name = (place or "").partition(":")
        if not module or find_spec(module) is None:
            return None
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command


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
