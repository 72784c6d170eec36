"""Secrets of a proxy, each in a file or in an environment variable (`env:NAME`).

They are never on the command line, which everybody on the machine can read.  No error quotes a secret, nor
the name of a file that cannot be opened: it may be the secret itself, given by mistake.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from natsproxy import converters
from natsproxy.errors import ConfigError
from natsproxy.option import ValueType
from natsproxy.protocol.redaction import SEED

_T = TypeVar("_T")
VARIABLE: Final = "env:"
"""The beginning of a source that is a variable."""


def _secret_file(value: Any) -> Path:
    """Return the path of a file that holds a secret; no error quotes it."""
    try:
        return converters.path(value)
    except ValueError:
        raise ValueError("must be the name of a file") from None


def _secret(value: Any) -> str:
    """Return the name of a file that holds a secret, or env:NAME of a variable; no error quotes it."""
    with suppress(ValueError):
        text = converters.line(value)
        if not SEED.search(text):
            return text
    raise ValueError("must be a file or env:NAME, not the secret itself: all users of a machine can see it")


SECRET_FILE: Final = ValueType(_secret_file, "FILE", secret=True)
"""A file alone."""
SECRET: Final = ValueType(_secret, "FILE", secret=True)
"""A file or a variable."""


def read_secret(source: str, title: str, read: Callable[[str], _T]) -> _T:
    """Return what a file, or the variable of env:NAME, says.

    title: names it in errors.  read: takes the text; raises ValueError with the end of a sentence that begins
    with the name of the file.  Raises ConfigError.
    """
    text = _text(source, title)
    try:
        return read(text)
    except ValueError as error:
        raise ConfigError(f"{title} {source} {error}") from None


def _text(source: str, title: str) -> str:
    if source.startswith(VARIABLE):
        text = os.environ.get(source.removeprefix(VARIABLE))
        if not text:
            raise ConfigError(f"the variable that {title} names is not set")
        return text
    try:
        (path,) = file_of(source)
        return path.read_text()
    except OSError as error:
        reason = error.strerror
    except UnicodeDecodeError:
        raise ConfigError(f"{title} {source} is not text") from None
    except (ValueError, RuntimeError):  # bytes that no name has, or the home of no user
        reason = "it is not a valid file name"
    raise ConfigError(f"cannot read the file that {title} names: {reason}")


def file_of(source: str | None) -> tuple[Path, ...]:
    """Return the file that a source names; none for a variable, and for no source."""
    return () if source is None or source.startswith(VARIABLE) else (Path(source).expanduser(),)


def opens(source: str | Path) -> bool:
    """Tell whether there is a file that can be read, or for env:NAME a variable."""
    if str(source).startswith(VARIABLE):
        return bool(os.environ.get(str(source).removeprefix(VARIABLE)))
    try:
        file = Path(source).expanduser()
        return os.access(file, os.R_OK) and not file.is_dir()
    except (ValueError, RuntimeError):  # bytes that no name has, or the home of no user
        return False
