"""The options of a proxy: one table for flags, environment, configuration file and `natsproxy config`.

A row has the option's name (`--name`, `NATSPROXY_NAME`, `name` in a file; `record-flush` is also `flush` in a
`[record]` table), how its value is read, and what it is for.  A new option is a row here and a line in
`config/build.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from natsproxy.addresses import Address, parse_address
from natsproxy.capture.filter.recording_filter import PayloadPolicy
from natsproxy.protocol.subjects import is_valid_subscribe
from natsproxy.rules.file import values


@dataclass(frozen=True, slots=True)
class Option:
    """An option.  read: raises ValueError, with the end of a sentence that begins with the name.

    default: as a user would write it; None for none.  many: it may be given several times.  choices: the
    words that it may be.  flag: it is on or off.
    """

    name: str
    read: Callable[[Any], Any]
    default: str | bool | None
    help: str
    many: bool = False
    required: bool = False
    metavar: str = "TEXT"

    @property
    def key(self) -> str:
        """Its name as an identifier."""
        return self.name.replace("-", "_")

    @property
    def flag(self) -> bool:
        """Whether it is on or off."""
        return isinstance(self.default, bool)


def listen(value: Any) -> Address:
    """Read HOST:PORT, [::1]:PORT or :PORT."""
    return parse_address(values.text(value), port=None)


def upstream(value: Any) -> Address:
    """Read nats://HOST[:PORT] or HOST[:PORT]."""
    return parse_address(values.text(value), host="127.0.0.1")


def duration(value: Any) -> int:
    """Read "250ms", "1m30s", or a number of seconds; nanoseconds."""
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        return values.duration(value)
    if isinstance(value, bool) or not 0 <= seconds < float("inf"):
        raise ValueError(f'must be a duration such as "250ms" or a number of seconds, not {value!r}')
    return int(seconds * 1e9)


def whole(value: Any) -> int:
    """Read a whole number of at most 64 bits, as captures can hold it."""
    try:
        number = int(value) if isinstance(value, str) else value
    except ValueError:
        number = None
    if not isinstance(number, int) or isinstance(number, bool) or not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"must be a whole number of at most 64 bits, not {value!r}")
    return number


def path(value: Any) -> Path:
    """Read a path."""
    if isinstance(value, Path):
        return value
    if not values.text(value).strip():  # an empty one would be the folder that one is in
        raise ValueError(f"must be the name of a file, not {value!r}")
    return Path(value).expanduser()


def pattern(value: Any) -> bytes:
    """Read a subject pattern."""
    raw = values.text(value).encode("utf-8", "surrogateescape")
    if not is_valid_subscribe(raw):
        raise ValueError(f"must be a valid subject pattern, which {value!r} is not")
    return raw


def policy(value: Any) -> PayloadPolicy:
    """Read SUBJECT=ACTION."""
    return PayloadPolicy.parse(values.text(value))


_size = values.above_zero(values.size)

OPTIONS: Final = (
    Option("listen", listen, "127.0.0.1:4222", "Where clients connect to.", many=True, metavar="HOST:PORT"),
    Option("upstream", upstream, None, "The server.", required=True, metavar="nats://HOST:PORT"),
    Option(
        "advertise",
        values.one_of("strip", "self", "pass"),
        "strip",
        "What becomes of the server addresses in INFO.",
        metavar="strip|self|pass",
    ),
    Option(
        "hold", duration, "0s", "How long a new client waits while the upstream is down.", metavar="DURATION"
    ),
    Option("connect-timeout", duration, "2s", "To reach the upstream, up to its INFO.", metavar="DURATION"),
    Option(
        "auth-timeout", duration, "2s", "For a client to say its first word; 0 for ever.", metavar="DURATION"
    ),
    Option("keepalive", values.boolean, True, "TCP keep-alive on both legs."),
    Option(
        "unparsed",
        values.one_of("close", "pass"),
        "close",
        "What becomes of bytes from a client that are not NATS.",
        metavar="close|pass",
    ),
    Option(
        "max-control-line",
        _size,
        "4KiB",
        "The server's max_control_line (it is not in INFO).",
        metavar="SIZE",
    ),
    Option("rule-buffer", _size, "8MiB", "Up to what size rules see whole payloads.", metavar="SIZE"),
    Option(
        "queue",
        _size,
        "8MiB",
        "How much delayed traffic each direction of a connection holds.",
        metavar="SIZE",
    ),
    Option("buffers", _size, "256MiB", "How much all connections hold together.", metavar="SIZE"),
    Option("drain", duration, "30s", "How long connections have to end on SIGTERM.", metavar="DURATION"),
    Option("rules", path, None, "Rules to apply (TOML).", metavar="FILE"),
    Option("seed", whole, None, "Seed of all dice; the log names the one that was drawn.", metavar="NUMBER"),
    Option("record", path, None, "Record to this file (x.ncap) or folder.", metavar="PATH"),
    Option(
        "record-rotate",
        values.size,
        "256MiB",
        "Size at which a new segment begins; 0 for never.",
        metavar="SIZE",
    ),
    Option(
        "record-rotate-every",
        duration,
        "0s",
        "Age at which a new segment begins; 0 for never.",
        metavar="DURATION",
    ),
    Option("record-flush", duration, "250ms", "How long a frame may wait to be written.", metavar="DURATION"),
    Option(
        "record-compression",
        values.one_of("none", "zstd"),
        "none",
        "Of the capture's blocks.",
        metavar="none|zstd",
    ),
    Option("record-frame-max", _size, "8MiB", "How much is kept of one frame.", metavar="SIZE"),
    Option("record-queue", _size, "64MiB", "How much waits for the disk.", metavar="SIZE"),
    Option(
        "record-overflow",
        values.one_of("gap", "wait", "close"),
        "gap",
        "When the disk is too slow or full: leave a gap in the capture, hold traffic up, or close "
        "connections.",
        metavar="gap|wait|close",
    ),
    Option(
        "record-wait",
        duration,
        "10s",
        "How long wait holds traffic up before it closes connections.",
        metavar="DURATION",
    ),
    Option(
        "record-connection",
        values.line,
        None,
        "Only clients of this name (*, ?), or user:PATTERN, address:PATTERN.",
        many=True,
        metavar="PATTERN",
    ),
    Option("record-subject", pattern, None, "Only these subjects.", many=True, metavar="SUBJECT"),
    Option(
        "record-payload",
        policy,
        None,
        "What is kept of payloads: keep, hash, drop or truncate:BYTES.",
        many=True,
        metavar="SUBJECT=ACTION",
    ),
    Option(
        "log-format",
        values.one_of("auto", "console", "json"),
        "auto",
        "Lines for a person or JSON.",
        metavar="auto|console|json",
    ),
    Option(
        "log-level",
        values.one_of("debug", "info", "warning", "error"),
        "info",
        "The least to be said.",
        metavar="debug|info|warning|error",
    ),
    Option("log-file", path, None, "A file instead of standard error; SIGHUP opens it anew.", metavar="FILE"),
)
"""All options, in the order of `--help`."""
