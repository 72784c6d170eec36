"""The options of the comparison as flags and as a TOML file, for the commands that play or compare."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click

from natsproxy.capture.filter.filters import SUBJECT
from natsproxy.cli.options import setting_flag
from natsproxy.cli.paths import FilePath
from natsproxy.config.files import line_of, read_document
from natsproxy.errors import ConfigError
from natsproxy.option import Option
from natsproxy.replay.conversation.match_options import OPTIONS, Given, combine, read


def match_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of the comparison to a command; it gets them as one argument, `options`."""

    @functools.wraps(command)
    def with_options(*args: Any, config: Path | None, **values: Any) -> None:
        flags = {option.name: values.pop(option.key) for option in OPTIONS}
        given = read({name: value for name, value in flags.items() if value not in (None, ())}, "--")
        options = given if config is None else combine(_read_file(config), given)
        command(*args, options=options, **values)

    return click.option(
        "--config",
        type=FilePath(),
        help='Options of the comparison, from a TOML file: ignore_json = ["orders.> /ts"].',
    )(_with_flags(with_options, OPTIONS))


def _with_flags(command: Callable[..., None], options: Sequence[Option]) -> Callable[..., None]:
    for option in reversed(options):  # `--help` lists options in reverse order of decoration
        shown = f"{option.help}  [{'on' if option.default else 'off'}]"
        more: dict[str, Any] = {"help": shown, "default": None} if option.flag else {}
        command = setting_flag(option, read=False, negatable=True, **more)(command)
    return command


_SUBJECTS: Final = Option("ignore-subjects", SUBJECT, None, "Do not compare this subject.", many=True)


def ignored_subjects(command: Callable[..., None]) -> Callable[..., None]:
    """Add the subjects that a comparison of captures leaves out; the command gets `subjects`."""

    @functools.wraps(command)
    def with_subjects(*args: Any, **values: Any) -> None:
        texts = values.pop(_SUBJECTS.key)
        try:
            subjects = tuple(_SUBJECTS.read(text) for text in texts)
        except ValueError as error:
            raise ConfigError(f"--{_SUBJECTS.name} {error}") from None
        command(*args, subjects=subjects, **values)

    return _with_flags(with_subjects, (_SUBJECTS,))


def _read_file(path: Path) -> Given:
    """Return the options of a TOML file.  Raises ConfigError that names the line of a mistake."""
    text, document = read_document(path)
    given: Given = {}
    for key, value in document.items():
        given |= read({key: value}, f"{path}:{line_of(key.replace('_', '-'), text)}: ")
    return given
