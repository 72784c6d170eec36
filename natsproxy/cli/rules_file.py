"""Rules as arguments of commands: a rules file, `-` for standard input, or a configuration file."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from natsproxy.cli.paths import FilePath
from natsproxy.config.files import inline_rules, read_text, rules_in
from natsproxy.errors import ConfigError
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.model.rule import Rule


def rules_text(file: Path) -> tuple[str, Path]:
    """Return the text of a file (standard input for `-`) and its name for error messages."""
    if file != Path("-"):
        return read_text(file, "rules"), file
    try:
        return (sys.stdin.buffer.read().decode() if sys.stdin is not None else ""), Path("standard input")
    except UnicodeDecodeError as error:
        raise ConfigError(f"standard input: not valid TOML: {error}") from None


def rules_source(command: Callable[..., None]) -> Callable[..., None]:
    """Add FILE and --config to a command; it gets `read`, which returns the rules of the one that is given.

    `read` raises ConfigError for a mistake; a file that cannot be read is a ConfigError before that.
    """

    @functools.wraps(command)
    def with_rules(file: Path | None, config: Path | None, **values: Any) -> None:
        if (file is None) == (config is None):
            raise click.UsageError("give a rules FILE, or else --config FILE")
        command(read=_reader(file, config), **values)

    option = click.option(
        "--config", type=FilePath(), help="Take the [[rules]] of this configuration file of natsproxy run."
    )
    return click.argument("file", required=False, type=FilePath())(option(with_rules))


def _reader(file: Path | None, config: Path | None) -> Callable[[], tuple[Rule, ...]]:
    if file is not None:
        text, place = rules_text(file)
        return lambda: RuleChain(rules_in(text, place)).rules
    assert config is not None
    read_text(config, "configuration")
    return lambda: RuleChain(inline_rules(config) or ()).rules
