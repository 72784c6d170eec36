"""The tokens of a mapping's destination: nats-server's functions, compiled.

A destination token is a literal, `$n`, `{{function(arguments)}}` or a final `>` (there if and only if the
source ends in one).  n counts the `*` of the source from 1; an n of 0 or less is the subject's first token.

    $n, wildcard(n)                     the n-th `*`
    partition(N, i, j...)               FNV-1a (32 bit) of those wildcards joined by nothing, modulo N
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
from collections.abc import Callable
from difflib import get_close_matches
from typing import Final, NamedTuple

from natsproxy.errors import ConfigError
from natsproxy.protocol.subjects import STAR, TAIL

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
    """Stand in for a source of randomness that was not given: raises ConfigError."""
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
    """Return bytes in the form that errors quote."""
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
