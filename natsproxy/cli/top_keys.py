"""The keys of `natsproxy top`, as those of nats-top: a key does something at once, or asks for a value."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from natsproxy.converters import duration_or_seconds
from natsproxy.printable import printable
from natsproxy.units import SECOND

RATE: Final = "rate"
ORDERS: Final = (
    RATE,
    "cid",
    "start",
    "subs",
    "pending",
    "msgs_to",
    "msgs_from",
    "bytes_to",
    "bytes_from",
    "last",
    "idle",
    "uptime",
    "rtt",
)
MOST: Final = 1000
LEAST_DELAY: Final = 0.1  # seconds
HELP: Final = (
    ("o", f"order of the connections: {', '.join(ORDERS)}"),
    ("n", f"number of connections that are shown, at most {MOST}"),
    ("d", "delay between two updates: 2s, 500ms"),
    ("s", "subjects of each connection, or not"),
    ("space", "update now"),
    ("? h", "this help, or not"),
    ("q", "quit"),
)


@dataclass
class TopView:
    """The choices of the user.  note: a line for them.  done: they have quit.

    delay: seconds.  asking: the key whose value is being typed, "" for none.  typed: so far.
    """

    order: str = RATE
    number: int = MOST
    delay: float = 1.0
    subjects: bool = False
    help: bool = False
    note: str = ""
    done: bool = False
    asking: str = ""
    typed: str = ""

    def press(self, keys: str) -> None:
        """Take keys; those of a sequence, such as an arrow's, have no meaning."""
        if keys.startswith("\x1b"):
            self.asking = ""
            return
        for key in keys:
            self._press(key)

    def _press(self, key: str) -> None:
        if self.asking:
            self._type(key)
            return
        self.note = ""
        if key in _QUESTIONS:
            self.asking, self.typed = key, ""
        elif key == "s":
            self.subjects = not self.subjects
        elif key in "?h":
            self.help = not self.help
        elif key in "q\x04":
            self.done = True

    def _type(self, key: str) -> None:
        if key in "\r\n":
            asking, self.asking = self.asking, ""
            try:
                if self.typed.strip():
                    _QUESTIONS[asking][1](self, self.typed.strip())
            except ValueError as error:
                self.note = str(error)
        elif key in "\x7f\b":
            self.typed = self.typed[:-1]
        elif key.isprintable() and len(self.typed) < 40:
            self.typed += key

    @property
    def line(self) -> str:
        """The line between the facts and the table."""
        return f"{_QUESTIONS[self.asking][0]} {self.typed}_" if self.asking else self.note


def _set_order(view: TopView, text: str) -> None:
    if text not in ORDERS:
        raise ValueError(f"there is no order {printable(text)!r}: there are {', '.join(ORDERS)}")
    view.order = text


def _set_number(view: TopView, text: str) -> None:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MOST:
        raise ValueError(f"the number must be 1 to {MOST}")
    view.number = int(text)


def _set_delay(view: TopView, text: str) -> None:
    seconds = duration_or_seconds(text) / SECOND
    if seconds < LEAST_DELAY:
        raise ValueError("the delay must be at least 100ms")
    view.delay = seconds


_QUESTIONS: Final[Mapping[str, tuple[str, Callable[[TopView, str], None]]]] = {
    "o": ("order by:", _set_order),
    "n": ("connections:", _set_number),
    "d": ("delay:", _set_delay),
}


@contextmanager
def keyboard() -> Iterator[Callable[[float], str]]:
    """Give a function that waits at most so many seconds and returns the keys that were pressed.

    Keys come without a line's end and are not shown; where there is no keyboard, none comes.
    """
    number = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None

    def read(seconds: float) -> str:
        ready, _, _ = select.select([] if number is None else [number], [], [], max(0.0, seconds))
        if number is None or not ready:
            return ""
        return os.read(number, 1024).decode("utf-8", "ignore") or "q"  # its end: the terminal has gone

    if number is None:
        yield read
        return
    before = termios.tcgetattr(number)
    tty.setcbreak(number)
    try:
        yield read
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)
