"""Subject mapping as nats-server does it: from a source pattern to a destination.

A mapping is applied once, to the subject of a publish.
A subject with an empty token is not mapped.  A subject with wildcard tokens is mapped where the source
covers it: `*` under `*` and `>`, and `>` under `>`.

A `SubjectTransform` is one source and one destination, a `Mapping` a source with weighted destinations.  A
lossless transform has an `inverse`, which messages from the server need.

A destination token is a literal, `$n`, `{{function(arguments)}}` or a final `>` (there if and only if the
source ends in one).  n counts the `*` of the source from 1; an n of 0 or less is the subject's first token.

    $n, wildcard(n)                     the n-th `*`
    partition(N, i, j...)               FNV-1a (32 bit) of those wildcards concatenated, modulo N
    partition(N)                        of the whole subject
    random(N)                           0 to N-1
    split(i, delimiter)                 cut at the delimiter, empty pieces dropped (see `split_pieces`)
    splitfromleft(i, p), splitfromright(i, p)     one cut, p bytes from that side
    slicefromleft(i, n), slicefromright(i, n)     pieces of n bytes, the rest last (first)
    left(i, n), right(i, n)             the first (last) n bytes

Cuts that do not fit (0, negative, not shorter than the token) leave the token whole.  A function name takes
either letter case where its words begin (`splitFromLeft`), and lower case elsewhere, as on the server.  All
positions and sizes are bytes.

Each token is compiled once, to a function from the subject's tokens to bytes: nothing is parsed per message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Final, NamedTuple

from natsproxy.errors import ConfigError
from natsproxy.protocol.subjects import (
    STAR,
    TAIL,
    compile_pattern,
    has_empty_token,
    has_wildcard,
    is_subset,
    is_valid_strict,
)

Draw = Callable[[int], int]
"""A source of randomness: called with n, it returns 0 to n-1."""
Part = Callable[[list[bytes], Draw], bytes]
"""A function from the tokens of a subject to one destination token, or several."""

NUMBER: Final = re.compile(rb"[+-]?[0-9]+")
_CALL: Final = re.compile(rb"\{\{\s*([A-Za-z]+)\s*\((.*)\)\s*\}\}", re.DOTALL)
_COMMA: Final = re.compile(rb",\s*")


def fnv1a(data: bytes) -> int:
    """Return the 32-bit FNV-1a hash."""
    value = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def refuse_to_draw(limit: int) -> int:
    """Default for a missing source of randomness: raises ConfigError."""
    raise ConfigError(f"this mapping draws a random number below {limit}, but randomness is not allowed here")


def split_pieces(token: bytes, delimiter: bytes) -> bytes:
    """Cut at each delimiter and drop empty pieces.

    As on the server a token that begins with two delimiters or more comes out with an empty first token (and
    so matches nothing).
    """
    pieces = [piece for piece in token.split(delimiter) if piece]
    doubled = bool(pieces) and token.startswith(delimiter * 2)
    return b".".join([b"", *pieces] if doubled else pieces)


def _cut(token: bytes, position: int) -> bytes:
    return token[:position] + b"." + token[position:] if 0 < position < len(token) else token


def _slices(token: bytes, size: int, first: int) -> bytes:
    """Cut into pieces of `size`, the first one of `first` bytes (0: of `size`)."""
    if not 0 < size < len(token):
        return token
    starts = [*([0] if first else []), *range(first, len(token), size)]
    return b".".join(token[a:b] for a, b in zip(starts, [*starts[1:], len(token)], strict=True))


_INDEX_AND_NUMBER: Final[dict[bytes, Callable[[bytes, int], bytes]]] = {
    b"SplitFromLeft": lambda token, n: _cut(token, n),
    b"SplitFromRight": lambda token, n: _cut(token, len(token) - n),
    b"SliceFromLeft": lambda token, n: _slices(token, n, 0),
    b"SliceFromRight": lambda token, n: _slices(token, n, len(token) % n if n else 0),
    b"Left": lambda token, n: token[:n] if 0 < n < len(token) else token,
    b"Right": lambda token, n: token[-n:] if 0 < n < len(token) else token,
}
_NAMES: Final = (*_INDEX_AND_NUMBER, b"Split", b"Wildcard", b"Partition", b"Random")
_BY_NAME: Final = [
    (name, re.compile(re.sub(rb"[A-Z]", lambda m: b"[%s%s]" % (m[0], m[0].lower()), name))) for name in _NAMES
]


class Source:
    """A source pattern: its tokens, the places of its `*`, and whether it ends in `>`."""

    def __init__(self, pattern: bytes) -> None:
        self.pattern = pattern
        self.tokens = pattern.split(b".")
        self.wildcards = [index for index, token in enumerate(self.tokens) if token == STAR]
        self.tail = self.tokens[-1] == TAIL

    def position(self, number: int, token: bytes) -> int:
        """Return the index of the subject's token that `*` number `number` stands for."""
        if number > len(self.wildcards) or not self.wildcards:
            raise ConfigError(
                f"{show(token)} names wildcard {number}, but {show(self.pattern)} has {len(self.wildcards)}"
            )
        return self.wildcards[number - 1] if number > 0 else 0  # as the server does, for 0 and less


