"""The settings of a proxy, typed and with their defaults; `net` takes a `ProxySettings` and nothing else.

Durations are nanoseconds, sizes bytes.  How they are read from files, environment and flags is the business
of the other modules here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from natsproxy.addresses import Address
from natsproxy.capture.filter.recording_filter import Selection
from natsproxy.units import MIB, SECOND

_LISTEN = Address("127.0.0.1", 4222)
_UPSTREAM = Address("127.0.0.1", 4223)


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """What is recorded, and where to.

    path: a file `x.ncap`, or a folder for segments.  rotate_size (bytes) and rotate_interval (ns): 0 for
    never.  flush: how long (ns) a record may wait for its block to be sealed.  queue: how much (bytes) may
    wait for the disk.  overflow: what happens beyond that ("gap", "wait" or "close", see `net/recorder.py`).
    wait: for how long (ns) "wait" holds traffic up.  selection: which connections and subjects, and how much
    of their payloads.
    """

    path: Path
    rotate_size: int = 256 * MIB
    rotate_interval: int = 0
    flush: int = SECOND // 4
    compression: str = "none"
    frame_max: int = 8 * MIB
    queue: int = 64 * MIB
    overflow: str = "gap"
    wait: int = 10 * SECOND
    selection: Selection = field(default_factory=Selection)


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """Everything that a proxy needs to know to run."""

    listen: tuple[Address, ...] = (_LISTEN,)
    upstream: Address = _UPSTREAM
    advertise: str = "strip"
    upstream_hold: int = 0
    unparsed: str = "close"
    max_control_line: int = 4096
    rule_buffer: int = 8 * MIB
    queue_bytes: int = 8 * MIB
    buffers: int = 256 * MIB
    connect_timeout: int = 2 * SECOND
    auth_timeout: int = 2 * SECOND
    drain: int = 30 * SECOND
    keepalive: bool = True
    seed: int | None = None
    record: RecordSettings | None = None
