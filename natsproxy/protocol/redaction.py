"""Redaction of secrets in JSON, before it reaches a disk or a log.  (`addresses.py` masks URLs.)

A secret is withheld by the name of its key, in any letter case, at any depth, in every duplicate.  An nkey
seed is withheld in any string.  All other bytes are kept.  The marker says why, and the result is still JSON.
This cannot be turned off: captures and logs always get the redacted form.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Final

from natsproxy.protocol import gojson

MARKER: Final = '"[withheld: secret]"'
SEED_WITHHELD: Final = "[withheld: seed]"
SEED_MARKER: Final = f'"{SEED_WITHHELD}"'
CONNECT_SECRETS: Final = frozenset(
    {"pass", "password", "auth_token", "token", "jwt", "sig", "proxy_sig", "seed"}
)
INFO_SECRETS: Final = frozenset({"nonce", *CONNECT_SECRETS})
SEED: Final = re.compile(r"S[ACNOPUX][A-Z2-7]{56}")
_SEED_LENGTH: Final = 58
_NOTHING: Final = frozenset({'""', "null"})


def without_seeds(text: str) -> str:
    """Return a text with the nkey seeds in it withheld."""
    return text if len(text) < _SEED_LENGTH else SEED.sub(SEED_WITHHELD, text)


def redact_object(raw: bytes, secrets: frozenset[str]) -> bytes | None:
    """Return a JSON object with the values of `secrets` (lower-case keys) and all seeds withheld.

    An empty string and `null` are kept, since they are not secret.  Returns None where `raw` is neither an
    object nor `null`; the caller then withholds all of it.
    """
    try:
        gojson.load_pairs(raw)
    except ValueError:
        return None
    text = gojson.to_text(raw)
    cuts: list[tuple[int, int, str]] = []
    # Most texts have neither such a key nor a seed: a search finds that at a tenth of the cost of lexing.
    if _may_name(secrets).search(text):
        cuts += [
            (member.value, member.end, MARKER)
            for member in gojson.members(text)
            if member.key in secrets and text[member.value : member.end] not in _NOTHING
        ]
    if "\\" in text or SEED.search(text):
        cuts += [
            (token.start, token.end, SEED_MARKER)
            for token in gojson.lex(text)
            if token.text[0] == '"' and SEED.search(json.loads(token.text))
        ]
    # Whole spans of the text are replaced, from the end, so a value that is an object is one piece, and
    # no decoding and encoding touches the rest.
    for start, end, marker in reversed(_outermost(cuts)):
        text = text[:start] + marker + text[end:]
    return gojson.to_bytes(text)


@lru_cache
def _may_name(secrets: frozenset[str]) -> re.Pattern[str]:
    """Return a pattern of texts that may have such a key: escaped, or in any letter case as Go folds it."""
    keys = "|".join(map(re.escape, sorted(secrets)))
    return re.compile(rf'"(?:{keys})"|\\', re.IGNORECASE)


def _outermost(cuts: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Return the cuts in order, without those that lie inside another one."""
    kept: list[tuple[int, int, str]] = []
    for cut in sorted(cuts, key=lambda cut: (cut[0], -cut[1])):
        if not kept or cut[0] >= kept[-1][1]:
            kept.append(cut)
    return kept