def show(token: bytes) -> str:
    """Return bytes as errors quote them."""
    return repr(token.decode("utf-8", "backslashreplace"))


class MapToken(NamedTuple):
    """A destination token, compiled.

    wildcard: the index of the source token that it copies, None if it does anything else.
    """

    text: bytes
    literal: bool
    part: Part
    wildcard: int | None = None


def compile_token(token: bytes, source: Source) -> MapToken:
    """Compile a destination token (any but `>`).  Raises ConfigError where the server refuses the token."""
    if token[:1] == b"$" and NUMBER.fullmatch(token, 1):
        return _copy(token, source, int(token[1:]))
    # Anything that is not wholly in braces is a literal: the server takes `x{{y}}` as it is.
    if not (len(token) > 4 and token.startswith(b"{{") and token.endswith(b"}}")):
        return MapToken(token, True, lambda _tokens, _draw: token)
    call = _CALL.fullmatch(token)
    name = None if call is None else _function_name(call[1])
    if call is None or name is None:
        known = [name.decode().lower() for name in _NAMES]
        near = [] if call is None else get_close_matches(call[1].decode().lower(), known, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
        raise ConfigError(f"{show(token)} is not a mapping function; {hint}")
    args = _COMMA.split(call[2])
    if name == b"Wildcard":
        _arity(token, args, 1)
        return _copy(token, source, _number(args[0], token))
    if name == b"Partition":
        return MapToken(token, False, _partition(token, args, source))
    if name == b"Random":
        _arity(token, args, 1)
        limit = _positive(args[0], token)
        return MapToken(token, False, lambda _tokens, draw: b"%d" % draw(limit))
    _arity(token, args, 2)
    at = source.position(_number(args[0], token), token)
    if name == b"Split":
        delimiter = args[1]
        if b" " in delimiter or not delimiter:
            raise ConfigError(f"{show(token)}: the delimiter must not be empty or hold a blank or a dot")
        return MapToken(token, False, lambda tokens, _draw: split_pieces(tokens[at], delimiter))
    function, number = _INDEX_AND_NUMBER[name], _number(args[1], token)
    return MapToken(token, False, lambda tokens, _draw: function(tokens[at], number))


def _function_name(written: bytes) -> bytes | None:
    return next((name for name, pattern in _BY_NAME if pattern.fullmatch(written)), None)


def _copy(token: bytes, source: Source, number: int) -> MapToken:
    at = source.position(number, token)
    return MapToken(token, False, lambda tokens, _draw: tokens[at], at)


def _partition(token: bytes, args: list[bytes], source: Source) -> Part:
    buckets = _positive(args[0], token)
    places = [source.position(_number(arg, token), token) for arg in args[1:]]
    if not places:
        return lambda tokens, _draw: b"%d" % (fnv1a(b".".join(tokens)) % buckets)
    return lambda tokens, _draw: b"%d" % (fnv1a(b"".join([tokens[at] for at in places])) % buckets)


def _arity(token: bytes, args: list[bytes], wanted: int) -> None:
    if len(args) != wanted or not args[0]:
        given = len(args) if args[0] else 0
        raise ConfigError(f"{show(token)} takes {wanted} argument{'s' if wanted > 1 else ''}, not {given}")


def _number(text: bytes, token: bytes) -> int:
    stripped = text.strip(b" ")
    if NUMBER.fullmatch(stripped) is None:
        raise ConfigError(f"{show(token)}: {show(text)} is not a whole number")
    return int(stripped)


def _positive(text: bytes, token: bytes) -> int:
    number = _number(text, token)
    if not 0 < number < 2**31:
        raise ConfigError(f"{show(token)}: {number} must be a positive number below 2**31")
    return number


class SubjectTransform:
    """One source pattern and one destination.  Immutable.

    no_inverse: the reason why the source subject cannot be found from the destination; None where it can.
    Raises ConfigError where the server's configuration refuses the mapping.
    """

    def __init__(self, source: bytes, destination: bytes) -> None:
        _check_subject(source, "source")
        self.source: Final = source
        self.destination: Final = destination
        self._source = Source(source)
        written = destination.split(b".")
        self._tokens = [compile_token(token, self._source) for token in written if token != TAIL]
        _check_destination(written, self._source, destination)
        self._matches = compile_pattern(_as_server_reads(source))
        self._parts = [token.part for token in self._tokens]
        self._tail = len(self._source.tokens) - 1 if self._source.tail else None
        self._identity = source == destination
        self._prefixes = self._find_prefixes()
        self.no_inverse: Final = _why_not_invertible(self._source, self._tokens)

    @property
    def reach(self) -> bytes:
        """A pattern of all subjects that it makes; of more where a function makes tokens."""
        found: list[bytes] = []
        for token in self._tokens:
            if not token.literal and token.wildcard is None:  # maybe several tokens
                return b".".join([*found, TAIL])
            found.append(token.text if token.literal else STAR)
        return b".".join([*found, TAIL] if self._source.tail else found)

    def __repr__(self) -> str:
        return f"SubjectTransform({self.source!r}, {self.destination!r})"

    def _find_prefixes(self) -> tuple[bytes, bytes] | None:
        """Return both prefixes of a mapping such as `a.>` to `b.>`: the common case needs no tokens."""
        # A token that starts with `*` is not a literal in a source: see `_as_server_reads`.
        tokens = [*self._source.tokens[:-1], *(token.text for token in self._tokens)]
        if not self._source.tail or any(token[:1] == STAR for token in tokens):
            return None
        if not all(token.literal for token in self._tokens):
            return None
        return self.source[:-1], self.destination[:-1]

    def matches(self, subject: bytes) -> bool:
        """Tell whether the source covers the subject of a publish."""
        if has_wildcard(subject):
            return not has_empty_token(subject) and is_subset(subject, self.source)
        return bool(self._matches(subject))

    def apply(self, subject: bytes, draw: Draw = refuse_to_draw) -> bytes | None:
        """Return the destination of a publish's subject, None where the source does not match.

        draw: the source of randomness of `random`.  Raises ConfigError where it is needed and was not given.
        """
        if self._prefixes is not None:
            old, new = self._prefixes
            if not subject.startswith(old) or len(subject) == len(old) or has_empty_token(subject):
                return None
            return new + subject[len(old) :]
        if not self.matches(subject):
            return None
        return subject if self._identity else self._build(subject, draw)

    def apply_pattern(self, pattern: bytes) -> bytes | None:
        """Return the destination of a subscription, wildcards carried over; None unless wholly covered.

        Only an invertible mapping has an answer for wildcards.  `collide(source, pattern)` tells whether the
        subscription is covered in part.
        """
        if self.no_inverse is not None or not is_subset(pattern, self.source):
            return None
        return self._build(pattern, refuse_to_draw)

    def _build(self, subject: bytes, draw: Draw) -> bytes:
        tokens = subject.split(b".")
        made = [part(tokens, draw) for part in self._parts]
        if self._tail is not None:
            made += tokens[self._tail :]
        return b".".join(made)

    def inverse(self) -> SubjectTransform:
        """Return the transform that undoes this one.

        Raises ConfigError with the reason where there is none.
        """
        if self.no_inverse is not None:
            raise ConfigError(
                f"the mapping of {show(self.source)} to {show(self.destination)} cannot be undone: "
                f"{self.no_inverse}"
            )
        # The n-th `*` of the inverse's source is the wildcard that the n-th copying token was made of.
        order = [token.wildcard for token in self._tokens if token.wildcard is not None]
        source = [STAR if token.wildcard is not None else token.text for token in self._tokens]
        back = [
            b"$%d" % (order.index(at) + 1) if token == STAR else token
            for at, token in enumerate(self._source.tokens)
        ]
        return SubjectTransform(b".".join([*source, TAIL] if self._source.tail else source), b".".join(back))


def _as_server_reads(source: bytes) -> bytes:
    """Return the source as the server matches it: it takes any token that starts with `*` for `*`."""
    if b"*" not in source or not has_wildcard(source):
        return source
    return b".".join(STAR if token[:1] == STAR else token for token in source.split(b"."))


def _check_subject(subject: bytes, part: str) -> None:
    if not is_valid_strict(subject):
        raise ConfigError(f"the {part} of a mapping, {show(subject)}, is not a valid subject")


def _check_destination(written: list[bytes], source: Source, destination: bytes) -> None:
    # A function may hold blanks and dots between its braces, so a letter stands for it here.
    _check_subject(b".".join(token if token[:2] != b"{{" else b"x" for token in written), "destination")
    if STAR in written:
        raise ConfigError(f"the destination {show(destination)} must name wildcards by $1, not by *")
    if (written[-1] == TAIL) is not source.tail:
        raise ConfigError(f"{show(source.pattern)} and {show(destination)} must both end in > or neither")


def _why_not_invertible(source: Source, tokens: list[MapToken]) -> str | None:
    used = [token.wildcard for token in tokens if token.wildcard is not None]
    for token in tokens:
        if token.wildcard is None and not token.literal:
            return f"{show(token.text)} cannot be undone"
        if token.literal and token.text[:1] == STAR:
            return f"the token {show(token.text)} would match any"
    # The inverse has these tokens in its destination, where they would mean something else.
    for token_bytes in source.tokens:
        if token_bytes != STAR and (token_bytes[:1] in (b"*", b"$") and not _is_plain(token_bytes)):
            return f"the source token {show(token_bytes)} reads as a wildcard"
        if token_bytes.startswith(b"{{"):
            return f"the source token {show(token_bytes)} reads as a function"
    if sorted(used) != source.wildcards:
        return "it does not use each wildcard of its source exactly once"
    return None


def _is_plain(token: bytes) -> bool:
    return token[:1] == b"$" and NUMBER.fullmatch(token, 1) is None


class Destination(NamedTuple):
    """A weighted destination: `weight` percent of the subjects go there."""

    subject: bytes
    weight: int = 100


class Mapping:
    """A source and its weighted destinations.

    Weights are percents.  The rest of the subjects stay unmapped, unless the source itself is one of the
    destinations: then, as on the server, the rest is lost (mapped to the empty subject, which matches
    nothing).
    """

    def __init__(self, source: bytes, destinations: bytes | Sequence[Destination]) -> None:
        listed = [Destination(destinations)] if isinstance(destinations, bytes) else list(destinations)
        total = sum(destination.weight for destination in listed)
        if not listed:
            raise ConfigError(f"the mapping of {show(source)} has no destination")
        if any(not 0 <= destination.weight <= 100 for destination in listed) or total > 100:
            raise ConfigError(
                f"the weights of the mapping of {show(source)} must be 0 to 100, and 100 in all"
            )
        self.source: Final = source
        self.choices: Final = tuple(
            (SubjectTransform(source, destination.subject), destination.weight) for destination in listed
        )
        self._stays = not any(destination.subject == source for destination in listed)

    @property
    def only(self) -> SubjectTransform | None:
        """The only transform of a mapping without random choice, else None."""
        return self.choices[0][0] if len(self.choices) == 1 and self.choices[0][1] == 100 else None

    def apply(self, subject: bytes, draw: Draw = refuse_to_draw) -> bytes | None:
        """Return the destination of a subject: None for no match, `b""` for a subject that is lost."""
        first = self.choices[0][0]
        if len(self.choices) == 1 and self.choices[0][1] == 100:
            return first.apply(subject, draw)
        if not first.matches(subject):
            return None
        percent = draw(100)
        for transform, weight in self.choices:
            if percent < weight:
                return transform.apply(subject, draw)
            percent -= weight
        return subject if self._stays else b""
