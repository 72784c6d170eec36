"""The names of captures: a segment's name says when it began, so that segments sort by name.

| name | what it is |
| --- | --- |
| `x.ncap` | the first segment of a recording to one file |
| `x_<time>.ncap` | a later segment of it, or of a later run |
| `<time>-<recorder>-<n>.ncap` | the n-th segment of a recorder in a folder |

The time is that of UTC in milliseconds (`20261125T034417123Z`).  Within a run the times increase, even
if the wall clock is set back (`later_than`).  Captures of earlier versions have no times: `x-<n>.ncap`, and
`<recorder>-<n>.ncap` in a folder.  They come before those with times.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

_MS: Final = 1_000_000
_LAST: Final = 253_402_300_799_999  # ms: the end of the year 9999
_TIME: Final = r"\d{8}T\d{9}Z"
_IN_FOLDER: Final = re.compile(rf"(?P<time>{_TIME})-(?P<recorder>[0-9a-f]{{32}})-(?P<number>\d+)", re.ASCII)
_OF_FILE: Final = re.compile(rf"(?P<base>.+)_(?P<time>{_TIME})", re.ASCII | re.DOTALL)
_NUMBERED: Final = re.compile(r"(?P<base>.+)-(?P<number>\d+)", re.ASCII | re.DOTALL)


class Name(NamedTuple):
    """The parts of a segment's name, in the order in which names sort.

    base: the name that all segments of a recording have in common; the recorder in a folder of earlier
    versions.  time, recorder, number: "" and 0 where the name has none.
    """

    base: str
    time: str
    recorder: str
    number: int


def name_of(path: Path) -> Name:
    """Return the parts of a segment's name."""
    stem = path.stem
    if found := _IN_FOLDER.fullmatch(stem):
        return Name("", found["time"], found["recorder"], int(found["number"]))
    if found := _OF_FILE.fullmatch(stem):
        return Name(found["base"], found["time"], "", 0)
    if found := _NUMBERED.fullmatch(stem):
        return Name(found["base"], "", "", int(found["number"]))
    return Name(stem, "", "", 0)


def segment_order(paths: Iterable[Path]) -> list[Path]:
    """Return the paths of segments in the order of their names."""
    # Names of earlier versions, `<recorder>-<n>`, come before those with times.
    return sorted(paths, key=lambda path: (bool((name := name_of(path)).recorder), name))


def of_file(path: Path) -> Iterator[Path]:
    """Yield `x.ncap` and the files beside it in which its recording, or a later one, may go on."""
    for other in path.parent.glob("*.ncap"):
        if path.stem in (other.stem, name_of(other).base):
            yield other


def later_than(wall: int, last: int) -> int:
    """Return the time of a new name in ms: that of the wall clock (Unix ns), but later than the last name."""
    return max(wall // _MS, last + 1)


def in_folder(folder: Path, ms: int, recorder: bytes, number: int) -> Path:
    """Return the path of a segment in a folder."""
    return folder / f"{_text(ms)}-{recorder.hex()}-{number}.ncap"


def beside(path: Path, ms: int) -> Path:
    """Return the path of a segment after `x.ncap`."""
    return path.with_name(f"{path.stem}_{_text(ms)}.ncap")


def _text(ms: int) -> str:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=min(max(ms, 0), _LAST))
    return f"{moment:%Y%m%dT%H%M%S}{moment.microsecond // 1000:03}Z"
