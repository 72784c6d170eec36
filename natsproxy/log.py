"""The log of a proxy: structlog, one line per event, for a terminal or as JSON.

Traffic does not wait for its log.  Lines go through a bounded queue to a thread, and only that thread meets a
pipe that nobody reads, a full disk or a reader that is gone.  Lines that come within ten milliseconds are
written together.  Those that do not fit are counted, and the count stands before the next line that is
written.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import MutableMapping
from datetime import UTC, datetime
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

# structlog takes rich where it is installed, for tracebacks that we never log: a tenth of the time to start.
if _HIDDEN := "rich" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment]
try:
    import structlog
finally:
    if _HIDDEN:
        del sys.modules["rich"]

from natsproxy.addresses import mask_urls
from natsproxy.errors import ConfigError
from natsproxy.events import Closed, Event, FailedOver, Firing, Greeted, Notice, Opened, RecordingResumed, Who
from natsproxy.printable import printable, wants_plain
from natsproxy.units import SECOND

QUEUE: Final = 1 << 20
"""Bytes of lines that wait to be written, at most."""
_BY_SERVER: Final = ("server-closed", "server-lost", "server-protocol")
"""Ends that the server caused."""
_SERVER_FAULT: Final = "server-protocol"
"""One that is a warning even without an -ERR; `net/server_ends.py` reports the others together."""
_UNAUTHORIZED: Final = "unauthorized"
"""The end of a client that the proxy refused, a warning too."""
_CLIENT_LEFT: Final = ("client-closed", "client-lost")
PROBES_EVERY: Final = 600_000_000_000
"""The time (ns) between two lines about probes."""
_STDERR: Final = 2
_encode: Final = json.JSONEncoder(default=repr, check_circular=False).encode
_PATIENCE: Final = 2.0  # seconds for the last lines
_PAUSE: Final = 0.01  # seconds in which lines gather before they are written together
_BATCH: Final = 256  # lines


class LogFile:
    """The file that lines go to: standard error, or a path that `reopen` opens anew after log rotation.

    terminal: standard error is a terminal.  json: lines are JSON.  queue: bytes of lines that may wait.
    lost: the lines that nobody took.
    A context manager: at its end the last lines are written, unless nobody takes them for two seconds.
    """

    def __init__(self, path: Path | None = None, *, queue: int = QUEUE) -> None:
        self.terminal = path is None and os.isatty(_STDERR)
        self.json = not self.terminal
        self._path = path
        self._room = queue
        self._fd = self._open()
        self._waiting: deque[bytes | int] = deque()  # lines, or the file that the next ones go to
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self.lost = self._told = 0
        self._closing = self._idle = False
        # A daemon: a reader that takes nothing must not keep the process alive.
        self._thread = threading.Thread(target=self._write_out, name="log", daemon=True)
        self._thread.start()

    def __enter__(self) -> LogFile:
        return self

    def __exit__(self, *exc: object) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(_PATIENCE)

    def _open(self) -> int:
        try:
            if self._path is None:
                return os.dup(_STDERR)
            return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            name = self._path or "to standard error"
            raise ConfigError(f"cannot write the log {name}: {error.strerror}") from None

    def reopen(self) -> None:
        """Open the file anew, after log rotation moved it.  Raises ConfigError, and keeps the old file."""
        if self._path is not None:
            fd = self._open()
            with self._changed:
                self._put(fd)

    def msg(self, line: str) -> None:
        """Queue a line; it never waits."""
        # Lone surrogates come from names that are not UTF-8, and no line may fail for them.
        raw = line.encode("utf-8", "replace") + b"\n"
        with self._lock:
            if len(raw) > self._room:
                self.lost += 1
            else:
                self._room -= len(raw)
                self._put(raw)

    debug = info = warning = error = critical = msg  # so structlog calls it

    def _put(self, item: bytes | int) -> None:
        """Queue a line or a file; the caller has the lock."""
        self._waiting.append(item)
        if self._idle:
            self._idle = False
            self._changed.notify()

    # -- the thread

    def _write_out(self) -> None:
        while (item := self._next()) != []:
            if isinstance(item, int):
                os.close(self._fd)
                self._fd = item
                continue
            self._report_lost()
            written = self._write(b"".join(item))
            with self._changed:
                self._room += sum(map(len, item))
                self.lost += sum(end > written for end in accumulate(map(len, item)))
                if not self._closing:
                    # Each wake of this thread takes the interpreter from traffic: not one for every line.
                    self._changed.wait(_PAUSE)
        self._report_lost()
        os.close(self._fd)

    def _next(self) -> list[bytes] | int:
        """Wait for the next lines, or for the file that later ones go to; no lines at the end."""
        with self._changed:
            while not self._waiting and not self._closing:
                self._idle = True
                self._changed.wait()
            lines: list[bytes] = []
            while self._waiting and len(lines) < _BATCH:
                item = self._waiting.popleft()
                if isinstance(item, bytes):
                    lines.append(item)
                elif lines:
                    self._waiting.appendleft(item)
                    break
                else:
                    return item
            return lines

    def _report_lost(self) -> None:
        with self._changed:
            lost = self.lost - self._told
        if lost:
            line = self._lost_line(lost)
            self._told += lost if self._write(line) == len(line) else 0

    def _lost_line(self, lost: int) -> bytes:
        facts = {"event": "log lines lost: their reader is too slow or gone", "lines": lost, "level": "error"}
        text = json.dumps(facts) if self.json else f"{facts['event']}  lines={lost}"
        return text.encode() + b"\n"

    def _write(self, raw: bytes) -> int:
        """Write to the descriptor itself: a thread that is stuck in it holds no lock of Python's.

        Returns the number of bytes that were written.
        """
        written = 0
        try:
            while written < len(raw):
                written += os.write(self._fd, raw[written:])
        except OSError:  # a full disk, or a reader that is gone
            return written
        return written


def logger(file: LogFile, form: str = "auto", level: str = "info") -> Any:
    """Return a structlog logger.  form: "console", "json" or "auto".  level: the lowest level written."""
    if form != "auto":
        file.json = form == "json"
    last: list[Any] = [_safe, structlog.dev.ConsoleRenderer(colors=file.terminal and not wants_plain())]
    if file.json:
        last = [_json]
    structlog.configure(
        processors=[_completed, *last],
        logger_factory=lambda *_: file,
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
    )
    return structlog.get_logger().bind()  # bound once: unbound, it would be for each line


def _completed(log: Any, name: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Add the level and the time, and mask the passwords of URLs in all values: no form of the log has them.

    It is one processor for all, since each costs a line of every rule that acts.
    """
    line["level"] = name
    line["timestamp"] = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    for key, value in line.items():
        if isinstance(value, str) and "@" in value:
            line[key] = mask_urls(value)
    return line


