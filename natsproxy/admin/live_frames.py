"""Frames of the traffic as it goes, for any number of viewers: one sample is taken and decoded for all.

Every `TICK` a viewer's turn takes what has passed since (`net/live_blocks.py`), decodes up to `MOST` frames
of it, in slices of time, and leaves the result to the others.  Totals are exact.  Viewers that come late for
a look miss its frames, and count them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Final, NamedTuple

import trio

from natsproxy.admin.turn import sliced
from natsproxy.capture.filter.recording_filter import Selection
from natsproxy.capture.format.records import Close, Flags, Frames, Open
from natsproxy.capture.read.segment import decode_items
from natsproxy.errors import ProtocolError
from natsproxy.net.live_blocks import LiveBlocks, Look
from natsproxy.net.proxy import Proxy
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Direction
from natsproxy.wire.parse import frames as parse_frames
from natsproxy.wire.parse import head

TICK: Final = 0.2
"""Seconds between two looks."""
MOST: Final = 400
"""Frames that are decoded in one look."""
_KEPT: Final = 10  # looks that wait for viewers


class SeenFrame(NamedTuple):
    """A frame with the record that it stands in.  at: its place in the record."""

    record: Frames
    frame: Frame
    at: int


class Sample(NamedTuple):
    """One look.  number: from 1.  frames, bytes: of all traffic so far.  seen: the frames of this look that
    were decoded.  changes: the connections that opened and closed, as far as they were decoded.
    """

    number: int
    frames: int
    bytes: int
    seen: list[SeenFrame]
    changes: list[Open | Close]


class Viewer:
    """One that looks on.  subjects: it wants frames with these only; empty: all.  last: its last look."""

    def __init__(self, subjects: tuple[bytes, ...], last: Sample) -> None:
        self.subjects = subjects
        self.last = last


class LiveFrames:
    """The viewers of one proxy."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._viewers: list[Viewer] = []
        self._samples: deque[Sample] = deque([Sample(0, 0, 0, [], [])], maxlen=_KEPT)
        self._subjects: tuple[bytes, ...] | None = None  # what is taken now
        self._next = 0.0
        self._turn = trio.Lock()
        self._change = trio.Lock()

    @asynccontextmanager
    async def view(self, subjects: tuple[bytes, ...] = ()) -> AsyncGenerator[Viewer, None]:
        """Look on for the duration of the block."""
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
        """Let the proxy keep the frames that some viewer wants, or none."""
        async with self._change:
            if not self._viewers:
                self._subjects = None
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

    async def next(self, viewer: Viewer) -> tuple[Sample, int, int]:
        """Return the next sample for a viewer, once it is there, and all frames and bytes since its last."""
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
        seen: list[SeenFrame] = []
        changes: list[Open | Close] = []
        async with aclosing(sliced(_decoded(look))) as items:
            async for item in items:
                if isinstance(item, SeenFrame):
                    seen.append(item)
                    if len(seen) == MOST:
                        break
                else:
                    changes.append(item)
        last = self._samples[-1]
        frames, size = last.frames + look.frames, last.bytes + look.bytes
        self._samples.append(Sample(last.number + 1, frames, size, seen, changes))


def _decoded(look: Look) -> Iterator[SeenFrame | Open | Close]:
    """Yield the frames of a look's sample, and the connections that came and went."""
    if look.block is None:
        return
    body = b"".join(look.block.buffers)
    for item in decode_items(body, look.mono0):
        if isinstance(item, Open | Close):
            yield item
        elif isinstance(item, Frames):
            for at, frame in enumerate(_frames_of(item)):
                yield SeenFrame(item, frame, at)


def _frames_of(item: Frames) -> Iterator[Frame]:
    data = bytes(item.data)
    if item.flags & ~Flags.REDACTED:  # cut, truncated or without its payload: the control line is whole
        begin = head(data, Direction(item.direction))
        if begin is not None:
            yield begin
        return
    try:
        yield from parse_frames(data, item.direction)
    except ProtocolError:  # a redacted frame may hold anything
        return
