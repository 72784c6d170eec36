"""Progress of `natsproxy analyze`, on stderr."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

import click

_EACH: Final = 1.0
"""Seconds between two updates of the status line."""
_LINES: Final = 10.0
"""Seconds between two lines where stderr is not a terminal."""
_MAKING: Final = "making tables"


class RunProgress:
    """Progress of a run: what it does now and for how long, and a line per written table.

    On a terminal that is one line that changes, elsewhere a line now and then.
    """

    def __init__(self, quiet: bool) -> None:
        from rich.console import Console

        console = Console(stderr=True)
        self._quiet = quiet
        self._status = console.status("", spinner="line") if console.is_terminal and not quiet else None
        self._text, self._since, self._shown = "", 0.0, 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._repeat, daemon=True)

    def __enter__(self) -> RunProgress:
        if not self._quiet:
            self._thread.start()
        return self

    def say(self, text: str) -> None:
        """Show the current step."""
        self._text, self._since = text, time.monotonic()
        if self._status is not None:
            self._status.update(text)
            self._status.start()
        elif not self._quiet:
            self._shown = self._since
            click.echo(text, err=True)

    def looking(self, done: int, files: int) -> None:
        """Note how many captures have been surveyed."""
        self._text = f"looking for captures: {done:,} of {files:,}"

    def reading(self, done: int, tasks: int) -> None:
        """Note how many parts have been read."""
        self._text = f"reading: {done} of {tasks} parts"

    def table(self, name: str, rows: int) -> None:
        """Show that a table has been written."""
        if not self._quiet:
            self._shown = time.monotonic()
            _line(name, rows)
        if self._text != _MAKING:
            self._text, self._since = _MAKING, time.monotonic()

    def end(self) -> None:
        """Clear the status line."""
        self._text = ""
        if self._status is not None:
            self._status.stop()

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self.end()

    def _repeat(self) -> None:
        """Repeat the current step and its duration, until the end."""
        while not self._ended.wait(_EACH):
            now, text = time.monotonic(), self._text
            said = f"{text} ({now - self._since:.0f} s)"
            if text and self._status is not None:
                self._status.update(said)
            elif text and now - self._shown >= _LINES:
                self._shown = now
                click.echo(said, err=True)


class WatchProgress:
    """Progress of a watch: one changing line on a terminal, else a line per batch; a summary at the end."""

    def __init__(self, captures: Sequence[str]) -> None:
        from rich.console import Console

        console = Console(stderr=True)
        self._captures = ", ".join(captures)
        self._status = console.status("", spinner="line") if console.is_terminal else None
        self._rows: Counter[str] = Counter()
        self._batches: Counter[str] = Counter()
        self._last = "-"

    def __enter__(self) -> WatchProgress:
        click.echo(f"watching {self._captures}; stop with Ctrl-C or SIGTERM", err=True)
        if self._status is not None:
            self._status.start()
        return self

    def __call__(self, table: str, rows: int) -> None:
        """Count the rows of a batch, and show that it has been written."""
        if table in ("frames", "items"):
            self._rows[table] += rows
            self._batches[table] += 1
        else:
            self._last = table
        if self._status is None:
            _line(table, rows)
        else:
            self._status.update(f"{self._sums()}, last written: {self._last}")

    def __exit__(self, *exc: object) -> None:
        if self._status is not None:
            self._status.stop()
        click.echo(f"read: {self._sums()}", err=True)

    def _sums(self) -> str:
        return ", ".join(
            f"{self._rows[name]} {name} in {self._batches[name]} batches" for name in ("frames", "items")
        )


def no_line(table: str, rows: int) -> None:
    """Show nothing."""


def _line(table: str, rows: int) -> None:
    click.echo(f"{table}: {rows} rows", err=True)
