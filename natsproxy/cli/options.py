"""Settings as flags of a command."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from natsproxy.config.settings import TLS_OPTIONS
from natsproxy.errors import ConfigError
from natsproxy.option import Option

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
