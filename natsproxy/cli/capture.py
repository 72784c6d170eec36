"""`natsproxy capture`: the group of the commands on captures."""

from __future__ import annotations

import click

from natsproxy.cli.lazy import LazyGroup


@click.group(
    cls=LazyGroup,
    places={
        "cat": "natsproxy.cli.cat:cat",
        "diff": "natsproxy.cli.diff:diff",
        "export": "natsproxy.cli.export:export",
        "import": "natsproxy.cli.export:import_text",
        "info": "natsproxy.cli.info:info",
        "recover": "natsproxy.cli.recover:recover",
        "verify": "natsproxy.cli.recover:verify",
    },
)
def capture() -> None:
    """Show, check and repair captures."""
