"""The user's filters: places whose values never reach a disk.  (`scrub.py` applies them.)

Cheap to import: the pytest plugin does so in every run, for the options of recordings and cassettes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from natsproxy.errors import CaptureError, place_of
from natsproxy.option import ValueType, several
from natsproxy.protocol import headers as header_block
from natsproxy.protocol.places import FramePlace, parse_pointer
from natsproxy.protocol.subjects import is_valid_subscribe


def one_line(value: Any) -> str:
    """Return one line of text."""
    if not isinstance(value, str) or not value.strip() or "\n" in value or "\r" in value:
        raise ValueError(f"must be one line of text, not {value!r}")
    return value


def line(value: Any) -> str:
    """Return one line of text without the blanks around it."""
    return one_line(value).strip()


def _header(value: Any) -> str:
    """Return the name of a header in lower case; it may contain `*`."""
    if ":" in line(value):
        raise ValueError(f"must be the name of a header, not {value!r}")
    return line(value).lower()


def _pointer(value: Any) -> FramePlace:
    """Return a JSON pointer, optionally after a subject pattern."""
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
        raise ValueError(f"must have * or > in place of the secret, as in customers.*.orders, not {value!r}")
    return raw


HEADER: Final = ValueType(_header, "NAME")
POINTER: Final = ValueType(_pointer, "[SUBJECT ]/POINTER")
SUBJECT: Final = ValueType(pattern, "SUBJECT")


FILTERED: Final = "[filtered]"
ScrubFunction = Callable[[str, Mapping[str, str], bytes], bytes]
"""Returns the payload to write, of a message's subject, headers and payload."""


class PayloadScrub:
    """A user's function that replaces payloads before they are written.

    Traffic never sees its exceptions: such a payload is `[filtered]`, and `failure` has the first reason.
    """

    def __init__(self, function: ScrubFunction) -> None:
        self.function = function
        self.failure = ""

    def __call__(self, subject: bytes, block: bytes, body: bytes) -> bytes:
        """Return the payload to write, of a message's subject, header block and payload."""
        name = subject.decode("utf-8", "surrogateescape")
        pairs = header_block.parse(block).pairs if block else ()
        texts = {key.decode("latin-1"): value.decode("latin-1") for key, value in pairs}
        try:
            found = self.function(name, texts, body)
            reason = "" if isinstance(found, bytes) else f"returned {type(found).__name__}, not bytes"
        except Exception as error:
            found, reason = b"", f"raised {place_of(error)}"
        if not reason:
            return found
        self.failure = self.failure or f"the function that scrubs payloads {reason}, for {name}"
        return FILTERED.encode()


@dataclass(frozen=True, slots=True)
class Filters:
    """The places of an application's secrets; empty: none.

    headers: globs of names.  json: pointers.  bodies: patterns of subjects whose payloads are secret.
    subjects: patterns whose wildcards stand for secret tokens.  scrub: a function for what these cannot name.
    """

    headers: tuple[str, ...] = several(HEADER, "Replace the value of this header before it is written.")
    json: tuple[FramePlace, ...] = several(
        POINTER, "Replace the value of this member of JSON payloads before it is written."
    )
    bodies: tuple[bytes, ...] = several(
        SUBJECT, "Replace payloads on these subjects before they are written, those of answers too."
    )
    subjects: tuple[bytes, ...] = several(
        ValueType(_secret_tokens, "SUBJECT"),
        "Replace the tokens of these subjects at * and > before they are written.",
    )
    scrub: PayloadScrub | None = None

    def __bool__(self) -> bool:
        return bool(self.headers or self.json or self.bodies or self.subjects or self.scrub)

    def check(self, path: Path) -> None:
        """Raise CaptureError about the capture at `path` if `scrub` has failed."""
        if self.scrub is not None and self.scrub.failure:
            raise CaptureError(self.scrub.failure, path=path)

    def of_recorded(self) -> Filters:
        """Return the filters for frames that were recorded with them: `scrub` need not bear a second pass."""
        return self if self.scrub is None else replace(self, scrub=None)

    def described(self) -> dict[str, list[str]]:
        """Return the non-empty filters as plain data."""
        given = {
            "filter_headers": list(self.headers),
            "filter_json": [str(place) for place in self.json],
            "filter_bodies": _texts(self.bodies),
            "filter_subjects": _texts(self.subjects),
        }
        return {name: value for name, value in given.items() if value}


def _texts(patterns: tuple[bytes, ...]) -> list[str]:
    return [pattern.decode("utf-8", "surrogateescape") for pattern in patterns]


NO_FILTERS: Final = Filters()
