"""The options of `format("natscap")`, read once and checked.

Spark passes options as strings under case-insensitive names; unknown names are refused.  All of
them, with their defaults:

    path, paths      a place (`natsproxy/spark/source/paths.py`), or several as a JSON list
    what             "frames" (default), "items" (opens, closes, firings, gaps, ...), or "findings" (of
                     `natsproxy check`; it reads whole captures, so nothing selects frames)
    from_ns, to_ns   wall clock, ns since 1970
    conn             connection ids, comma-separated
    direction        "c2s" or "s2c"
    op               operations, comma-separated
    subject          subject patterns, comma-separated
    payload          bytes of each payload: 0 (default), N, or -1 for all
    mode             PERMISSIVE (default), DROPMALFORMED, FAILFAST: for damaged blocks, see `data_source.py`
    partitionBytes   the bytes that one task reads, about (64 MiB)
    maxBytesPerTrigger   of a stream: the bytes that one batch takes, about (256 MiB)
    survey           a file with an earlier survey of these captures (`survey.py`); without it one is made
    failOnDataLoss   of a stream where a segment is missing: "true" (default) stops it, "false" goes on
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TypeVar

from natsproxy.capture.format.connection import ConnectionChoice
from natsproxy.capture.read.frames import Query
from natsproxy.errors import ConfigError
from natsproxy.wire.ops import ALL_OPS, BY_TOKEN, C2S, S2C, op_mask

MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
WHAT = ("frames", "items", "findings")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Options:
    """The checked options of one read; sizes in bytes, payload -1 for all."""

    paths: tuple[str, ...]
    what: str
    query: Query
    payload: int
    mode: str
    partition_bytes: int
    batch_bytes: int
    fail_on_loss: bool
    survey: str | None


def parse(given: Mapping[str, str]) -> Options:
    """Return the checked options.  Raises ConfigError in one sentence that names option and value."""
    options = _Given({key.lower(): value for key, value in given.items()})
    parsed = Options(
        paths=_paths(options),
        what=options.one_of("what", WHAT),
        query=_query(options),
        payload=options.value("payload", 0, int, "a number of bytes, or -1 for all"),
        mode=options.one_of("mode", MODES),
        partition_bytes=options.size("partitionBytes", 64 << 20),
        batch_bytes=options.size("maxBytesPerTrigger", 256 << 20),
        fail_on_loss=options.one_of("failOnDataLoss", ("true", "false")) == "true",
        survey=options.text("survey"),
    )
    options.refuse_others()
    if parsed.what == "findings" and parsed.query != Query():
        raise ConfigError("natscap reads whole captures for findings: leave out what selects frames")
    return parsed


class _Given:
    """The options as given, under lower-case names."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options
        self._known: dict[str, str] = {}

    def text(self, name: str) -> str | None:
        self._known[name.lower()] = name
        return self._options.get(name.lower())

    def refuse_others(self) -> None:
        """Raise ConfigError for an unknown option."""
        for name in sorted(self._options.keys() - self._known.keys()):
            near = get_close_matches(name, self._known, 1)
            hint = (
                f"did you mean {self._known[near[0]]}?"
                if near
                else f"there are {', '.join(self._known.values())}"
            )
            raise ConfigError(f"natscap has no option {name}: {hint}")

    def value(self, name: str, default: _T, read: Callable[[str], _T], expected: str) -> _T:
        text = self.text(name)
        try:
            return default if text is None else read(text)
        except (ValueError, KeyError):
            raise ConfigError(f"natscap option {name}={text!r}: it must be {expected}") from None

    def one_of(self, name: str, allowed: tuple[str, ...]) -> str:
        """Return one of `allowed`, in any letter case; the first is the default."""
        table = {word.lower(): word for word in allowed}
        return self.value(name, allowed[0], lambda text: table[text.lower()], f"one of {', '.join(allowed)}")

    def size(self, name: str, default: int) -> int:
        size = self.value(name, default, int, "a number of bytes")
        if size < 1:
            raise ConfigError(f"natscap option {name}={size}: it must be a number of bytes, at least 1")
        return size

    def words(self, name: str) -> list[str]:
        return [word.strip() for word in (self.text(name) or "").split(",") if word.strip()]


def _paths(options: _Given) -> tuple[str, ...]:
    text, path = options.text("paths"), options.text("path")  # load([...]) gives several, as JSON
    if text is not None:
        return options.value("paths", (), lambda raw: tuple(map(str, json.loads(raw))), "a JSON list")
    if path is None:
        raise ConfigError('natscap needs a path: .load("traffic.ncap"), a folder of segments, or a glob')
    return (path,)


def _query(options: _Given) -> Query:
    directions = {"c2s": C2S, "s2c": S2C}
    ops = options.value(
        "op",
        ALL_OPS,
        lambda _: op_mask(*(BY_TOKEN[word.upper().encode()] for word in options.words("op"))) or ALL_OPS,
        "operations like PUB,MSG",
    )
    return Query(
        start=options.value("from_ns", None, int, "ns since 1970"),
        end=options.value("to_ns", None, int, "ns since 1970"),
        conns=options.value(
            "conn",
            ConnectionChoice(),
            lambda _: ConnectionChoice.of(*map(int, options.words("conn"))),
            "connection ids",
        ),
        direction=options.value("direction", None, lambda text: directions[text.lower()], "c2s or s2c"),
        ops=ops,
        subjects=tuple(word.encode() for word in options.words("subject")),
    )
