"""A group whose command without a name is `list`."""

from __future__ import annotations

import click


class ListByDefault(click.Group):
    """A group of which `list` runs where no command is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `list` before options, and where there is nothing."""
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)