def _json(log: Any, name: str, line: MutableMapping[str, Any]) -> str:
    """Render a line: as structlog does, with an encoder that is made once."""
    return _encode(line)


def _safe(log: Any, name: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Write out control characters, since clients choose names and subjects; leave out None."""
    return {
        key: printable(value) if isinstance(value, str) else value
        for key, value in line.items()
        if value is not None
    }


class EventLog:
    """Writes events to the log.

    The `opened` line of a connection waits for its first other event.  A client that comes and goes without
    a byte is a health probe, and there may be one every second: probes are counted, and one line every ten
    minutes has the count.  One that left before it was opened is a probe where its end needs no detail.

    most: the events of one second that are written, 0 for all; one line has the number of the others.
    """

    def __init__(self, log: Any, most: int = 0) -> None:
        self._log = log
        self._most = most
        self._second = self._in_second = self._left_out = 0
        self._unlogged: dict[int, Opened] = {}  # connections whose `opened` line waits
        self._probes = 0
        self._last_probes = -PROBES_EVERY

    def __call__(self, event: Event) -> None:
        """Write an event, or keep it until the next one of its connection."""
        if isinstance(event, Opened):
            self._unlogged[event.conn] = event
            return
        opened = self._unlogged.pop(event.conn, None) if event.conn is not None else None
        if isinstance(event, Closed) and _is_probe(opened, event):
            self._probe(event.t)  # neither its opening nor its end is written
            return
        if opened is not None:
            self._write(opened, event.t)
        self._write(event, event.t)

    def _write(self, event: Event, now: int) -> None:
        """Write an event if its second has room."""
        if now // SECOND != self._second:
            self._second, self._in_second = now // SECOND, 0
            self._report_left_out()
        self._in_second += 1
        if self._most and self._in_second > self._most:
            self._left_out += 1
        else:
            log_event(self._log, event)

    def _report_left_out(self) -> None:
        if self._left_out:
            self._log.warning("events left out of the log", count=self._left_out, log_rate=self._most)
        self._left_out = 0

    def _probe(self, now: int) -> None:
        self._probes += 1
        if now - self._last_probes >= PROBES_EVERY:
            self._last_probes = now
            self._report_probes()

    def close(self) -> None:
        """Write the counts that no line has yet."""
        self._report_left_out()
        self._report_probes()

    def _report_probes(self) -> None:
        if self._probes:
            self._log.info("connections closed by clients that sent nothing", count=self._probes)
        self._probes = 0


def _is_probe(opened: Opened | None, closed: Closed) -> bool:
    left = not closed.c2s_bytes and closed.cause in _CLIENT_LEFT
    return left and (opened is not None or not closed.detail)


@lru_cache(64)  # the events of a connection mostly have the same
def _client(who: Who) -> dict[str, str | None]:
    return {name: fact or None for name, fact in who._asdict().items()}


def log_event(log: Any, event: Event) -> None:
    """Write an event."""
    if isinstance(event, Opened):
        log.info(
            "opened",
            conn=event.conn,
            client=event.client,
            proxied_by=event.proxied_by or None,
            upstream=event.upstream,
        )
    elif isinstance(event, Closed):
        by_server = bool(event.error or event.cause in _BY_SERVER)
        warned = bool(event.error) or event.cause in (_SERVER_FAULT, _UNAUTHORIZED)
        (log.warning if warned else log.info)(
            "closed",
            conn=event.conn,
            cause=event.cause,
            detail=event.detail or None,
            error=event.error or None,
            upstream=event.upstream if by_server else None,
            **_client(event.who),
            seconds=round(event.duration / 1e9, 3),
            c2s_bytes=event.c2s_bytes,
            c2s_frames=event.c2s_frames,
            s2c_bytes=event.s2c_bytes,
            s2c_frames=event.s2c_frames,
        )
    elif isinstance(event, Firing):
        # A proxy with rewrites rewrites all the time, and stamps: only the other actions are news.
        write = log.debug if event.action in ("rewrite", "stamp") else log.info
        write(
            "fired",
            rule=event.rule,
            action=event.action,
            conn=event.conn,
            direction=event.direction,
            op=event.op or None,
            role=event.role or None,
            subject=event.subject,
            m=event.m,
            ordinal=event.ordinal,
            count=event.count,
            delay_ms=event.delay / 1e6 or None,
            detail=event.detail or None,
            **_client(event.who),
        )
    elif isinstance(event, RecordingResumed):
        log.warning(
            "recording resumed",
            reason=event.reason,
            seconds=round((event.t - event.since) / 1e9, 3),
            missing_frames=event.frames,
            missing_bytes=event.bytes,
        )
    elif isinstance(event, FailedOver):
        log.info(
            "failed over",
            conn=event.conn,
            server=event.server or None,
            seconds=round(event.lasted / 1e9, 3),
            waited_bytes=event.bytes,
            refused_requests=event.refused,
            subscriptions=event.subscriptions,
            pulls=event.pulls or None,
            **_client(event.who),
        )
    elif isinstance(event, Notice):
        getattr(log, event.level)(event.text, conn=event.conn, **event.data)
    else:
        assert isinstance(event, Greeted)
        log.debug("greeted", conn=event.conn, name=event.name, key=event.key)
