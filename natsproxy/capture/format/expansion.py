"""The bound on what a compressed block may hold for its size on disk.

A few hundred bytes of zstd can hold 64 MiB of empty arrays or of PINGs, and each of those becomes a Python
object or a line of output: 3.8 GB from a file of 2.4 KB.  So a compressed block holds at most `FREE` values
and frames, and `PER_BYTE` more for each byte that it has on disk.  A recorder stores a block beyond that
uncompressed; a reader refuses it.  Long payloads count as one value, however well they compress.
"""

from __future__ import annotations

from typing import Final

FREE: Final = 4_096
PER_BYTE: Final = 64
_NUMBERS: Final = {
    **dict.fromkeys((0xCC, 0xD0), 2),
    **dict.fromkeys((0xCD, 0xD1, 0xD4, 0xDC, 0xDE), 3),
    0xD5: 4,
    **dict.fromkeys((0xCA, 0xCE, 0xD2, 0xDD, 0xDF), 5),
    0xD6: 6,
    **dict.fromkeys((0xCB, 0xCF, 0xD3), 9),
    0xD7: 10,
    0xD8: 18,
}
"""The bytes of a msgpack value by its first byte, where that decides; of an array or a map: of its head."""
_STRINGS: Final = {
    0xC4: (1, 2),
    0xC5: (2, 3),
    0xC6: (4, 5),
    0xC7: (1, 3),
    0xC8: (2, 4),
    0xC9: (4, 6),
    0xD9: (1, 2),
    0xDA: (2, 3),
    0xDB: (4, 5),
}
"""Strings, bytes and extensions by their first byte: the bytes of the length, and those up to the content."""


def allowed(stored: int) -> int:
    """Return the number of values, and of frames, that a block of `stored` bytes may hold."""
    return FREE + PER_BYTE * stored


def holds_more(body: bytes | bytearray | memoryview, frames: int, most: int) -> bool:
    """Tell whether a body holds more than `most` msgpack values, or its summary claims more frames."""
    # A value has a byte at least, a frame five.
    return len(body) > most and (frames > most or _count(body, most) > most)


def _count(body: bytes | bytearray | memoryview, most: int) -> int:
    """Count the msgpack values of a body up to one more than `most`, whatever they are nested in."""
    at, end, count = 0, len(body), 0
    while at < end and count <= most:
        count += 1
        first = body[at]
        if 0xA0 <= first < 0xC0:
            at += 1 + (first & 31)
        elif first in _STRINGS:
            size, before = _STRINGS[first]
            at += before + int.from_bytes(body[at + 1 : at + 1 + size], "big")
        else:
            at += _NUMBERS.get(first, 1)
    return count
