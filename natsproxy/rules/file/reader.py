"""The reader of one rule table: it converts values and words errors with their place in the file.

tomllib does not tell the line of a key, so `RulePlaces` finds it in the text afterwards: the n-th header of
its list, and in its part the line that begins with the key.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from natsproxy.errors import ConfigError
from natsproxy.rules.model.rule import REQUIRED, Kind, Setting


class RulePlaces:
    """The places of rules in a file: source name and text (None for JSON and settings made in code).

    name, noun: of the list of tables, and of one of them.
    """

    def __init__(
        self, source: str = "rules", text: str | None = None, name: str = "rules", noun: str = "rule"
    ) -> None:
        self.source = source
        self.noun = noun
        self._name = name
        self._lines = [] if text is None else text.splitlines()
        header = re.compile(r"\s*\[\[\s*([\w-]+)\s*\]\]")
        headers = [(n, found[1]) for n, line in enumerate(self._lines) if (found := header.match(line))]
        self._starts = [n for n, named in headers if named == name]
        self._ends = [n for n, _ in headers] + [len(self._lines)]

    def of(self, index: int, key: str | None = None) -> str:
        """Return `file:line` of a rule or of a key in it, as closely as it is known."""
        if index >= len(self._starts):
            return f"{self.source}, {self.noun} {index + 1}" if index >= 0 else self.source
        start = self._starts[index]
        stop = self._ends[bisect_right(self._ends, start)]
        if key is not None:
            wanted = re.compile(rf"""\s*(\[\s*{self._name}\s*\.\s*)?["']?{re.escape(key)}["']?\s*[].=]""")
            start = next((n for n in range(start, stop) if wanted.match(self._lines[n])), start)
        return f"{self.source}:{start + 1}"


class RuleReader:
    """Reads the keys of one rule; its errors name the place of a wrong one."""

    def __init__(self, table: Mapping[str, Any], index: int, place: RulePlaces) -> None:
        self.table = table
        self.index = index
        self.place = place
        name = table.get("name")
        self.title = f"{place.noun} {name!r}" if isinstance(name, str) else f"{place.noun} {index + 1}"

    def error(self, key: str | None, text: str) -> ConfigError:
        """Return an error at a key; its text is the rest of a sentence that begins with the key."""
        subject = f"{key} {text}" if key else text
        return ConfigError(f"{self.place.of(self.index, key)}: {self.title}: {subject}")

    def error_about(self, text: str, key: str | None = None) -> ConfigError:
        """Return an error at a key; by default the one that its text begins with, if any."""
        if key is None:
            word = re.match(r"\w*", text)
            key = word[0] if word is not None and word[0] in self.table else None
        return ConfigError(f"{self.place.of(self.index, key)}: {self.title}: {text}")

    def read(self, settings: Iterable[Setting]) -> dict[str, Any]:
        """Return the values of some keys, defaults where they are absent.  Raises ConfigError."""
        result: dict[str, Any] = {}
        for setting in settings:
            if setting.name not in self.table:
                if setting.default is REQUIRED:
                    raise self.error(None, f"it needs {setting.name!r} ({setting.text})")
                default = setting.default
                result[setting.name] = setting.convert(default) if isinstance(default, str) else default
                continue
            try:
                result[setting.name] = setting.convert(self.table[setting.name])
            except ValueError as error:
                raise self.error(setting.name, str(error)) from None
        return result

    def refuse_unknown(self, kind: Kind, known: list[str], everywhere: set[str]) -> None:
        """Raise ConfigError for a key that is not known; everywhere: keys that other kinds may have."""
        for key in self.table:
            if key in known:
                continue
            if key in everywhere:
                raise self.error(key, f"has no meaning in a rule of kind {kind.name!r}")
            raise self.error_about(unknown_word(key, known), key)


def unknown_word(word: str, known: list[str], noun: str = "key") -> str:
    """Return the text about a word that is not known, with the nearest one that is."""
    near = get_close_matches(word, known, 1, 0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(known))}"
    return f"there is no {noun} {word!r}; {hint}"
