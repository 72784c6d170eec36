"""When certificates expire: Python's `ssl` tells that of verified peers only, not of our own.

So the date is read from the DER here: a certificate is SEQUENCE { SEQUENCE { [0] version, serial number,
algorithm, issuer, SEQUENCE { not before, not after }, ... } } in DER (RFC 5280, 4.1).
"""

from __future__ import annotations

import re
import ssl
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Final

_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17  # YYMMDDHHMMSSZ; years from 50 on are of the last century
_GENERALIZED_TIME: Final = 0x18


def file_expiry(path: Path) -> int | None:
    """Return when the first certificate of a PEM file expires (Unix seconds).

    None where it has none that can be read.
    """
    found = _PEM.findall(path.read_text("ascii", "replace"))
    times = [expiry(ssl.PEM_cert_to_DER_cert(one)) for one in found]
    return min((time for time in times if time is not None), default=None)


@lru_cache(maxsize=64)
def expiry(der: bytes) -> int | None:
    """Return when a certificate expires (Unix seconds); None for bytes that are none."""
    try:
        _, fields = _value(_value(der)[1])
        tag, _, rest = _split(fields)
        if tag != _VERSION:
            rest = fields
        for _ in range(3):  # the serial number, the algorithm, the issuer
            _, _, rest = _split(rest)
        _, _, after = _split(_value(rest)[1])
        return _time(*_value(after))
    except (IndexError, ValueError):
        return None


def _split(der: bytes) -> tuple[int, bytes, bytes]:
    """Return the tag and the value of an element, and what comes after it."""
    size, begin = der[1], 2
    if size & 0x80:
        begin += size & 0x7F
        size = int.from_bytes(der[2:begin])
    if begin + size > len(der):
        raise ValueError("an element is longer than what holds it")
    return der[0], der[begin : begin + size], der[begin + size :]


def _value(der: bytes) -> tuple[int, bytes]:
    tag, value, _ = _split(der)
    return tag, value


def _time(tag: int, value: bytes) -> int:
    text = value.decode("ascii")
    if tag == _UTC_TIME:
        text = ("19" if text[:2] >= "50" else "20") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError(f"tag {tag} is no time")
    return int(datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp())
