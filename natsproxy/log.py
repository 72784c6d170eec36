"""The log of a proxy: structlog, one line per event, for a person or as JSON."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import IO, Any

import structlog

from natsproxy.errors import ConfigError
from natsproxy.events import Closed, Event, Firing, Gap, Greeted, Notice, Opened


class LogFile:
    """Where the lines go: standard error, or a file that can be opened anew after it was moved away."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._file: IO[str] = sys.stderr
        self.reopen()

    def reopen(self) -> None:
        """Open the file anew, as log rotation asks for; raises ConfigError and stays with the old one."""
        if self._path is None:
            return
        try:
            fresh = self._path.open("a", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write the log {self._path}: {error.strerror}") from None
        if self._file is not sys.stderr:
            self._file.close()
        self._file = fresh

    def write(self, text: str) -> int:
        """Write a line."""
        return self._file.write(text)

    def flush(self) -> None:
        """Let what was written be seen."""
        self._file.flush()

    def isatty(self) -> bool:
        """Whether a person looks on."""
        return self._file.isatty()

    def close(self) -> None:
        """Close the file; standard error stays open."""
        if self._file is not sys.stderr:
            self._file.close()
            self._file = sys.stderr


def logger(file: LogFile, form: str = "auto", level: str = "info") -> Any:
    """Return a structlog logger.  form: "console", "json" or "auto"; level: the least to be said."""
    person = form == "console" or (form == "auto" and file.isatty())
    last: Any = structlog.dev.ConsoleRenderer() if person else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[structlog.processors.add_log_level, structlog.processors.TimeStamper(fmt="iso"), last],
        logger_factory=structlog.PrintLoggerFactory(file),  # type: ignore[arg-type]
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
    )
    return structlog.get_logger()


def log_event(log: Any, event: Event) -> None:
    """Write an event."""
    if isinstance(event, Opened):
        log.info("opened", conn=event.conn, client=event.client, upstream=event.upstream)
    elif isinstance(event, Closed):
        log.info(
            "closed", conn=event.conn, cause=event.cause, detail=event.detail or None,
            seconds=round(event.duration / 1e9, 3), c2s_bytes=event.c2s_bytes, c2s_frames=event.c2s_frames,
            s2c_bytes=event.s2c_bytes, s2c_frames=event.s2c_frames,
        )  # fmt: skip
    elif isinstance(event, Firing):
        # Rewrites are the steady state of a proxy that has any; what rules do beyond that is news.
        say = log.debug if event.action == "rewrite" else log.info
        say("fired", rule=event.rule, action=event.action, conn=event.conn, direction=event.direction,
            subject=event.subject, m=event.m, ordinal=event.ordinal, count=event.count,
            delay_ms=event.delay / 1e6 or None, detail=event.detail or None)  # fmt: skip
    elif isinstance(event, Gap):
        log.error("capture gap", reason=event.reason)
    elif isinstance(event, Notice):
        getattr(log, event.level)(event.text, conn=event.conn)
    else:
        assert isinstance(event, Greeted)
        log.debug("greeted", conn=event.conn, name=event.name, key=event.key)
