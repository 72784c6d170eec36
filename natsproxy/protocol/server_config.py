"""The configuration language of nats-server, read as plain dicts and lists (`conf/lex.go`, `conf/parse.go`).

    authorization {
      ORDERS = { publish: ["orders.>"], subscribe: "_INBOX.>" }   # a variable
      users = [ { user: shop, password: "secret", permissions: $ORDERS } ]
    }

Key and value are separated by `:`, `=` or blanks, entries by a line end, `,` or `;` (here by a blank too,
which the server refuses).  A string stands in quotes, or bare up to a blank.  A variable is a key of the same
map or of one around it; one that is not defined may be an environment variable, and stays as `$NAME`.
`include` reads another file in its place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from natsproxy.errors import ConfigError

_GAP: Final = re.compile(r"(?:[\s,;]|#[^\n]*|//[^\n]*)*")
_KEY: Final = re.compile(r'"([^"\n]*)"|\'([^\'\n]*)\'|([^\s:={}\[\],;"\'][^\s:={]*)')
_BETWEEN: Final = re.compile(r"\s*[:=]?\s*")
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\.)*)"|\'([^\']*)\'', re.DOTALL)
_BLOCK: Final = re.compile(r"\(\n(.*?)\n\s*\)", re.DOTALL)
_BARE: Final = re.compile(r"[^\s,;\]}]+")
_ESCAPE: Final = re.compile(r"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r"}
_WORDS: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_NUMBER: Final = re.compile(r"-?[0-9]{1,18}")
_DEEPEST: Final = 50

Include = Callable[[str], str]
"""Maps the path after `include` to the text of that file."""


def parse_server_config(text: str, include: Include | None = None) -> dict[str, Any]:
    """Read a configuration.  Raises ConfigError with the number of the line."""
    parser = _Parser(text, include)
    found = parser.entries(end="")
    parser.gap()
    return found


class _Parser:
    """scopes: the maps around the place that is read, for variables."""

    def __init__(
        self, text: str, include: Include | None, scopes: list[dict[str, Any]] | None = None
    ) -> None:
        self._text, self._include = text, include
        self._at = 0
        self._scopes = scopes if scopes is not None else []

    def gap(self) -> None:
        """Skip blanks, separators and comments."""
        self._at = self._expect(_GAP).end()

    def entries(self, end: str) -> dict[str, Any]:
        """Read the entries of a map, up to its end; `""` is the end of the text."""
        if len(self._scopes) > _DEEPEST:
            raise self._error(f"maps in more than {_DEEPEST} others")
        found: dict[str, Any] = {}
        self._scopes.append(found)
        while not self._ends(end):
            match = _KEY.match(self._text, self._at)
            if match is None:
                raise self._error("no key")
            self._at = match.end()
            key = next(group for group in match.groups() if group is not None)
            self._at = self._expect(_BETWEEN).end()
            value = self._value()
            if key.lower() == "include" and match[3] is not None:
                found.update(self._included(value))
            else:
                found[key] = value
        self._scopes.pop()
        return found

    def _ends(self, end: str) -> bool:
        """Tell whether a map or a list ends here, and pass its end."""
        self.gap()
        if not end and self._at == len(self._text):
            return True
        if self._at == len(self._text):
            raise self._error(f"no {end!r}")
        if end and self._text[self._at] == end:
            self._at += 1
            return True
        return False

    def _value(self) -> Any:
        first = self._text[self._at : self._at + 1]
        if first == "{":
            self._at += 1
            return self.entries("}")
        if first == "[":
            self._at += 1
            found = []
            while not self._ends("]"):
                found.append(self._value())
            return found
        for pattern, read in ((_QUOTED, _quoted), (_BLOCK, _block), (_BARE, self._bare)):
            match = pattern.match(self._text, self._at)
            if match is not None:
                self._at = match.end()
                return read(match)
        raise self._error("no value")

    def _bare(self, match: re.Match[str]) -> Any:
        text = match[0]
        if text.lower() in _WORDS:
            return _WORDS[text.lower()]
        if _NUMBER.fullmatch(text):
            return int(text)
        if text[0] == "$":
            return next((scope[text[1:]] for scope in reversed(self._scopes) if text[1:] in scope), text)
        return text

    def _included(self, path: Any) -> Mapping[str, Any]:
        if self._include is None or not isinstance(path, str) or len(self._scopes) > _DEEPEST:
            raise self._error(f"a file that cannot be included: {path!r}")
        return _Parser(self._include(path), self._include, self._scopes).entries("")

    def _expect(self, pattern: re.Pattern[str]) -> re.Match[str]:
        match = pattern.match(self._text, self._at)
        assert match is not None  # both patterns match the empty string
        return match

    def _error(self, what: str) -> ConfigError:
        return ConfigError(f"line {self._text.count(chr(10), 0, self._at) + 1}: {what}")


def _quoted(match: re.Match[str]) -> str:
    if match[1] is None:
        return match[2]
    return _ESCAPE.sub(
        lambda one: chr(int(one[1][1:], 16)) if len(one[1]) > 1 else _ESCAPES.get(one[1], one[1]), match[1]
    )


def _block(match: re.Match[str]) -> str:
    return match[1]
