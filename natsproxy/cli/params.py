"""Parameter types, options and output that the replay and cassette commands share."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import click

from natsproxy.capture.format.connection import ConnectionChoice
from natsproxy.cli.paths import FilePath
from natsproxy.converters import duration_or_seconds
from natsproxy.errors import ConfigError
from natsproxy.protocol.credentials import Credentials, read_credentials
from natsproxy.protocol.secret_files import read_secret
from natsproxy.replay.client_playback import credentials as creds

URL: Final = "URL"
"""The placeholder of a server: nats://HOST:PORT, or another of its schemes."""


class Seconds(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.2, not before
    """A duration such as "250ms" or "1m30s", or a number of seconds; its value is in seconds."""

    name = "DURATION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds; fail with a message that shows both forms."""
        try:
            return duration_or_seconds(value) / 1e9
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Speed(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.2, not before
    """A factor of the recorded speed, or `max`, whose value is None."""

    name = "FACTOR|max"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | None:
        """Return the factor; fail with a message that shows both forms."""
        if value == "max":
            return None
        try:
            speed = float(value)
        except ValueError:
            speed = 0
        if not 0.001 <= speed <= 10_000:
            self.fail(f"{value!r} is neither a factor (0.1, 1, 100) nor max", param, ctx)
        return speed


def parse_credentials(options: dict[str, Any]) -> creds.ReplayCredentials:
    """Return the credentials of --creds, --user and --map-user.

    Raises ConfigError for a value that cannot be read.
    """
    own = Credentials()
    if options["creds"]:
        own = read_secret(str(options["creds"]), "creds", read_credentials)
    elif options["user"]:
        own = creds.from_user(options["user"])
    users = {}
    for entry in options["map_user"]:
        recorded, equals, text = entry.partition("=")
        if not equals:
            # The value itself is not quoted: it holds a password.
            raise ConfigError("a value of --map-user is not RECORDED=USER:PASSWORD")
        users[recorded] = creds.from_user(text)
    return creds.ReplayCredentials(own, users)


def parse_connections(text: str) -> ConnectionChoice:
    """Return the connections of a list such as `1,2,3:5`.

    Raises ConfigError for any other text.
    """
    try:
        return ConnectionChoice.parse(part for part in text.split(",") if part.strip())
    except ValueError:
        reason = "is not a list of connection numbers, 1,2,5, or of those of one run, 3:1"
        raise ConfigError(f"--connections {text!r} {reason}") from None


_REPORT_OPTIONS: Final = (
    click.option("--record", type=FilePath(), help="Record the playback to this file, x.ncap."),
    click.option("--report", is_flag=True, help="Compare the playback with the capture."),
    click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object."),
    click.option("--quiet", is_flag=True, help="Show no progress."),
)


def report_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options about the result of a playback to a command."""
    for option in reversed(_REPORT_OPTIONS):  # `--help` lists options in reverse order of decoration
        command = option(command)
    return command


def show_facts(facts: dict[str, Any], as_json: bool) -> None:
    """Print a result as JSON, or as lines for a person."""
    if as_json:
        click.echo(json.dumps(facts))
        return
    for key, value in facts.items():
        shown = f"{value:,}" if isinstance(value, int | float) else value
        click.echo(f"{key.replace('_', ' '):>22}  {shown}")
