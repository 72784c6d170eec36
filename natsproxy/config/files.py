"""Configuration files: TOML to option values, and the rules in it or in a file of their own.

The keys of a configuration are the names of the options, on one level or in tables (`[record] flush = "1s"`
is `record-flush`, `[record] path = ...` is `record`); `[[rules]]` stand in it too.  The message of a
mistake is one sentence with file, line, key and the nearest name.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from natsproxy.config.fitting import Fitting
from natsproxy.config.settings import OPTIONS
from natsproxy.errors import ConfigError, Mistakes
from natsproxy.rules.file.parser import ONE_TABLE, load, parse_rules
from natsproxy.rules.file.reader import RulePlaces
from natsproxy.rules.kinds import KINDS
from natsproxy.rules.model.rule import Rule

_BY_NAME = {option.name: option for option in OPTIONS}


def read_file(path: Path) -> dict[str, Any]:
    """Return the option values of a configuration file, unread, by `Option.key`.

    Raises ConfigError for a file that cannot be read, and with all mistakes in it.
    """
    found, mistakes = checked_file(path)
    mistakes.refuse()
    return found


def checked_file(path: Path) -> tuple[dict[str, Any], Mistakes]:
    """Return the option values of a configuration file that can be used, by `Option.key`, and the mistakes.

    A mistake is an unknown name or a value that its option refuses.  Raises ConfigError for a file that
    cannot be read.
    """
    text, document = read_document(path)
    found: dict[str, Any] = {}
    mistakes = Mistakes()
    if isinstance(document.get("rules"), Mapping):
        mistakes.found.append(f"{path}:{line_of('rules', text)}: {ONE_TABLE}")
        del document["rules"]
    for name, value in _flat(document):
        with mistakes.noted():
            key, checked = _checked(name, value, f"{path}:{line_of(name, text)}")
            found[key] = checked
    return found, mistakes


def _checked(name: str, value: Any, place: str) -> tuple[str, Any]:
    """Return the key of an option, and its value as click takes it.  Raises ConfigError."""
    option = _BY_NAME.get(name)
    if option is None:
        near = difflib.get_close_matches(name, _BY_NAME, 1)
        hint = f"; did you mean {near[0]!r}?" if near else f": there are {', '.join(sorted(_BY_NAME))}"
        raise ConfigError(f"{place}: there is no setting {name!r}{hint}")
    items = value if isinstance(value, list) else [value]
    if isinstance(value, list) and not option.many:
        raise ConfigError(f"{place}: {name} takes one value")
    try:
        # Read here for the place of a mistake alone: click reads the raw value once more.
        for item in items:
            option.read(item)
    except (ValueError, ConfigError) as error:
        raise ConfigError(f"{place}: {name} {error}") from None
    return option.key, items if option.many else value


def inline_rules(path: Path) -> tuple[Rule, ...] | None:
    """Return the `[[rules]]` of a configuration file, None where it has no such list (`rules = []` is one).

    Raises ConfigError.
    """
    text, document = read_document(path)
    tables = document.get("rules")
    if not isinstance(tables, list):
        return None
    return parse_rules(tables, KINDS, place=RulePlaces(str(path), text), expand=Fitting(path.parent))


def rules_file(path: Path) -> tuple[Rule, ...]:
    """Return the rules of a rules file.  Raises ConfigError."""
    return rules_in(read_text(path, "rules"), path)


def rules_in(text: str, path: Path) -> tuple[Rule, ...]:
    """Return the rules in the text of a rules file.  path: for errors and relative paths.

    Raises ConfigError.
    """
    return load(text, KINDS, source=str(path), expand=Fitting(path.parent))


def read_text(path: Path, title: str) -> str:
    """Return the text of a file.  title: names the file in the error.

    Raises ConfigError for a file that cannot be read or is not UTF-8.
    """
    try:
        return path.read_text()
    except OSError as error:
        raise ConfigError(f"cannot read the {title} {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def read_document(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the text of a TOML file and what it says.  Raises ConfigError."""
    text = read_text(path, "configuration")
    try:
        return text, tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def _flat(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in document.items():
        name = key.replace("_", "-")
        if isinstance(value, Mapping):
            for inner, item in value.items():
                inner = inner.replace("_", "-")
                yield (name if inner == "path" else f"{name}-{inner}"), item
        elif name != "rules" or not isinstance(value, list):
            yield name, value


def line_of(name: str, text: str) -> int:
    """Return the line of an option in a file: of its full name, or of its last part inside a table."""
    # tomllib keeps no positions, so the line is searched for; a wrong guess only misplaces a message.
    table, _, inner = name.partition("-")
    for words in (name, inner or name, "path", table):
        key = re.escape(words).replace(r"\-", "[-_]")
        found = re.search(rf"""^\s*\[?["']?{key}\b""", text, re.MULTILINE)
        if found:
            return text.count("\n", 0, found.start()) + 1
    return 1
