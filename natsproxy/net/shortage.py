"""A shortage of the process itself: no descriptor, or no memory in the system, for one more connection.

Neither clients nor servers are to blame.  It is reported once, as an error, when it begins, and once, as a
warning with its length and a count, when no attempt has failed for a while.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final

from natsproxy.events import Event, Notice
from natsproxy.units import SECOND

ERRNOS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
QUIET: Final = 10 * SECOND
"""The time without a failure after which a shortage is over: each client turned away frees a descriptor."""
_REMEDIES: Final = {errno.EMFILE: " (raise the limit of open files: ulimit -n, LimitNOFILE)"}


class OwnShortage(Exception):
    """No descriptor or memory is left for a connection to a server; the text is the reason."""


class Shortage:
    """The shortage of one proxy.  clock: in nanoseconds."""

    def __init__(self, emit: Callable[[Event], None], clock: Callable[[], int]) -> None:
        self._emit = emit
        self._clock = clock
        self._since = self._last = self._count = 0

    def met(self, error: OSError) -> str:
        """Note that a connection failed for lack of resources; return the reason, as a sentence."""
        self.look()
        now = self._last = self._clock()
        reason = f"natsproxy can open no more connections: {error.strerror}"
        if not self._count:
            self._since = now
            self._emit(Notice(now, None, "error", reason + _REMEDIES.get(error.errno or 0, "")))
        self._count += 1
        return reason

    def look(self) -> int | None:
        """Report the end of the shortage if it has come; return the time until it may (ns), None for none."""
        if not self._count:
            return None
        now = self._clock()
        if (left := self._last + QUIET - now) > 0:
            return left
        seconds = round((self._last - self._since) / SECOND, 3)
        facts: dict[str, object] = {"seconds": seconds, "failures": self._count}
        self._count = 0
        self._emit(Notice(now, None, "warning", "natsproxy can open connections again", facts))
        return None
