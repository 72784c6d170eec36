"""A group that imports a command when it is used, so that each command starts without the others."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import click


class LazyGroup(click.Group):
    """A group of commands that have modules of their own.  places: `module:function` of each, by its name."""

    def __init__(self, *args: Any, places: Mapping[str, str], **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self._places = places

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of the table.

        An installation may leave a package out: its command is then not listed.
        """
        return [name for name, place in self._places.items() if find_spec(place.partition(":")[0])]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        module, _, name = self._places.get(cmd_name, "").partition(":")
        if not module or find_spec(module) is None:
            return None
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the named command, or fail with the name of the nearest one."""
        name = args[0]
        # Options keep click's own message; completion must not print.
        if self.get_command(ctx, name) is None and name[:1] != "-" and not ctx.resilient_parsing:
            known = dict(_commands(self, ctx))
            near = difflib.get_close_matches(name, known, 1)
            all_names = f"there are {', '.join(self.list_commands(ctx))}"
            hint = f"did you mean '{known[near[0]]}'?" if near else all_names
            ctx.fail(f"there is no command {name!r}; {hint}")
        return super().resolve_command(ctx, args)


def _commands(group: click.Group, ctx: click.Context, before: str = "") -> Iterator[tuple[str, str]]:
    """Yield the last word and the full name of each command.

    A group's own commands come after those of its subgroups, so that they win in a dict.
    """
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        if isinstance(command, click.Group):
            yield from _commands(command, ctx, f"{before}{name} ")
    for name in group.list_commands(ctx):
        yield name, before + name
