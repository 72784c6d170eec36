"""The options of the comparison as flags and as a TOML file, for the commands that play a server."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from natsproxy.cli.paths import FilePath
from natsproxy.config.build import line_of, read_document
from natsproxy.replay.conversation.match_options import OPTIONS, Given, combine, read


def match_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of the comparison to a command; it gets them as one argument, `options`."""

    @functools.wraps(command)
    def with_options(*args: Any, config: Path | None, **values: Any) -> None:
        flags = {option.name: values.pop(option.key) for option in OPTIONS}
        given = read({name: value for name, value in flags.items() if value not in (None, ())}, "--")
        options = given if config is None else combine(_read_file(config), given)
        command(*args, options=options, **values)

    for option in reversed(OPTIONS):  # `--help` lists options in reverse order of decoration
        name = f"--{option.name}"
        if option.flag:
            flag = click.option(f"{name}/--no-{option.name}", default=None, help=f"{option.help}  [on]")
        else:
            help_text = f"{option.help}  (repeatable)"
            flag = click.option(name, multiple=option.many, metavar=option.metavar, help=help_text)
        with_options = flag(with_options)
    return click.option(
        "--config",
        type=FilePath(),
        help='The options of the comparison from a TOML file: ignore_json = ["orders.> /ts"].',
    )(with_options)


def _read_file(path: Path) -> Given:
    """Return the options of a TOML file.  Raises ConfigError that names the line of a mistake."""
    text, document = read_document(path)
    given: Given = {}
    for key, value in document.items():
        given |= read({key: value}, f"{path}:{line_of(key.replace('_', '-'), text)}: ")
    return given
