"""The options for secrets of an application: rows for recordings and for cassettes.

This module is light: the pytest plugin imports it in every run.
"""

from __future__ import annotations

from typing import Any, Final

from natsproxy.config.row import Option
from natsproxy.protocol.places import Place, parse_pointer
from natsproxy.protocol.subjects import is_valid_subscribe


def one_line(value: Any) -> str:
    """Return one line of text."""
    if not isinstance(value, str) or not value.strip() or "\n" in value or "\r" in value:
        raise ValueError(f"must be one line of text, not {value!r}")
    return value


def line(value: Any) -> str:
    """Return one line of text without the blanks around it."""
    return one_line(value).strip()


def header(value: Any) -> str:
    """Return the name of a header in lower case, perhaps with `*`."""
    if ":" in line(value):
        raise ValueError(f"must be the name of a header, not {value!r}")
    return line(value).lower()


def pointer(value: Any) -> Place:
    """Return a JSON pointer, perhaps behind a subject pattern."""
    return parse_pointer(one_line(value))


def pattern(value: Any) -> bytes:
    """Return a subject pattern as bytes."""
    raw = line(value).encode("utf-8", "surrogateescape")
    if not is_valid_subscribe(raw):
        raise ValueError(f"must be a valid subject pattern, not {value!r}")
    return raw


def _secret_tokens(value: Any) -> bytes:
    raw = pattern(value)
    if not {b"*", b">"} & {*raw.split(b".")} or raw == b">":
        raise ValueError(
            f"must have * or > in the place of the secret, as in customers.*.orders, not {value!r}"
        )
    return raw


FILTER_OPTIONS: Final = (
    Option(
        "filter-headers",
        header,
        None,
        "A header whose value is replaced before it is written.",
        many=True,
        metavar="NAME",
    ),
    Option(
        "filter-json",
        pointer,
        None,
        "A member of JSON payloads whose value is replaced before it is written.",
        many=True,
        metavar="[SUBJECT ]/POINTER",
    ),
    Option(
        "filter-bodies",
        pattern,
        None,
        "Subjects whose payloads are replaced before they are written, those of answers too.",
        many=True,
        metavar="SUBJECT",
    ),
    Option(
        "filter-subjects",
        _secret_tokens,
        None,
        "Subjects whose tokens are replaced where * and > stand, before they are written.",
        many=True,
        metavar="SUBJECT",
    ),
)
"""The options, in the order of `--help`."""
