"""The shapes of values that programs make up: identifiers and times, which differ from run to run.

A value may be a part of a longer text (`order-<uuid>`, `oc_<nuid>_1`), so texts are compared in pieces:
`split` cuts a text into words that may be generated and the text between them.  `common_form` names the form
that two pieces share.

- TIME: RFC 3339 with date and time, the same without separators, the form of mails and HTTP; seconds since
  1970 with a fraction; milli-, micro- and nanoseconds since 1970 between the years 2017 and 2033.  Whole
  seconds are ten digits, as many other numbers are: the name of their member must speak of a time too.
- IDENTIFIER: UUIDs, ULIDs, hexadecimal words of 16 to 64 digits, whole numbers of 17 to 20 digits, and words
  of 16 to 43 letters and digits that look random and differ nearly everywhere (nuids, KSUIDs, nanoids, base64
  of random bytes or of a digest).

All else is data: small numbers, short words, dates without a time, base64 of a text.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

_TIME: Final = (
    rb"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:[Zz]|[+-]\d\d:?\d\d)?"
    rb"|\d{8}T\d{6}(?:[.,]\d{1,9})?Z?"
    rb"|[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d (?:GMT|UTC|[+-]\d{4})"
    rb"|20\d\d[01]\d[0-3]\d[0-2]\d[0-5]\d[0-5]\d(?:\d{3}|\d{6})?"
    rb"|1[5-9]\d{8}\.\d{1,9}"
    rb"|1[5-9]\d{11}(?:\d{3}|\d{6})?"
)
_UUID: Final = rb"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
_PIECE: Final = re.compile(
    rb"(?<![0-9A-Za-z])(" + _TIME + rb"|" + _UUID + rb"|[0-9A-Za-z]{16,64})(?![0-9A-Za-z])"
)
SHORTEST_WORD: Final = 16
"""Letters of the shortest identifier."""
_OF_WORDS: Final = frozenset(b"-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
_BLANKED: Final = bytes(byte if byte in _OF_WORDS else 0x20 for byte in range(256))
"""A table for `translate`: what is in no word becomes a blank."""
_IS_TIME: Final = re.compile(_TIME)
_ANY: Final = re.compile(_TIME + rb"|" + _UUID + rb"|[0-9A-Za-z]+")
_IS_UUID: Final = re.compile(_UUID)
_HEX: Final = re.compile(rb"[0-9a-f]{16,64}|[0-9A-F]{16,64}")
_ULID: Final = re.compile(rb"[0-7](?:[0-9A-HJKMNP-TV-Z]{25}|[0-9a-hjkmnp-tv-z]{25})")
_NUMBER: Final = re.compile(rb"[0-9]{17,20}")
_WORD: Final = re.compile(rb"[0-9A-Za-z_+/-]{16,43}")
_SEPARATOR: Final = re.compile(rb"[_+/-]")
_OLD_NUID: Final = re.compile(rb"[0-9A-Z]{22}")
_DIGITS_BEFORE_LETTER: Final = re.compile(rb"[0-9]+[A-Za-z]")
_CASE_CHANGE: Final = re.compile(rb"(?<=[a-z])[A-Z]|(?<=[A-Z])[a-z]")
_TIME_NAME: Final = re.compile(
    r"(?i:(?:.*_)?(?:ts|at|time|timestamp|date|now|when|created|updated|started|ended|expires|deadline"
    r"|exp|iat|nbf))|.*[a-z](?:At|Ts|Time|Timestamp|Date)"
)
_SECONDS: Final = (1_500_000_000, 2_000_000_000)


class Form(Enum):
    """The form of a generated value."""

    IDENTIFIER = "identifier"
    TIME = "time"


def split(text: bytes) -> list[bytes]:
    """Cut a text: words that may be generated at the odd places, the text around them at the even ones."""
    return _PIECE.split(text)


def is_word(text: bytes) -> bool:
    """Return whether a whole text is one word that may be generated."""
    return _PIECE.fullmatch(text) is not None


def common_form(recorded: bytes, live: bytes) -> Form | None:
    """Return the form that two different words share as generated values; None if they are data."""
    if _IS_TIME.fullmatch(recorded) and _IS_TIME.fullmatch(live):
        return Form.TIME
    uuids = (_IS_UUID.fullmatch(recorded) is not None) + (_IS_UUID.fullmatch(live) is not None)
    if uuids == 2 or (not uuids and _are_identifiers(recorded, live)):
        return Form.IDENTIFIER
    return None


def are_generated(recorded: bytes, live: bytes) -> bool:
    """Return whether two texts differ in generated values alone, each of the form of the other one."""
    ours, theirs = split(recorded), split(live)
    if len(ours) > 1 and ours[::2] == theirs[::2]:
        return all(a == b or common_form(a, b) for a, b in zip(ours[1::2], theirs[1::2], strict=True))
    return common_form(recorded, live) is not None


def is_identifier_like(text: bytes) -> bool:
    """Return whether a text has an identifier in it, where a user vouches for its place."""
    return b"<identifier>" in _ANY.sub(_name_of, text)


def _are_identifiers(recorded: bytes, live: bytes) -> bool:
    if recorded.isdigit() and live.isdigit():
        return _NUMBER.fullmatch(recorded) is not None and _NUMBER.fullmatch(live) is not None
    if len(recorded) != len(live):
        return False
    for shape in (_HEX, _ULID):
        if shape.fullmatch(recorded) and shape.fullmatch(live):
            return True
    # One of the two is enough: about one random word in 500 looks chosen.
    if not (_WORD.fullmatch(recorded) and (_is_random(recorded) or _is_random(live))):
        return False
    if _are_chosen(recorded, live):
        return False
    different = sum(a != b for a, b in zip(recorded, live, strict=True))
    return 2 * different > len(recorded) and not (decoded(recorded) and decoded(live))


def _are_chosen(recorded: bytes, live: bytes) -> bool:
    """Return whether both texts have chosen words, as in `order-...`, before an identifier."""
    ours, theirs = _SEPARATOR.split(recorded), _SEPARATOR.split(live)
    alike = [len(part) for part in ours] == [len(part) for part in theirs]
    return alike and any(_is_plain(a) and _is_plain(b) for a, b in zip(ours, theirs, strict=True))


def _is_plain(part: bytes) -> bool:
    return len(part) > 1 and part.isalpha() and (part.islower() or part.isupper())


def _is_random(word: bytes) -> bool:
    """Return whether letters and digits are mixed as in no word that a person chose."""
    if word in (word.lower(), word.upper()):
        # A nuid of nats.js 2 has capitals only; one in sixty has digits before a letter only once.
        least = 1 if _OLD_NUID.fullmatch(word) else 2
        return len(_DIGITS_BEFORE_LETTER.findall(word)) >= least
    return any(0x30 <= byte <= 0x39 for byte in word) or len(_CASE_CHANGE.findall(word)) * 3 > len(word)


def decoded(word: bytes) -> bytes | None:
    """Return the text of which a word is the base64; None if it is none."""
    if len(word) % 4 or len(word) < SHORTEST_WORD:
        return None
    try:
        text = base64.b64decode(word, altchars=b"-_", validate=True)
        return text if text.decode().isprintable() else None
    except ValueError:
        return None


def are_times(name: str, recorded: float, live: float) -> bool:
    """Return whether two numbers, members of one name in JSON, are times in one unit."""
    ours, theirs = repr(recorded).encode(), repr(live).encode()
    if all(_SECONDS[0] <= number < _SECONDS[1] for number in (recorded, live)):
        # A fraction of zero is not always written.
        return b"." in ours + theirs or _TIME_NAME.fullmatch(name) is not None
    return len(ours) == len(theirs) and is_time(ours) and is_time(theirs)


def are_alike(recorded: Any, live: Any) -> bool:
    """Return whether two JSON values have one form: both numbers, or texts of the same times, words, numbers.

    Here a user vouches for the place: words of six characters with a digit among them are identifiers too.
    """
    return isinstance(recorded, str) is isinstance(live, str) and bool(form_of(recorded) == form_of(live))


def form_of(value: Any) -> Any:
    """Return the form of a text or a number, as a text; any other JSON value as it is."""
    if isinstance(value, str):
        return _ANY.sub(_name_of, value.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")
    return "<number>" if type(value) in (int, float) else value


def _name_of(found: re.Match[bytes]) -> bytes:
    word = found[0]
    if _IS_TIME.fullmatch(word):
        return b"<time>"
    digits = any(0x30 <= byte <= 0x39 for byte in word)
    if _IS_UUID.fullmatch(word) or (digits and len(word) > 5) or (len(word) > 15 and _is_random(word)):
        return b"<identifier>"
    return b"<number>" if word.isdigit() else word


def words(text: bytes) -> list[bytes]:
    """Return the words of a text that may be generated identifiers."""
    if len(text) < SHORTEST_WORD:
        return []
    # Much cheaper than a search for pieces.
    runs = [run for run in text.translate(_BLANKED).split() if len(run) >= SHORTEST_WORD]
    return [word for run in runs for word in _PIECE.findall(run) if not _IS_TIME.fullmatch(word)]


def replace(text: bytes, table: Mapping[bytes, bytes]) -> bytes:
    """Return a text with the words that may be generated replaced, where the table has them."""
    return _PIECE.sub(lambda piece: table.get(piece[0], piece[0]), text) if len(text) > 12 else text


def is_time(word: bytes) -> bool:
    """Return whether a word is a time."""
    return _IS_TIME.fullmatch(word) is not None
