"""The marks of a subject's tokens: which of them may become `*` in a permission, and from when on.

kept: never.  word: from many values on: a word may be a verb, and `orders.*` for `orders.read` and
`orders.list` would allow `orders.delete`.  variable: from some values on: the template takes it for a number
or an id.  generated: at once: no second one will be the same.

`$JS.API` keeps verb, stream and domain, so no line goes across them.  The line of an ack is
`$JS.ACK.<stream>.<consumer>.>`, with domain and account hash where the server sends them.  That of an inbox
is `_INBOX.>`; after another prefix the generated tokens are `*`.  A filter in an API subject is marked as
the subject that it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from functools import lru_cache
from itertools import repeat
from typing import Final, NamedTuple

from natsproxy.protocol.identifiers import INBOX, is_generated, is_generated_consumer, split_nuid
from natsproxy.protocol.jetstream import ack_names_at, flow_names_at, parse_api
from natsproxy.protocol.subjects import STAR, TAIL
from natsproxy.protocol.template import template

_CHUNKS: Final = b"C"
_EVENT_NAMES_AT: Final = 5


class Mark(IntEnum):
    """The right of a token to become `*`: never, or after how many values."""

    KEPT = 0
    WORD = 1
    VARIABLE = 2
    GENERATED = 3


class MarkedToken(NamedTuple):
    """A token of a subject with its mark."""

    text: bytes
    mark: Mark


@lru_cache(maxsize=4096)
def marked(subject: bytes) -> tuple[MarkedToken, ...]:
    """Return the tokens of a subject that was used; those of acks and inboxes end in `>`."""
    tokens = subject.split(b".")
    if tokens[0] == INBOX and len(tokens) > 1:
        return tuple(_kept([INBOX, TAIL]))
    row = _SPACES.get(tokens[0])
    return tuple(_plain(tokens) if row is None else row(subject, tokens))


def _kept(tokens: Iterable[bytes]) -> list[MarkedToken]:
    return [MarkedToken(text, Mark.KEPT) for text in tokens]


def _plain(tokens: list[bytes]) -> list[MarkedToken]:
    """Mark a subject of the user; its first token stays, unless it is generated."""
    found = _names(tokens)
    if found[0].mark != Mark.GENERATED:
        found[0] = MarkedToken(tokens[0], Mark.KEPT)
    return found


def _names(tokens: list[bytes]) -> list[MarkedToken]:
    found: list[MarkedToken] = []
    behind_nuid = False  # there the token of a request may be
    for text in tokens:
        if text in (STAR, TAIL):
            mark = Mark.KEPT
        elif is_generated(text) or (behind_nuid and is_generated_consumer(text)):
            mark = Mark.GENERATED
        else:
            mark = Mark.VARIABLE if template(text) != text else Mark.WORD
        found.append(MarkedToken(text, mark))
        behind_nuid = split_nuid(text) is not None
    return found


def _consumer(text: bytes) -> MarkedToken:
    return MarkedToken(text, Mark.GENERATED) if is_generated_consumer(text) else _names([text])[0]


def _jetstream(subject: bytes, tokens: list[bytes]) -> list[MarkedToken]:
    kind = tokens[1] if len(tokens) > 1 else b""
    names_at = {b"ACK": ack_names_at, b"FC": flow_names_at}.get(kind)
    at = names_at(len(tokens)) if names_at is not None else None
    if at is not None:
        place = [*_kept(tokens[2:3]), MarkedToken(tokens[3], Mark.GENERATED)] if at == 4 else []
        rest = _kept([TAIL]) if kind == b"ACK" else map(MarkedToken, tokens[at + 2 :], repeat(Mark.GENERATED))
        return [*_kept(tokens[:2]), *place, *_kept(tokens[at : at + 1]), _consumer(tokens[at + 1]), *rest]
    call = parse_api(subject)
    if call is None:
        words = _EVENT_NAMES_AT if kind == b"EVENT" else len(tokens)
        return [*_kept(tokens[:words]), *map(_consumer, tokens[words:])]
    found = _kept(tokens[: call.start])
    for name, text in zip(call.names, tokens[call.start :], strict=False):
        if name == "filter":
            found += marked(call.filter)
        else:
            found.append(_consumer(text) if name == "consumer" else MarkedToken(text, Mark.KEPT))
    return found


def _bucket(subject: bytes, tokens: list[bytes]) -> list[MarkedToken]:
    return [*_kept(tokens[:2]), *_names(tokens[2:])]


def _object(subject: bytes, tokens: list[bytes]) -> list[MarkedToken]:
    """Mark a chunk (`C`, an id of the library) or a description (`M`, the name of an object)."""
    mark = Mark.GENERATED if tokens[2:3] == [_CHUNKS] else Mark.VARIABLE
    rest = [MarkedToken(text, Mark.KEPT if text in (STAR, TAIL) else mark) for text in tokens[3:]]
    return [*_kept(tokens[:3]), *rest]


def _service(subject: bytes, tokens: list[bytes]) -> list[MarkedToken]:
    return [*_kept(tokens[:3]), *_names(tokens[3:])]


def _system(subject: bytes, tokens: list[bytes]) -> list[MarkedToken]:
    return [
        MarkedToken(one.text, one.mark if one.mark == Mark.GENERATED else Mark.KEPT) for one in _names(tokens)
    ]


_SPACES: Final = {b"$JS": _jetstream, b"$KV": _bucket, b"$O": _object, b"$SRV": _service, b"$SYS": _system}
"""By the first token."""
