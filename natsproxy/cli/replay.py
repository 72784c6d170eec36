"""`natsproxy replay`: the group of `to-server` and `to-client`."""

from __future__ import annotations

import click

from natsproxy.cli.replay_to_client import to_client
from natsproxy.cli.replay_to_server import to_server


@click.group()
def replay() -> None:
    """Play the clients of a capture to a server, or its server to clients."""


replay.add_command(to_server)
replay.add_command(to_client)
