"""The gate between traffic and its recorder: who may not pass unrecorded waits here, or is turned away."""

from __future__ import annotations

import trio


class Gate:
    """Open, shut (what is to be read waits) or barred (connections are ended, new ones refused)."""

    def __init__(self) -> None:
        self.shut = False
        self._barred: str | None = None
        self._opened = trio.Event()

    def close(self) -> None:
        """Let traffic wait."""
        if not self.shut:
            self.shut = True
            self._opened = trio.Event()

    def bar(self, reason: str) -> None:
        """Let nothing pass; who waited is to be ended by the caller."""
        self.close()
        self._barred = reason

    def barred(self) -> str | None:
        """Return why nothing may pass; None where it may."""
        return self._barred

    def open(self) -> None:
        """Let traffic pass."""
        self.shut = False
        self._barred = None
        self._opened.set()

    async def opened(self) -> None:
        """Wait until it is opened; it may have been shut again since."""
        await self._opened.wait()
