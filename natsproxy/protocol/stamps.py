"""Stamps: headers that say who published a message, set by the proxy, and perhaps signed by it.

Theory
1. No publisher may write a stamp.  Clients read header blocks in many ways (letter case, blanks, lone CR or
   LF, lines after the blank one), and a consumer may fold names once more, so `stripped` does not parse: a
   line in which the beginning of these names occurs anywhere goes.  What is left holds it nowhere.
2. A stamp stands right behind the version line, so that every reader which finds any header finds it; and
   never ahead of a line that begins with a blank, which some readers add to the value before it.
3. Values are printable ASCII without blanks; other characters, and `%`, are percent-encoded as UTF-8.
4. A signature covers all headers of the stamp but itself, the headers that Nats-Sender-Headers names, and the
   payload (`signed_text`).  The names of the stamp are sorted, in lower case; those of others are as written.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Final, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from natsproxy.protocol.credentials import is_signed_by
from natsproxy.protocol.headers import BLANKS, CRLF, VERSION_LINE, parse

PREFIX: Final = "Nats-Sender-"
USER: Final = PREFIX + "User"
ACCOUNT: Final = PREFIX + "Account"
CLIENT: Final = PREFIX + "Client"
ADDRESS: Final = PREFIX + "Address"
BY: Final = PREFIX + "By"
SUBJECT: Final = PREFIX + "Subject"
TIME: Final = PREFIX + "Time"
HEADERS: Final = PREFIX + "Headers"
KEY: Final = PREFIX + "Key"
SIGNATURE: Final = PREFIX + "Signature"

MOST_FORGED: Final = 64
"""Lines that are removed from one block: a block with more is refused, since each costs time."""
MOST_VALUES: Final = 64
"""Values of one signed header."""

_VERSION: Final = b"natsproxy-stamp-1\n"
_TOKEN: Final = PREFIX.lower().encode()
_FOLD: Final = bytes.maketrans(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ_", b"abcdefghijklmnopqrstuvwxyz-")
_LONG_S: Final = "\u017f".encode()
"""The one letter outside ASCII that folds to a letter of the prefix."""
_HEAD: Final = re.compile(rb"NATS/1\.0(?:[ \t][^\r\n]*)?\r\n")
_FOLDED: Final = re.compile(rb"(?:[ \t][^\n]*(?:\n|\Z)){0,64}")
_BLANK_LINE: Final = re.compile(rb"\n\r?\n")
_PLAIN: Final = re.compile(rb"[!-$&-~]*")
_SAFE: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def encoded(value: bytes) -> str:
    """Return a value as a stamp holds it."""
    if _PLAIN.fullmatch(value) is not None:
        return value.decode("ascii")
    return quote(value, safe=_SAFE)


def time_of(unix: int) -> str:
    """Return a time (Unix, ns) as a stamp holds it: RFC 3339, UTC, in milliseconds."""
    at = _EPOCH + timedelta(microseconds=unix // 1000)
    return at.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def stripped(block: bytes) -> bytes | None:
    """Return a header block without the lines that name a stamp, the very same bytes if there are none.

    None for a block that must not pass: it has more than `MOST_FORGED` of them, names one in its first line,
    or spells one with the long s.
    """
    folded = block.translate(_FOLD)
    if _LONG_S in folded and _TOKEN in folded.replace(_LONG_S, b"s"):
        return None
    at = folded.find(_TOKEN)
    if at < 0:
        return block
    if folded.count(_TOKEN) > MOST_FORGED:
        return None
    kept: list[bytes] = []
    done = 0
    while at >= 0:
        line = block.rfind(b"\n", done, at)
        start = done if line < 0 else line + 1
        if start == 0:
            return None
        kept.append(block[done:start])
        done = block.find(b"\n", at) + 1 or len(block)
        at = folded.find(_TOKEN, done)
    kept.append(block[done:])
    return b"".join(kept)


def stamped(block: bytes, stamp: Mapping[str, str]) -> bytes | None:
    """Return a block, after `stripped`, with a stamp; `b""` becomes a whole one.

    None for a block that does not begin with a version line, since readers differ in what they make of it,
    and for one with more than 64 lines behind it that begin with a blank.
    """
    lines = "".join(f"{name}: {value}\r\n" for name, value in stamp.items()).encode()
    if not block:
        return VERSION_LINE + CRLF + lines + CRLF
    head = _HEAD.match(block)
    if head is None:
        return None
    folded = _FOLDED.match(block, head.end())
    rest = block[head.end() if folded is None else folded.end() :]
    if rest.startswith((b" ", b"\t")):
        return None
    return head[0] + lines + (rest or CRLF)


def values_of(block: bytes, name: bytes) -> list[bytes] | None:
    """Return the values of a header as `parse` reads them; None for more than `MOST_VALUES`."""
    end = _BLANK_LINE.search(block)
    block = block if end is None else block[: end.start() + 1]
    line = b"\n" + name + b":"
    if block.count(line) > MOST_VALUES:
        return None
    found: list[bytes] = []
    at = block.find(line)
    while at >= 0:
        stop = block.find(b"\n", at + 1)
        value = block[at + len(line) : len(block) if stop < 0 else stop]
        found.append(value.removesuffix(b"\r").strip(BLANKS))
        at = block.find(line, at + 1)
    return found


def signed_text(stamp: Mapping[str, str], named: Iterable[tuple[bytes, bytes]], body: bytes) -> bytes:
    """Return what the signature of a stamp signs.

    stamp: its headers, the signature left out.  named: names and values of the headers that it covers.
    """
    own = sorted((name.lower(), value) for name, value in stamp.items())
    lines = [f"{name}:{value}\n".encode() for name, value in own]
    lines += [b"%b:%b\n" % pair for pair in named]
    return b"".join([_VERSION, *lines, sha256(body).hexdigest().encode(), b"\n"])


class StampCheck(NamedTuple):
    """The result of checking one message.

    state: "none" (no stamp), "unsigned", "valid" or "invalid".  why: a clause, for an invalid one.
    stamp: its headers by name, values decoded, as far as they say one thing.
    """

    state: str
    why: str = ""
    stamp: Mapping[str, str] = {}

    @property
    def user(self) -> str:
        """The user of the stamp; "" without one."""
        return self.stamp.get(USER, "")


def check(subject: bytes | None, block: bytes, body: bytes, keys: Collection[str]) -> StampCheck:
    """Check the stamp of a message.

    subject: of the message; None: wherever it was published.  block: its header block.  keys: the public keys
    whose signatures count.  Raises ConfigError where the package nkeys is missing.
    """
    headers = parse(block)
    prefix = _TOKEN.decode()
    pairs = [
        (name.decode("ascii", "replace"), value.decode("ascii", "replace")) for name, value in headers.pairs
    ]
    own = [(name, value) for name, value in pairs if name.lower().startswith(prefix)]
    if not own:
        return StampCheck("none")
    stamp = dict(own)
    shown = {name: unquote_to_bytes(value).decode("utf-8", "replace") for name, value in own}
    if len({name.lower() for name in stamp}) != len(own):
        return StampCheck("invalid", "a header of the stamp is there more than once", shown)
    signature = stamp.pop(SIGNATURE, None)
    if signature is None:
        return StampCheck("unsigned", stamp=shown)
    key = stamp.get(KEY, "")
    if key not in keys:
        return StampCheck("invalid", f"its key is none of those given: {key or 'it names none'}", shown)
    names = [name.encode() for name in stamp.get(HEADERS, "").split(",") if name]
    named = [(name, value) for name in names for value in headers.all(name)]
    if not is_signed_by(key, signed_text(stamp, named, body), signature):
        why = "the signature is not of this message: its payload or a signed header is another one"
        return StampCheck("invalid", why, shown)
    signed = unquote_to_bytes(stamp.get(SUBJECT, ""))
    if subject is not None and signed != subject:
        why = f"it was published to {signed.decode('utf-8', 'replace')!r}, and not to this subject"
        return StampCheck("invalid", why, shown)
    return StampCheck("valid", stamp=shown)
