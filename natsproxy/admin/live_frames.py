"""Live frames for any number of viewers: one sample is taken and decoded for all.

Every `TICK` one viewer takes what has passed since (`net/live_blocks.py`), decodes up to `MOST` frames of it,
in slices of time, and shares the result with the others.  Totals are exact.  Viewers too late for a sample
miss its frames, and count them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Final, NamedTuple

import trio

from natsproxy.admin.slices import sliced
from natsproxy.capture.filter.recording_filter import Selection
from natsproxy.capture.format.blocks import Block, BlockKind, Summary
from natsproxy.capture.format.records import CloseRecord, OpenRecord
from natsproxy.capture.listing.listing import Event, Listed, Listing
from natsproxy.capture.read.segment import BlockRef, Segment, decode_items
from natsproxy.errors import CaptureError
from natsproxy.net.clock import BlockClocks
from natsproxy.net.live_blocks import LiveBlocks, Look
from natsproxy.net.proxy import Proxy

TICK: Final = 0.2
"""Seconds between two samples."""
MOST: Final = 400
"""The most frames that are decoded per sample."""
PAYLOAD: Final = 1 << 20
"""The most bytes of a payload that a viewer may ask for: nats-server's default limit."""
VIEWERS: Final = 32
"""The most viewers of one proxy: an event with large payloads takes 13 MB until a slow one has read it."""
_KEPT: Final = 10  # samples kept for viewers
_SEGMENT: Final = Segment("the traffic", b"", b"", 0, 0, 0, None, None, "", {})
_BLOCK: Final = Block(0, BlockKind.RECORDS, 0, 0, 0, 0)


class LiveSample(NamedTuple):
    """A sample.  number: from 1.  frames, bytes: of all traffic so far.  seen: the frames of this sample that
    were decoded.  changes: the connections that opened and closed, as far as they were decoded.
    """

    number: int
    frames: int
    bytes: int
    seen: list[Listed]
    changes: list[Event]


class Viewer:
    """A viewer.  subjects: it wants frames with these only; empty: all.  last: its last sample."""

    def __init__(self, subjects: tuple[bytes, ...], last: LiveSample) -> None:
        self.subjects = subjects
        self.last = last


class LiveFrames:
    """The viewers of one proxy."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._viewers: list[Viewer] = []
        self._samples: deque[LiveSample] = deque([LiveSample(0, 0, 0, [], [])], maxlen=_KEPT)
        self._subjects: tuple[bytes, ...] | None = None  # those of all viewers
        self._listing = Listing()
        self._clocks = BlockClocks()
        self._next = 0.0
        self._turn = trio.Lock()
        self._change = trio.Lock()

    @property
    def full(self) -> bool:
        """True if there is no room for another viewer."""
        return len(self._viewers) >= VIEWERS

    @asynccontextmanager
    async def view(self, subjects: tuple[bytes, ...] = ()) -> AsyncGenerator[Viewer, None]:
        """Be a viewer for the duration of the block."""
        viewer = Viewer(subjects, self._samples[-1])
        self._viewers.append(viewer)
        try:
            await self._choose()
            yield viewer
        finally:
            self._viewers.remove(viewer)
            with trio.CancelScope(shield=True):
                await self._choose()

    async def _choose(self) -> None:
        """Have the proxy keep the frames that some viewer wants, or none."""
        async with self._change:
            if not self._viewers:
                self._subjects = None
                self._listing = Listing()
                await self._proxy.look_on(None)
                return
            wanted = [viewer.subjects for viewer in self._viewers]
            union = tuple(sorted({one for subjects in wanted for one in subjects})) if all(wanted) else ()
            if union == self._subjects:
                return
            if self._subjects is None:
                self._next = trio.current_time() + TICK
            self._subjects = union
            record = self._proxy.settings.record
            kept = Selection() if record is None else record.selection  # its secrets are secrets here too
            selection = Selection(subjects=union, payloads=kept.payloads, filters=kept.filters)
            await self._proxy.look_on(LiveBlocks(selection))

    async def next(self, viewer: Viewer) -> tuple[LiveSample, int, int]:
        """Wait for the next sample for a viewer; return it, and the frames and bytes since its last one."""
        while self._samples[-1].number == viewer.last.number:
            await trio.sleep_until(self._next)
            async with self._turn:
                if self._samples[-1].number == viewer.last.number:
                    await self._look()
        before = viewer.last
        ahead = min(self._samples[-1].number - before.number, len(self._samples))
        viewer.last = sample = self._samples[-ahead]
        return sample, sample.frames - before.frames, sample.bytes - before.bytes

    async def _look(self) -> None:
        look = self._proxy.look()
        self._next = trio.current_time() + TICK
        seen: list[Listed] = []
        changes: list[Event] = []
        async with aclosing(sliced(self._decoded(look))) as found:
            async for one in found:
                if isinstance(one, Listed):
                    seen.append(one if one.client else one._replace(client=self._name(one.one.conn.number)))
                    if len(seen) == MOST:
                        break
                elif isinstance(one.item, OpenRecord | CloseRecord):
                    changes.append(one)
        last = self._samples[-1]
        frames, size = last.frames + look.frames, last.bytes + look.bytes
        self._samples.append(LiveSample(last.number + 1, frames, size, seen, changes))

    def _decoded(self, look: Look) -> Iterator[Listed | Event]:
        """Yield the frames of a sample, and the events between them."""
        if look.block is None:
            return
        mono, wall = self._clocks.read()
        wall0 = look.mono0 + wall - mono
        ref = BlockRef(_SEGMENT, _BLOCK, Summary(look.mono0, wall0, 0, 0, 0, 0, 0, 0, None, None))
        for item in decode_items(b"".join(look.block.buffers), look.mono0):
            with suppress(CaptureError):  # a redacted frame may hold anything
                yield from self._listing.see(ref, item)

    def _name(self, conn: int) -> str:
        """Return the name of a client that connected before there was a viewer."""
        relay = self._proxy.relays.get(conn)
        return relay.session.connect.name if relay is not None else ""
