"""The subject template: a subject with its variable tokens turned into `*`, so that counts stay bounded.

One rule serves captures, metrics, replay reports and Spark (`_template.pyx` has it in C).  A token becomes
`*` where

1. it is a number (digits only), a UUID, a hexadecimal id (8 characters or more of one letter case, digits and
   letters both), or a nuid, also with the additions of clients (`identifiers.EXTENDED`);
2. it holds three digits in a row (`order12345`, `20240102T0930`);
3. it holds a part of digits only (`device-17`, `user_42`, `-5`) or a hexadecimal id of 4 characters or more
   (`pod-7f9c4d-web`) after a separator: any ASCII character that is neither letter nor digit.  The part ends
   at the next separator or with the token.  So `v1`, `s3`, `http2`, `test-e2e` and `orders-v2` stay;
4. it comes after `_INBOX.`, or directly after a nuid;
5. it is in a JetStream ack or flow-control subject (`$JS.ACK`, `$JS.FC`), except stream, consumer and
   domain;
6. it is a generated name in the place of a consumer's (the JetStream API, acks, flow control, advisories).
   Elsewhere eight mixed characters count as a word and stay.

In JetStream's own subjects the stream, the domain and the words of the API always stay.  The tokens `*` and
`>` stay, so a template is its own template.  Bytes in, bytes out; a subject of lower-case words is returned
as the same object.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from typing import Final

from natsproxy.protocol.identifiers import is_generated_consumer, split_nuid
from natsproxy.protocol.jetstream import ack_names_at, flow_names_at, parse_api

_SUSPECT: Final = re.compile(rb"[0-9A-Z]")
"""A token without digits and capital letters is never variable: this test decides most subjects."""
_CACHED_LENGTH: Final = 200
"""Longer subjects are not cached: the cache is bounded in entries, and a peer chooses their length."""
_HEX: Final = rb"(?:(?=[a-f]*[0-9])(?=[0-9]*[a-f])[0-9a-f]{%d,}|(?=[A-F]*[0-9])(?=[0-9]*[A-F])[0-9A-F]{%d,})"
_VARIABLE: Final = re.compile(
    rb"[0-9]{3}"
    rb"|[^0-9A-Za-z\x80-\xff](?:[0-9]+|%b)(?![0-9A-Za-z\x80-\xff])"
    % (_HEX % (4, 4))
    + rb"|\A(?:[0-9]+|%b)\Z" % (_HEX % (8, 8))
    + rb"|\A[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\Z"
)


_PARTS: Final = re.compile(r"[^0-9A-Za-z\x80-\U0010ffff]+")
_UUIDS: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def name_template(name: str) -> str:
    """Return a client's name with each generated part turned into `*`: a UUID, a number, an id.

    Unlike a token of a subject, it keeps its other parts: `orders-<uuid>` and `billing-<uuid>` are not alike.
    """
    if not any(char.isdigit() or char.isupper() for char in name):
        return name
    name = _UUIDS.sub("*", name)
    found, end = [], 0
    for separator in [*_PARTS.finditer(name), None]:
        at = separator.start() if separator else len(name)
        found.append(_part(name[end:at]))
        if separator:
            found.append(separator[0])
            end = separator.end()
    return "".join(found)


def _part(text: str) -> str:
    raw = text.encode("utf-8", "surrogatepass")
    # A part of a token is told by the separator before it.
    return "*" if text and b"*" in (_remembered(raw), _remembered(b"-" + raw)) else text


def template(subject: bytes, generated: Collection[bytes] = ()) -> bytes:
    """Return the template of a subject, by the rule above.

    generated: names of streams and consumers that are known to be generated, however they look.
    """
    if _SUSPECT.search(subject) is None:
        return subject
    if generated and subject.startswith(b"$JS."):
        return _make(subject, generated)
    if subject.startswith(b"_INBOX."):
        return b"_INBOX" + b".*" * subject.count(b".")
    return _remembered(subject) if len(subject) <= _CACHED_LENGTH else _make(subject)


def _make(subject: bytes, generated: Collection[bytes] = ()) -> bytes:
    tokens = subject.split(b".")
    if tokens[0] == b"$JS" and len(tokens) > 2:
        return b".".join(_jetstream(subject, tokens, generated))
    return b".".join(_plain(tokens))


_remembered: Final = lru_cache(maxsize=4096)(_make)


def _plain(tokens: list[bytes]) -> list[bytes]:
    made: list[bytes] = []
    behind_nuid = False
    for token in tokens:
        nuid = len(token) >= 22 and split_nuid(token) is not None
        if nuid or (behind_nuid and token != b">") or _VARIABLE.search(token) is not None:
            made.append(b"*")
        else:
            made.append(token)
        behind_nuid = nuid
    return made


def _jetstream(subject: bytes, tokens: list[bytes], generated: Collection[bytes]) -> list[bytes]:
    """Return the template tokens of a subject under `$JS`."""

    def stream(token: bytes) -> bytes:
        return b"*" if token in generated else token

    def consumer(token: bytes) -> bytes:
        known = token in generated or is_generated_consumer(token)
        return b"*" if known or _VARIABLE.search(token) is not None else token

    kind = tokens[1]
    if kind in (b"ACK", b"FC"):
        at = ack_names_at(len(tokens)) if kind == b"ACK" else flow_names_at(len(tokens))
        if at is not None:
            names = [stream(tokens[at]), consumer(tokens[at + 1])]
            domain = [tokens[2], b"*"] if at == 4 else []
            return [*tokens[:2], *domain, *names, *[b"*"] * (len(tokens) - at - 2)]
    call = parse_api(subject)
    if call is not None and call.stream and "account" not in call.names:
        names = [stream(call.stream), *([consumer(call.consumer)] if call.consumer else [])]
        return [*tokens[: call.start], *names, *_plain(tokens[call.start + len(names) :])]
    if kind == b"EVENT" and len(tokens) > 5:
        return [*tokens[:5], *(consumer(token) for token in tokens[5:])]
    return _plain(tokens)
