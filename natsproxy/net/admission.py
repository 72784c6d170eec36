"""The admission of traffic by its recorder: traffic waits, or is refused, where it would pass unrecorded.

| state | reading from the sockets | new connections |
| --- | --- | --- |
| open | goes on | are taken |
| held | waits until the recorder lets it go on | are taken |
| refused | stays held: the recorder ends the connections | are closed |
"""

from __future__ import annotations

from collections.abc import Callable

import trio


class Admission:
    """One state for all connections of a proxy.

    held: relays do not read.  refusal: the reason why no traffic may pass; None where it may.  on_change:
    called with `held` when that changes.
    """

    def __init__(self) -> None:
        self.held = False
        self.refusal: str | None = None
        self.on_change: Callable[[bool], None] | None = None
        self._opened = trio.Event()

    def hold(self) -> None:
        """Stop reading from all connections."""
        if not self.held:
            self.held = True
            self._opened = trio.Event()
            if self.on_change is not None:
                self.on_change(True)

    def refuse(self, reason: str) -> None:
        """Refuse traffic and new connections; the caller ends the connections that wait."""
        self.hold()
        self.refusal = reason

    def open(self) -> None:
        """Let traffic and new connections pass."""
        held, self.held = self.held, False
        self.refusal = None
        self._opened.set()
        if held and self.on_change is not None:
            self.on_change(False)

    async def wait_open(self) -> None:
        """Wait for the next `open`; traffic may be held again by the time that the caller runs."""
        await self._opened.wait()
