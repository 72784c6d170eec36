"""The options of a proxy: one table for flags, environment, configuration file and `natsproxy config`.

A row holds the option's name, the function that reads its value, its default and its help.  The name gives
the flag `--name`, the variable `NATSPROXY_NAME` and the key `name` in a file; `record-flush` may also be
`flush` in a `[record]` table.  A new option is a row here, a field in
`config/settings.py` and a line in `config/build.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from natsproxy.addresses import NATS_PORT, parse_address
from natsproxy.capture.filter.recording_filter import PayloadPolicy
from natsproxy.config.settings import LISTENER_SCHEMES, SERVER_SCHEMES, Keep, Listener, Server
from natsproxy.protocol.subjects import is_valid_subscribe
from natsproxy.rules.file import values
from natsproxy.units import parse_duration, parse_size


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    read: returns the typed value of a text or a TOML value; raises ValueError with the end of a sentence that
    begins with the option's name.  default: as a user would write it, or None; a bool makes it a flag.
    many: the option may be given several times.  metavar: the placeholder in `--help`; `a|b` lists the words
    that are valid, for completion.
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
        """The name as an identifier: `record_flush` for `record-flush`."""
        return self.name.replace("-", "_")

    @property
    def flag(self) -> bool:
        """True if the option is only on or off, and takes no value."""
        return isinstance(self.default, bool)


def listen(value: Any) -> Listener:
    """Return the listener of [SCHEME://]HOST:PORT, with [::1]:PORT and :PORT as well."""
    text = values.text(value)
    scheme = text.partition("://")[0] if "://" in text else LISTENER_SCHEMES[0]
    return Listener(parse_address(text, port=None, schemes=LISTENER_SCHEMES), scheme)


def upstream(value: Any) -> Server:
    """Return the server of SCHEME://HOST[:PORT] or HOST:PORT."""
    text = values.text(value)
    scheme = text.partition("://")[0] if "://" in text else None
    # A bare word is a mistake more often than a host, and the proxy would wait for it in vain.
    port = None if scheme is None else NATS_PORT
    address = parse_address(text, host="127.0.0.1", port=port, schemes=SERVER_SCHEMES)
    return Server(address, scheme or SERVER_SCHEMES[0])


def duration(value: Any) -> int:
    """Return the nanoseconds of "250ms", "1m30s" or a number of seconds."""
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        return values.duration(value)
    # `float` takes "nan" and "inf" too; "nan" fails both comparisons.
    if isinstance(value, bool) or not 0 <= seconds < float("inf"):
        raise ValueError(f'must be a duration such as "250ms" or a number of seconds, not {value!r}')
    return int(seconds * 1e9)


def whole(value: Any) -> int:
    """Return a signed whole number of at most 64 bits, the most that captures can hold."""
    try:
        number = int(value) if isinstance(value, str) else value
    except ValueError:
        number = None
    if not isinstance(number, int) or isinstance(number, bool) or not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"must be a whole number of at most 64 bits, not {value!r}")
    return number


def path(value: Any) -> Path:
    """Return a path; `~` is the home folder."""
    if isinstance(value, Path):
        return value
    if not values.text(value).strip():  # an empty path would be the current folder
        raise ValueError(f"must be the name of a file, not {value!r}")
    return Path(value).expanduser()


def pattern(value: Any) -> bytes:
    """Return a subject pattern as bytes."""
    raw = values.text(value).encode("utf-8", "surrogateescape")
    if not is_valid_subscribe(raw):
        raise ValueError(f"must be a valid subject pattern, not {value!r}")
    return raw


def policy(value: Any) -> PayloadPolicy:
    """Return the payload policy of SUBJECT=ACTION."""
    return PayloadPolicy.parse(values.text(value))


def keep(value: Any) -> Keep:
    """Return one limit of a recording: a size with its unit, a number of segments, or an age."""
    text = str(value).strip() if isinstance(value, int | str) and not isinstance(value, bool) else ""
    limit = Keep()
    if text.isdecimal():  # a size without a unit would be mistaken for it
        limit = Keep(count=whole(text))
    for read, field in ((parse_size, "size"), (parse_duration, "age")):
        if not limit:
            with suppress(ValueError):
                limit = Keep(**{field: read(text)})
    if not limit:
        expected = 'a size such as "10GiB", a number of segments such as 100, or an age such as "7d"'
        raise ValueError(f"must be {expected}, not {value!r}")
    return limit


