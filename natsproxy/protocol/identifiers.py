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

`IdentifierMap` carries recorded identifiers over to live ones, in whole tokens only: `abc` never changes in
`abcd`.  An identifier may span tokens (an ack subject, an inbox with its prefix); longer ones go first.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from typing import Final, NamedTuple

from natsproxy.protocol import gojson

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


Key = tuple[bytes, ...]


class _OneWay:
    """Token sequences and what they become; the longest one that starts at a token wins."""

    def __init__(self) -> None:
        self.targets: OrderedDict[Key, Key] = OrderedDict()
        self._lengths: dict[bytes, dict[int, int]] = {}

    def put(self, key: Key, target: Key) -> None:
        if key not in self.targets:
            lengths = self._lengths.setdefault(key[0], {})
            lengths[len(key)] = lengths.get(len(key), 0) + 1
        self.targets[key] = target

    def remove(self, key: Key) -> None:
        if self.targets.pop(key, None) is None:
            return
        lengths = self._lengths[key[0]]
        lengths[len(key)] -= 1
        if not lengths[len(key)]:
            del lengths[len(key)]
        if not lengths:
            del self._lengths[key[0]]

    def map(self, subject: bytes) -> bytes:
        tokens = tuple(subject.split(b"."))
        made: list[bytes] = []
        at, changed = 0, False
        while at < len(tokens):
            taken, target = self._longest(tokens, at)
            changed = changed or taken > 0
            made += target
            at += taken or 1
        return b".".join(made) if changed else subject

    def _longest(self, tokens: Key, at: int) -> tuple[int, Key]:
        for length in sorted(self._lengths.get(tokens[at], ()), reverse=True):
            target = self.targets.get(tokens[at : at + length])
            if target is not None:
                return length, target
        return 0, tokens[at : at + 1]


class IdentifierMap:
    """Which live identifier stands for which recorded one, both ways.

    limit: how many are kept; the oldest go first.  Where two were bound to one, the last binding holds.
    """

    def __init__(self, *, limit: int = 65_536) -> None:
        self._limit = limit
        self._forth = _OneWay()
        self._back = _OneWay()

    def __len__(self) -> int:
        return len(self._forth.targets)

    def bind(self, recorded: bytes, live: bytes) -> None:
        """Let `live` stand for `recorded`: one token each, or several with dots between."""
        key, target = tuple(recorded.split(b".")), tuple(live.split(b"."))
        self._drop(key)
        known = self._back.targets.get(target)
        if known is not None:
            self._drop(known)
        self._forth.put(key, target)
        self._back.put(target, key)
        while len(self) > self._limit:
            self._drop(next(iter(self._forth.targets)))

    def _drop(self, key: Key) -> None:
        target = self._forth.targets.get(key)
        if target is not None:
            self._forth.remove(key)
            self._back.remove(target)

    def learn(self, recorded: bytes, live: bytes) -> bool:
        """Bind what differs between two forms of one subject, where all of that looks generated.

        An inbox is bound by its id and its token each.  Returns False, and binds nothing, when the subjects
        differ in something else.
        """
        ours, theirs = recorded.split(b"."), live.split(b".")
        pairs = [(a, b) for a, b in zip(ours, theirs, strict=False) if a != b]
        inboxes = find_inbox(recorded) is not None and find_inbox(live) is not None
        if len(ours) != len(theirs):
            return False
        if not all(inboxes or (is_generated_consumer(a) and is_generated_consumer(b)) for a, b in pairs):
            return False
        for a, b in pairs:
            self.bind(a, b)
        return True

    def map(self, subject: bytes) -> bytes:
        """Return a recorded subject (or header value) with live identifiers in it."""
        return self._forth.map(subject)

    def unmap(self, subject: bytes) -> bytes:
        """Return a live subject (or header value) with recorded identifiers in it."""
        return self._back.map(subject)

    def map_json(self, body: bytes, *, back: bool = False) -> bytes:
        """Return a JSON body with the identifiers in its strings mapped, all other bytes kept.

        Keys stay.  back: from live to recorded.  A body that is no JSON comes back as it is.
        """
        try:
            gojson.loads(body)
        except ValueError:
            return body
        text = gojson.to_text(body)
        keys = {member.start for member in gojson.members(text)}
        one_way = self._back if back else self._forth
        parts: list[str] = []
        done = 0
        for token in gojson.lex(text):
            if token.text[0] != '"' or token.start in keys:
                continue
            value = gojson.to_bytes(json.loads(token.text))
            mapped = one_way.map(value)
            if mapped != value:
                parts += [text[done : token.start], gojson.to_text(gojson.dumps(gojson.to_text(mapped)))]
                done = token.end
        return gojson.to_bytes("".join([*parts, text[done:]])) if parts else body
