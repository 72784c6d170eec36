"""Identifiers that differ from run to run: inboxes, nuids, generated consumer names, ack subjects.

Recognising them is by shape, since nothing on the wire says what a token is:

- a nuid is 22 base62 characters; to be one, a token must look random: digits beside letters of both cases,
  without digits many changes of case, without small letters (nats.js 2 has none) digits in several places
  (so `OrderProcessorServiceXY` is none; about 1 nuid in 50 is missed).
- clients put more around a nuid (`EXTENDED`): four hexadecimal digits behind it make a request token of
  nats-py, `_` and a number an ordered consumer's name, which nats.js begins with `oc_`.
- a generated consumer name is 8 base62 characters of mixed kind, or a nuid, with or without what clients add.
- an inbox is `_INBOX.<nuid>[.<token>]`, or the same after any other prefix: a nuid that ends a subject, or is
  followed by one token or by `*`, outside of the server's own `$` subjects.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

INBOX: Final = b"_INBOX"
EXTENDED: Final = rb"(oc_)?([0-9A-Za-z]{22})([0-9a-f]{4}|_[0-9]+)?"
"""A nuid (the second group; it may be any word of that length) with what clients put around it."""
_EXTENDED: Final = re.compile(EXTENDED)
_BASE62: Final = re.compile(rb"[0-9A-Za-z]+")
_DIGITS_BEFORE_LETTER: Final = re.compile(rb"[0-9]+[A-Z]")
_CASE_CHANGE: Final = re.compile(rb"(?<=[a-z])[A-Z]|(?<=[A-Z])[a-z]")


def is_nuid(token: bytes) -> bool:
    """Tell whether a token looks like a nuid."""
    if len(token) != 22 or _BASE62.fullmatch(token) is None:
        return False
    if token == token.lower():
        return False
    if token == token.upper():
        return len(_DIGITS_BEFORE_LETTER.findall(token)) > 1
    return any(0x30 <= byte <= 0x39 for byte in token) or len(_CASE_CHANGE.findall(token)) > 7


def split_nuid(token: bytes) -> tuple[bytes, bytes, bytes] | None:
    """Return a token as what stands before its nuid, the nuid, and what stands behind; None without one."""
    found = _EXTENDED.fullmatch(token)
    if found is None or not is_nuid(found[2]):
        return None
    return found[1] or b"", found[2], found[3] or b""


def is_generated_consumer(token: bytes) -> bool:
    """Tell whether a token, known to be a consumer's name, looks generated rather than chosen.

    Eight base62 characters count when they mix digits and letters or change case inside.
    """
    if len(token) == 8:
        if _BASE62.fullmatch(token) is None or token.isdigit():
            return False
        if any(0x30 <= byte <= 0x39 for byte in token):
            return not token.rstrip(b"0123456789").isalpha() or token[1:] != token[1:].lower()
        return len(_CASE_CHANGE.findall(token)) > 2
    return split_nuid(token) is not None


class Inbox(NamedTuple):
    """An inbox subject: `prefix.id[.token]`; token is `b"*"` in the subscription of a request multiplexer."""

    prefix: bytes
    id: bytes
    token: bytes = b""


def find_inbox(subject: bytes, prefixes: tuple[bytes, ...] = (INBOX,)) -> Inbox | None:
    """Take an inbox subject apart; None for any other.

    prefixes: known ones, behind which any id counts; behind another prefix it must be a nuid (evidence).
    """
    for prefix in prefixes:
        if subject.startswith(prefix + b"."):
            name, _, token = subject[len(prefix) + 1 :].partition(b".")
            return Inbox(prefix, name, token) if name else None
    if subject.startswith(b"$"):
        return None
    tokens = subject.split(b".")
    for at in (len(tokens) - 1, len(tokens) - 2):
        if at >= 1 and is_nuid(tokens[at]):
            return Inbox(b".".join(tokens[:at]), tokens[at], b".".join(tokens[at + 1 :]))
    return None
