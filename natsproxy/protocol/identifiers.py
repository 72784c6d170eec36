"""Identifiers that differ from run to run: inboxes, nuids, generated consumer names, ack subjects.

Nothing on the wire says that a token is generated, so its shape decides:

- a nuid is 22 base62 characters that look random: digits beside letters of both cases; without digits, many
  changes of case; without small letters (nats.js 2 uses none), digits in several places.  So the word
  `OrderProcessorServiceX` is not one, and about 1 nuid in 50 is missed.
- clients extend a nuid (`EXTENDED`): nats-py appends four hexadecimal digits to it in a request
  token; an ordered consumer's name ends in `_` and a number, and with nats.js begins with `oc_`.
- a generated consumer name is 8 base62 characters of mixed kinds, or a nuid, with or without those additions.
- an inbox is `_INBOX.<nuid>[.<token>]`, or the same after any other prefix: a nuid that ends a subject, or is
  followed by one token or by `*`, outside of the server's own `$` subjects.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

INBOX: Final = b"_INBOX"
EXTENDED: Final = rb"(oc_)?([0-9A-Za-z]{22})([0-9a-f]{4}|_[0-9]+)?"
"""A nuid with the additions of clients; its second group matches any word of that length."""
_EXTENDED: Final = re.compile(EXTENDED)
_UUID: Final = re.compile(rb"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
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
        return len(_DIGITS_BEFORE_LETTER.findall(token)) > 1  # not one number in a word of capitals
    # 1 nuid in 48 has no digit; CamelCase of 22 letters changes case less often than a random string.
    return any(0x30 <= byte <= 0x39 for byte in token) or len(_CASE_CHANGE.findall(token)) > 7


def split_nuid(token: bytes) -> tuple[bytes, bytes, bytes] | None:
    """Split a token into the bytes before its nuid, the nuid, and the bytes after it; None without one."""
    found = _EXTENDED.fullmatch(token)
    if found is None or not is_nuid(found[2]):
        return None
    return found[1] or b"", found[2], found[3] or b""


def is_generated(token: bytes) -> bool:
    """Tell whether a token is an id that a program generated: a nuid, also with additions, or a UUID."""
    return split_nuid(token) is not None or _UUID.fullmatch(token) is not None


def is_generated_consumer(token: bytes) -> bool:
    """Tell whether a token, known to be a consumer's name, looks generated rather than chosen.

    Eight base62 characters count when they mix digits and letters or change case inside.  A word with a
    number after it (`orders42`) was chosen by a person.
    """
    if len(token) == 8:
        if _BASE62.fullmatch(token) is None or token.isdigit():
            return False
        # With digits: not letters with a number after them, or a capital after the first letter.
        if any(0x30 <= byte <= 0x39 for byte in token):
            return not token.rstrip(b"0123456789").isalpha() or token[1:] != token[1:].lower()
        return len(_CASE_CHANGE.findall(token)) > 2
    return split_nuid(token) is not None


class Inbox(NamedTuple):
    """An inbox subject: `prefix.id[.token]`; token is `b"*"` in the subscription of a request multiplexer."""

    prefix: bytes
    id: bytes
    token: bytes = b""


def find_inbox(subject: bytes) -> Inbox | None:
    """Parse an inbox subject; None for any other.

    Any id may follow `_INBOX`; after another prefix it must be a nuid.
    """
    if subject.startswith(INBOX + b"."):
        name, _, token = subject[len(INBOX) + 1 :].partition(b".")
        return Inbox(INBOX, name, token) if name else None
    if subject.startswith(b"$"):
        return None
    tokens = subject.split(b".")
    for at in (len(tokens) - 1, len(tokens) - 2):  # the nuid ends the subject, or one token follows it
        if at >= 1 and is_nuid(tokens[at]):
            return Inbox(b".".join(tokens[:at]), tokens[at], b".".join(tokens[at + 1 :]))
    return None
