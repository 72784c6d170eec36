"""`natsproxy replay`: the group of `to-server` and `to-client`."""

from __future__ import annotations

import click

from natsproxy.cli.lazy import LazyGroup


@click.group(
    cls=LazyGroup,
    places={
        "to-client": "natsproxy.cli.replay_to_client:to_client",
        "to-server": "natsproxy.cli.replay_to_server:to_server",
    },
)
def replay() -> None:
    """Play the clients of a capture to a server, or its server to clients."""