_size = values.above_zero(values.size)

OPTIONS: Final = (
    Option("listen", listen, "127.0.0.1:4222", "The address for clients.", many=True, metavar="HOST:PORT"),
    Option("upstream", upstream, None, "A server.", many=True, required=True, metavar="nats://HOST:PORT"),
    Option(
        "advertise",
        values.one_of("strip", "self", "pass"),
        "strip",
        "Treatment of the server addresses in INFO.",
        metavar="strip|self|pass",
    ),
    Option(
        "upstream-hold",
        duration,
        "0s",
        "The longest wait of a new client while the upstream is down.",
        metavar="DURATION",
    ),
    Option(
        "connect-timeout", duration, "2s", "The longest wait for the upstream's INFO.", metavar="DURATION"
    ),
    Option(
        "auth-timeout",
        duration,
        "2s",
        "The longest wait for a client's first bytes; 0 for no limit.",
        metavar="DURATION",
    ),
    Option("keepalive", values.boolean, True, "TCP keep-alive on both legs."),
    Option(
        "unparsed",
        values.one_of("close", "pass"),
        "close",
        "Treatment of bytes from a client that are not NATS.",
        metavar="close|pass",
    ),
    Option(
        "max-control-line",
        _size,
        "4KiB",
        "The server's max_control_line (it is not in INFO).",
        metavar="SIZE",
    ),
    Option("rule-buffer", _size, "8MiB", "The largest payload that rules can see.", metavar="SIZE"),
    Option(
        "queue",
        _size,
        "8MiB",
        "The most delayed traffic for each direction of a connection.",
        metavar="SIZE",
    ),
    Option("buffers", _size, "256MiB", "The most memory for the traffic of all connections.", metavar="SIZE"),
    Option("drain", duration, "30s", "The time for connections to end after SIGTERM.", metavar="DURATION"),
    Option("rules", path, None, "The file of rules (TOML).", metavar="FILE"),
    Option("seed", whole, None, "The seed of all random choices; the log names it.", metavar="NUMBER"),
    Option("record", path, None, "Record to this file (x.ncap) or folder.", metavar="PATH"),
    Option(
        "record-rotate",
        values.size,
        "256MiB",
        "The size at which a new segment starts; 0 for never.",
        metavar="SIZE",
    ),
    Option(
        "record-rotate-every",
        duration,
        "0s",
        "The age at which a new segment starts; 0 for never.",
        metavar="DURATION",
    ),
    Option(
        "record-keep",
        keep,
        None,
        "Keep this much, this many segments, or those of this age at most, and delete the oldest ones; a "
        "segment is then at most a quarter of it.",
        many=True,
        metavar="LIMIT",
    ),
    Option(
        "record-flush", duration, "250ms", "The longest time before a frame is written.", metavar="DURATION"
    ),
    Option(
        "record-compression",
        values.one_of("none", "zstd"),
        "none",
        "Compression of the capture's blocks.",
        metavar="none|zstd",
    ),
    Option("record-frame-max", _size, "8MiB", "The most bytes kept of one frame.", metavar="SIZE"),
    Option("record-queue", _size, "64MiB", "The most bytes that wait for the disk.", metavar="SIZE"),
    Option(
        "record-overflow",
        values.one_of("gap", "wait", "close"),
        "gap",
        "If the disk is too slow or full: leave a gap in the capture, hold traffic back, or close "
        "connections.",
        metavar="gap|wait|close",
    ),
    Option(
        "record-wait",
        duration,
        "10s",
        "For wait: the longest time before connections are closed.",
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
        "Treatment of payloads: keep, hash, drop or truncate:BYTES.",
        many=True,
        metavar="SUBJECT=ACTION",
    ),
    Option(
        "log-format",
        values.one_of("auto", "console", "json"),
        "auto",
        "Readable lines or JSON; auto: JSON unless on a terminal.",
        metavar="auto|console|json",
    ),
    Option(
        "log-level",
        values.one_of("debug", "info", "warning", "error"),
        "info",
        "The lowest level that is logged.",
        metavar="debug|info|warning|error",
    ),
    Option("log-file", path, None, "A file instead of standard error; SIGHUP reopens it.", metavar="FILE"),
)
"""All options, in the order of `--help`."""
