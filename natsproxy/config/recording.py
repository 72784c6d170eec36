"""The settings of a recording."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from natsproxy.capture.filter.recording_filter import Selection
from natsproxy.converters import path, whole
from natsproxy.errors import ConfigError
from natsproxy.option import (
    DURATION,
    SIZE,
    SIZE_ABOVE_ZERO,
    ValueType,
    described,
    group,
    merged,
    options_of,
    read_values,
    setting,
    settings_from,
    words,
)
from natsproxy.units import KIB, TooLarge, format_duration, format_size, parse_duration, parse_size


@dataclass(frozen=True, slots=True)
class Keep:
    """The most that a recording keeps: bytes, segments, and the age (ns) of a segment; 0 for no limit.

    The segment that is being written counts for size and count.
    """

    size: int = 0
    count: int = 0
    age: int = 0

    def __bool__(self) -> bool:
        return bool(self.size or self.count or self.age)

    def __str__(self) -> str:
        parts = [format_size(self.size) + "B" * (self.size % KIB > 0)] if self.size else []
        parts += [str(self.count)] if self.count else []
        return ", ".join(parts + ([format_duration(self.age)] if self.age else []))


def read_keep(value: Any) -> Keep:
    """Return one limit of a recording: a size with its unit, a number of segments, or an age."""
    text = str(value).strip() if isinstance(value, int | str) and not isinstance(value, bool) else ""
    limit = Keep()
    if text.isdecimal():  # a size without a unit would be mistaken for it
        limit = Keep(count=whole(text))
    for read, member in ((parse_size, "size"), (parse_duration, "age")):
        if not limit:
            try:
                limit = Keep(**{member: read(text)})
            except TooLarge:
                raise
            except ValueError:
                continue
    if not limit:
        expected = 'a size such as "10GiB", a number of segments such as 100, or an age such as "7d"'
        raise ValueError(f"must be {expected}, not {value!r}")
    return limit


def _all_limits(limits: Iterable[Keep]) -> Keep:
    """Return several limits as one.  Raises ConfigError for two of a kind."""
    given: dict[str, int] = {}
    for limit in limits:
        for member, value in asdict(limit).items():
            if value and given.setdefault(member, value) != value:
                raise ConfigError(f"record-keep {limit}: the {member} limit is given twice")
    return Keep(**given)


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """The settings of a recording; sizes in bytes, times in ns.

    path: a file `x.ncap`, or a folder for segments.  keep: the limits beyond which the oldest segments are
    deleted (see `net/retention.py`).  overflow: the reaction to a full queue (see `net/recorder.py`).
    cassette: the options of the comparison that a cassette keeps, as plain data.
    """

    path: Path = field(
        metadata=described(ValueType(path, "PATH"), "Record to this file (x.ncap) or folder.", name="record")
    )
    rotate_size: int = setting(
        SIZE,
        "256MiB",
        "Size at which a new segment starts, sooner if it has very many blocks; 0 for never. A burst may "
        "make a segment larger.",
        name="record-rotate",
    )
    rotate_interval: int = setting(
        DURATION, "0s", "Age at which a new segment starts; 0 for never.", name="record-rotate-every"
    )
    keep: Keep = merged(
        ValueType(read_keep, "LIMIT"),
        _all_limits,
        "Keep this much (10GiB), this many segments (100) or those of this age (7d); delete the oldest; a "
        "new segment starts at a quarter of a size or an age.",
    )
    flush: int = setting(DURATION, "250ms", "Longest time until a frame is written.")
    compression: str = setting(words("none", "zstd"), "none", "Compression of the capture's blocks.")
    frame_max: int = setting(SIZE_ABOVE_ZERO, "8MiB", "Maximum number of bytes kept of one frame.")
    queue: int = setting(SIZE_ABOVE_ZERO, "64MiB", "Memory limit for frames that wait for the disk.")
    overflow: str = setting(
        words("gap", "wait", "close"),
        "gap",
        "If the disk is too slow or full: leave a gap in the capture, hold traffic back, or close "
        "connections.",
    )
    wait: int = setting(
        DURATION, "10s", "With overflow wait: how long traffic is held back before connections are closed."
    )
    selection: Selection = group(Selection)
    cassette: Mapping[str, Any] = field(default_factory=dict)

    def described(self) -> dict[str, Any]:
        """Return the settings that a segment's header has."""
        found = {"compression": self.compression, "frame_max": self.frame_max, **self.selection.described()}
        cassette = {**self.cassette, **self.selection.filters.described()}
        return {**found, "cassette": cassette} if cassette else found

    def rotated_in_time(self) -> RecordSettings:
        """Return the settings with segments small enough for `keep`.

        Whole segments are deleted: larger ones would make little of a limit.
        """
        size, age = -(-self.keep.size // 4), -(-self.keep.age // 4)
        return replace(
            self,
            rotate_size=_least(self.rotate_size, size),
            rotate_interval=_least(self.rotate_interval, age),
        )


def _least(*limits: int) -> int:
    """Return the least of limits, of which 0 means none."""
    return min((limit for limit in limits if limit), default=0)


RECORD: Final = "record"
"""The prefix of the options of a recording."""
RECORD_OPTIONS: Final = {
    option.name.removeprefix(f"{RECORD}-"): option
    for option in options_of(RecordSettings, RECORD)
    if option.name != RECORD
}
"""The options of a recording but for its path, by their names without `record-`."""


def capture_settings(path: Path, given: Mapping[str, Any]) -> RecordSettings:
    """Return the settings of a capture.

    given: values as users write them, by the names in `RECORD_OPTIONS`.  Raises ConfigError.
    """
    values = read_values(RECORD_OPTIONS, given)
    return settings_from(RecordSettings, {RECORD: path, **values}, RECORD).rotated_in_time()
