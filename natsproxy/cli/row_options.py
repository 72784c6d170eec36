"""Rows of tables of options as flags of a command: their type, and the flags of TLS."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from natsproxy.config.settings import TLS_OPTIONS
from natsproxy.errors import ConfigError
from natsproxy.option import Option

_OF_LISTENERS = ("tls_cert", "tls_key", "tls_ca")


class OptionType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.2, not before
    """A parameter type that reads values with the function of a table row."""

    def __init__(self, option: Option) -> None:
        self.name = option.metavar
        self._read = option.read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the typed value; fail with the sentence of the row's function."""
        try:
            return self._read(value)
        except (ValueError, ConfigError) as error:
            self.fail(str(error), param, ctx)

    def split_envvar_value(self, rv: str) -> list[str]:
        """Return the values of a variable: words, or lines where a value may have blanks."""
        return rv.splitlines() if " " in self.name else rv.split()

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Complete file names, or the words of a metavar such as `none|zstd`."""
        if self.name in ("FILE", "PATH"):
            return [CompletionItem(incomplete, type="file")]
        words = self.name.split("|") if "|" in self.name else []
        return [CompletionItem(word) for word in words if word.startswith(incomplete)]


def tls_options(*, listen: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds the options of TLS to a command; it gets them as `tls`, by key.

    listen: also those of a listener.
    """
    own = _OF_LISTENERS if listen else ()
    rows = [row for row in TLS_OPTIONS.values() if row.key.startswith("upstream_") or row.key in own]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def with_tls(*args: Any, **values: Any) -> None:
            command(*args, tls={row.key: values.pop(row.key) for row in rows}, **values)

        for row in reversed(rows):  # `--help` lists options in reverse order of decoration
            kind: dict[str, Any] = {"is_flag": True}
            if not row.flag:
                kind = {"metavar": row.metavar, "type": OptionType(row)}
            with_tls = click.option(f"--{row.name}", help=row.help, **kind)(with_tls)
        return with_tls

    return decorate
