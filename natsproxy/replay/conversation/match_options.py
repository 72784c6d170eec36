"""The options of the comparison of live frames with recorded ones.

`MatchOptions` is the one table of them: pytest's marker, ini file and flags, the flags and `--config` of
commands, and the arguments of `natsproxy.testing.cassette` are made from its fields.

Layers: the options stored in a cassette, then ini file or `--config`, flags, marker.  `read` reads one layer,
`combine` puts two together: lists add up, and of one value the nearest layer's counts.  So an option that a
message recommends can be added where it is convenient, and takes nothing away.

`MatchOptions.header` and `.member` answer for one place in a frame.  What a user named comes before the
defaults, and of that the strictest: `match`, then `like`, then `any`, then `ignore`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, Final

from natsproxy.capture.filter.filters import (
    HEADER,
    POINTER,
    SUBJECT,
    Filters,
    PayloadScrub,
    line,
    one_line,
    pattern,
)
from natsproxy.errors import ConfigError
from natsproxy.option import FLAG, Option, ValueType, merged, options_of, same_as, setting, several
from natsproxy.protocol.places import FramePlace, Path, matches_any, parse_place
from natsproxy.protocol.subjects import matches
from natsproxy.replay.conversation.payload_codecs import Codec, CodecOn, codec_for, codec_on, command_on

PARTS: Final = ("subject", "headers", "body", "client", "order")
_ALWAYS: Final = frozenset(PARTS) - {"order"}
_IGNORED: Final = (
    "traceparent",
    "tracestate",
    "baggage",
    "b3",
    "x-b3-*",
    "uber-trace-id",
    "uberctx-*",
    "sentry-trace",
    "elastic-apm-traceparent",
    "x-datadog-*",
    "x-amzn-trace-id",
    "x-cloud-trace-context",
    "date",
)
"""Headers of traces (W3C, B3, Jaeger, Sentry, Elastic, Datadog, AWS, Google), and the time of sending."""
_ANY_VALUE: Final = ("nats-msg-id", "expires", "last-modified", "timestamp", "x-date", "x-timestamp")

BodyMatcher = Callable[[bytes, bytes], bool]
Given = dict[str, Any]
"""The typed values of one layer: those that were given, by the name of their field."""


class Treatment(Enum):
    """The treatment of one place in two frames.

    EXACT: equal, or learned.  LIKE: both have it, in one form (identifier, number, time, or the same text).
    ANY: both have it, whatever it is, and the live one comes back.
    ANY_VALUE: both have it.  IGNORED: even its presence does not count.  UNCHECKED: nor which of its
    identifiers are equal.
    """

    EXACT = "exact"
    LIKE = "like"
    ANY = "any"
    ANY_VALUE = "any value"
    IGNORED = "ignored"
    UNCHECKED = "unchecked"


def _parts(value: Any) -> frozenset[str]:
    parts = frozenset(part.strip() for part in line(value).split(",") if part.strip())
    if not parts or not parts <= set(PARTS):
        raise ValueError(f"must be some of {', '.join(PARTS)}, not {value!r}")
    return parts


def _place(value: Any) -> FramePlace:
    return parse_place(one_line(value))


def _all_parts(given: tuple[frozenset[str], ...]) -> frozenset[str]:
    return frozenset().union(*given) or _ALWAYS


_PLACE: Final = ValueType(_place, "[SUBJECT ]PLACE")


@dataclass(frozen=True, slots=True)
class MatchOptions:
    """The options in force, and the table of them.

    bodies: subject patterns and functions that compare two payloads; the first that fits decides.
    scrub: a function that replaces payloads before they are written; it is not kept in a cassette.
    """

    match_on: frozenset[str] = merged(
        ValueType(_parts, "PART,..."),
        _all_parts,
        "Parts of a frame that must agree: subject, headers, body, client (these), and order on a subject.",
    )
    ignore_headers: tuple[str, ...] = several(HEADER, "Ignore this header: it may differ, or be missing.")
    like_headers: tuple[str, ...] = several(
        HEADER, "Compare only the form of this header: identifier, number, time."
    )
    match_headers: tuple[str, ...] = several(
        HEADER, "Compare this header, such as traceparent, which is ignored by default."
    )
    ignore_json: tuple[FramePlace, ...] = several(
        POINTER, "Ignore this member of JSON payloads: it may differ, or be missing."
    )
    like_json: tuple[FramePlace, ...] = several(
        POINTER, "Compare only the form of this member of JSON payloads."
    )
    any_headers: tuple[str, ...] = several(
        HEADER, "Accept any value of this header, such as a token; the live one comes back."
    )
    any_json: tuple[FramePlace, ...] = several(
        POINTER, "Accept any text or number at this member of JSON payloads; the live one comes back."
    )
    match_as: tuple[CodecOn, ...] = several(
        ValueType(codec_on, "SUBJECT CODEC"),
        "Read payloads on a subject as msgpack, gzip, zstd or protobuf:FILE:MESSAGE.",
    )
    match_command: tuple[CodecOn, ...] = several(
        ValueType(command_on, "SUBJECT COMMAND"),
        "Compare payloads on a subject as this program writes them plain, each read from its standard input.",
    )
    like_subjects: tuple[bytes, ...] = several(
        SUBJECT, "Subjects whose tokens at * and > differ from run to run; answers get the live ones."
    )
    ignore_bodies: tuple[bytes, ...] = several(SUBJECT, "Ignore payloads on these subjects.")
    learn: bool = setting(FLAG, True, "Learn identifiers and times that differ from run to run.")
    learn_only: tuple[FramePlace, ...] = several(
        _PLACE, "Learn only at this place: /pointer, header:NAME, token."
    )
    learn_not: tuple[FramePlace, ...] = several(_PLACE, "Do not learn at this place.")
    allow_repeats: bool = setting(
        FLAG, True, "Repeat the last answer to a request that changes nothing: an empty pull, INFO, a get."
    )
    repeat: tuple[bytes, ...] = several(
        SUBJECT, "Subjects whose messages may come more or less often than recorded."
    )
    filter_headers: tuple[str, ...] = same_as(Filters, "headers")
    filter_json: tuple[FramePlace, ...] = same_as(Filters, "json")
    filter_bodies: tuple[bytes, ...] = same_as(Filters, "bodies")
    filter_subjects: tuple[bytes, ...] = same_as(Filters, "subjects")
    bodies: tuple[tuple[bytes, BodyMatcher], ...] = ()
    scrub: PayloadScrub | None = None

    @property
    def filters(self) -> Filters:
        """The filters of secrets, for a recording and for both sides of a comparison."""
        return Filters(
            self.filter_headers, self.filter_json, self.filter_bodies, self.filter_subjects, self.scrub
        )

    def codec(self, subject: bytes) -> Codec | None:
        """Return the codec of the payloads on `subject`, None for JSON and text."""
        return codec_for(subject, (*self.match_as, *self.match_command))

    def header(self, name: bytes) -> Treatment:
        """Return the treatment of a header."""
        text = name.decode("latin-1")
        if "headers" not in self.match_on:
            return Treatment.UNCHECKED
        if matches_any(text, self.match_headers):
            return Treatment.EXACT
        if matches_any(text, self.like_headers):
            return Treatment.LIKE
        if matches_any(text, self.any_headers):
            return Treatment.ANY
        if matches_any(text, _IGNORED):  # tracing may be on or off
            return Treatment.UNCHECKED
        if matches_any(text, self.ignore_headers):
            return Treatment.IGNORED
        return Treatment.ANY_VALUE if matches_any(text, _ANY_VALUE) else Treatment.EXACT

    def compares_json(self, subject: bytes) -> bool:
        """Return whether a member of the JSON payloads on `subject` has a treatment of its own."""
        return any(place.on(subject) for place in (*self.like_json, *self.any_json, *self.ignore_json))

    def member(self, subject: bytes, path: Path) -> Treatment:
        """Return the treatment of a part of the JSON payloads on `subject`."""
        if any(place.covers(path) and place.on(subject) for place in self.like_json):
            return Treatment.LIKE
        if any(place.covers(path) and place.on(subject) for place in self.any_json):
            return Treatment.ANY
        if any(place.covers(path) and place.on(subject) for place in self.ignore_json):
            return Treatment.IGNORED
        return Treatment.EXACT

    def like_subject(self, subject: bytes) -> bytes | None:
        """Return the first pattern under which a subject may have other tokens, None without one."""
        return next((one for one in self.like_subjects if matches(one, subject)), None)

    def ignores_body(self, subject: bytes) -> bool:
        """Return whether payloads on `subject` need not agree."""
        return "body" not in self.match_on or _is_on(self.ignore_bodies, subject)

    def learns(self, subject: bytes, *, path: Path | None = None, header: bytes | None = None) -> bool:
        """Return whether a value is learned: at a JSON path, in a header, or in the tokens of `subject`."""

        def at(places: tuple[FramePlace, ...]) -> bool:
            return any(_is_at(place, path, header) and place.on(subject) for place in places)

        if not (self.learn_only or self.learn_not):
            return self.learn
        return self.learn and (not self.learn_only or at(self.learn_only)) and not at(self.learn_not)

    def learns_message_ids(self, subject: bytes) -> bool:
        """Return whether it counts which `Nats-Msg-Id` are equal; their values are no matter of `learn`."""
        return not any(_is_at(place, None, b"Nats-Msg-Id") and place.on(subject) for place in self.learn_not)

    def stored(self) -> dict[str, Any]:
        """Return the options that differ from the defaults, as plain data that `read` reads."""
        given = {one.name: getattr(self, one.name) for one in fields(self) if one.name in _BY_KEY}
        found = {key: value for key, value in given.items() if value != getattr(DEFAULT, key)}
        for key in _CODECS & found.keys():  # a recording that somebody else plays runs nothing
            found[key] = tuple(one for one in found[key] if one.kept)
        return plain({key: value for key, value in found.items() if value != ()})


DEFAULT: Final = MatchOptions()
OPTIONS: Final = options_of(MatchOptions)
"""All options, in the order of `--help`."""
_BY_KEY: Final = {option.key: option for option in OPTIONS}
_CODECS: Final = {"match_as", "match_command"}
_HEADERS: Final = ("ignore_headers", "any_headers", "like_headers", "match_headers")
_MEMBERS: Final = ("ignore_json", "any_json", "like_json")
_OPPOSITES: Final = {
    **{one: tuple(other for other in _HEADERS if other != one) for one in _HEADERS},
    **{one: tuple(other for other in _MEMBERS if other != one) for one in _MEMBERS},
}


def _is_on(patterns: tuple[bytes, ...], subject: bytes) -> bool:
    return any(matches(pattern, subject) for pattern in patterns)


def _is_at(place: FramePlace, path: Path | None, header: bytes | None) -> bool:
    if path is not None:
        return place.covers(path)
    if header is not None:
        return place.header is not None and matches_any(header.decode("latin-1"), (place.header,))
    return place.header is None and place.pointer is None


def read(given: Mapping[str, Any], source: str = "") -> Given:
    """Return the typed values of one layer; None stands for not given.

    source: begins the message of a mistake.  Raises ConfigError for an unknown name and for a value that its
    option refuses.
    """
    found: Given = {}
    for key, value in given.items():
        option = _BY_KEY.get(key.replace("-", "_"))
        if value is None:
            continue
        if key == "bodies":
            found[key] = _functions(value)
        elif key == "scrub":
            found[key] = _scrub(value)
        elif option is None:
            near = difflib.get_close_matches(key, _BY_KEY, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f": there are {', '.join(_BY_KEY)}"
            raise ConfigError(f"{source}there is no option {key!r}{hint}")
        else:
            try:
                found[option.key] = _typed(option, value)
            except (ValueError, ConfigError) as error:
                raise ConfigError(f"{source}{key} {error}") from None
    return found


def _typed(option: Option, value: Any) -> Any:
    if not option.many:
        return option.read(value)
    if isinstance(value, Mapping) and option.key in _CODECS:
        value = list(value.items())
    entries = value if isinstance(value, list | tuple | set | frozenset) else [value]
    typed = tuple(option.read(entry) for entry in entries)
    return option.merge(typed)


def _functions(value: Any) -> tuple[tuple[bytes, BodyMatcher], ...]:
    if not isinstance(value, Mapping) or not all(map(callable, value.values())):
        raise ConfigError('bodies must map subject patterns to functions: {"orders.>": same}')
    try:
        return tuple((pattern(subject), same) for subject, same in value.items())
    except ValueError as error:
        raise ConfigError(f"a key of bodies {error}") from None


def _scrub(value: Any) -> PayloadScrub:
    if not callable(value):
        raise ConfigError("scrub must be a function of a subject, headers and a payload")
    return PayloadScrub(value)


def plain(given: Given) -> dict[str, Any]:
    """Return typed values as plain data, that `read` reads and JSON holds (but for functions)."""

    def entry(one: Any) -> Any:
        if isinstance(one, CodecOn) and not one.kept:
            return one  # read again it must be the same function
        return one.decode("utf-8", "surrogateescape") if isinstance(one, bytes) else str(one)

    made: dict[str, Any] = {}
    for key, value in given.items():
        if key == "bodies":
            made[key] = {entry(pattern): same for pattern, same in value}
        elif key == "scrub":
            made[key] = value.function
        elif isinstance(value, frozenset):
            made[key] = [part for part in PARTS if part in value]
        else:
            made[key] = list(map(entry, value)) if isinstance(value, tuple) else value
    return made


def combine(far: Given, near: Given) -> Given:
    """Return the options that two layers give together."""
    merged = {**far, **near}
    for key, value in merged.items():
        if isinstance(value, tuple):  # a nearer layer takes a name over
            taken = {one for other in _OPPOSITES.get(key, ()) for one in near.get(other, ())}
            kept = (one for one in far.get(key, ()) if one not in taken)
            merged[key] = tuple(dict.fromkeys((*near.get(key, ()), *kept)))
    return merged
