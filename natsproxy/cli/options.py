"""Settings as flags of a command, and their values as text with the source of each.

No value that is shown is a secret.  Options for secrets hold the name of a file or of a variable; one that
leads to nothing may be the secret itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from natsproxy.config.settings import OPTIONS, TLS_OPTIONS
from natsproxy.errors import ConfigError
from natsproxy.option import Option
from natsproxy.protocol.secret_files import opens

_Command = TypeVar("_Command", bound=Callable[..., None])
_OF_LISTENERS = ("tls_cert", "tls_key", "tls_ca")


class OptionType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.2, not before
    """The type of a setting's values as a parameter type of click."""

    def __init__(self, option: Option) -> None:
        self.name = option.metavar
        self._read = option.read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the typed value; fail with the sentence of its reader."""
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


def setting_flag(
    option: Option, name: str = "", *, read: bool = True, negatable: bool = False, **attributes: Any
) -> Callable[[_Command], _Command]:
    """Return a decorator that adds a setting to a command, which gets it by `Option.key`.

    name: of the flag, where it is not the setting's.  read: the command gets typed values, else texts.
    negatable: an on/off setting has `--no-NAME` too.  attributes: others of `click.option`.
    """
    flag = f"--{name or option.name}"
    if option.flag and negatable:
        flag += f"/--no-{option.name}"
    elif option.flag:
        attributes["is_flag"] = True
    else:
        attributes |= {"metavar": option.metavar, "multiple": option.many}
        attributes |= {"type": OptionType(option)} if read else {}
    text = attributes.pop("help", option.help) + ("  (repeatable)" if option.many else "")
    return click.option(flag, *attributes.pop("short", ()), option.key, help=text, **attributes)


def tls_options(*, listen: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds the options of TLS to a command; it gets them as `tls`, by key.

    listen: also those of a listener.
    """
    own = _OF_LISTENERS if listen else ()
    options = [one for one in TLS_OPTIONS.values() if one.key.startswith("upstream_") or one.key in own]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def with_tls(*args: Any, **values: Any) -> None:
            command(*args, tls={option.key: values.pop(option.key) for option in options}, **values)

        for option in reversed(options):  # `--help` lists options in reverse order of decoration
            with_tls = setting_flag(option)(with_tls)
        return with_tls

    return decorate


_SOURCES = {
    ParameterSource.COMMANDLINE: "flag",
    ParameterSource.ENVIRONMENT: "environment",
    ParameterSource.DEFAULT_MAP: "file",
    ParameterSource.DEFAULT: "default",
}
Rows = dict[str, dict[str, Any]]
"""From the names of settings to `value` and `source`; `note` where the value is not shown."""
_UNOPENED = "cannot be opened, and is not shown"


def shown_settings(context: click.Context, *, plain_sizes: bool) -> Rows:
    """Return value and source of each setting in the context of `run`.

    plain_sizes: sizes are numbers of bytes, not texts.
    """
    rows: Rows = {}
    for option in OPTIONS:
        source = context.get_parameter_source(option.key)
        show = None if plain_sizes and option.metavar == "SIZE" else option.type.show
        value = _plain(context.params[option.key], show)
        row = {"value": value, "source": _SOURCES[source] if source else "default"}
        if option.type.secret and value is not None and not opens(value):
            row |= {"value": None, "note": _UNOPENED}
        rows[option.name] = row
    return rows


def _plain(value: Any, show: Callable[[Any], str] | None) -> Any:
    """Return a value as JSON and TOML can hold it.  show: writes it as text."""
    if isinstance(value, tuple):
        return [_plain(one, show) for one in value]
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if show is not None and value is not None:
        return show(value)
    return value if value is None or isinstance(value, bool | int) else str(value)
