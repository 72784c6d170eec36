"""Texts with the values of a table in the place of those that they have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from natsproxy.replay.conversation.generated_values import replace
from natsproxy.replay.conversation.lesson import Member

_MEMBER: Final = re.compile(
    rb'("[^"\\]{0,64}")(\s*:\s*)("(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*)'  # name, colon, text or number
)


def with_members(text: bytes, members: Mapping[Member, bytes]) -> bytes:
    """Return JSON with other values in the members that `members` has."""

    def other(found: re.Match[bytes]) -> bytes:
        value = members.get((found[1], found[3]))
        return found[0] if value is None else found[1] + found[2] + value

    return _MEMBER.sub(other, text)


def translated(run: bytes, table: Mapping[bytes, bytes], times: Mapping[bytes, bytes]) -> bytes:
    """Return a part of a text, without blanks, with the values of two tables: of identifiers and of times."""
    found = table.get(run) or times.get(run)
    if found is not None:
        return found
    if b"." not in run and b"/" not in run:
        text = replace(run, table)
        return replace(text, times) if times else text
    made: list[bytes] = []
    before = b""
    for token in run.split(b"."):
        found = table.get(token)
        if found is None and before:
            found = table.get(before + b"." + token)
            found = found and found.rpartition(b".")[2]
        made.append(found or b"/".join(table.get(part) or replace(part, table) for part in token.split(b"/")))
        before = token
    text = b".".join(made)
    return replace(text, times) if times else text
