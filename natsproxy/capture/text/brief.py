"""The part of a capture that a cassette needs: the frames that clients sent and received, by the wall clock.

Left out is what no playback reads: addresses, the server's leg, PING, PONG and +OK, every INFO but the first
one, the members of that one which name a place or a key, the counts of a connection's end, and empty fields
on a line.  Times are in milliseconds and never go back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from natsproxy.capture.format.connection import ConnectionId
from natsproxy.capture.format.records import (
    CloseRecord,
    FiringRecord,
    Frames,
    GapRecord,
    Item,
    Note,
    OpaqueRecord,
    OpenRecord,
    Preamble,
)
from natsproxy.capture.read.frames import CapturedFrame, Query, frames_of
from natsproxy.capture.read.reader import CaptureReader
from natsproxy.capture.read.segment import BlockRef
from natsproxy.capture.text.frames import dump_frame, leaves_empty, load_frame
from natsproxy.protocol.info import rewrite_info
from natsproxy.wire import encode
from natsproxy.wire.ops import C2S, Direction, Op

_ANSWERED_LIVE: Final = (Op.PING, Op.PONG, Op.OK)
_OF_A_PLACE: Final = (
    "server_id",
    "server_name",
    "git_commit",
    "go",
    "host",
    "port",
    "client_id",
    "client_ip",
    "connect_info",
    "remote_account",
    "xkey",
    "nonce",
    "connect_urls",
    "ws_connect_urls",
    "cluster",
)
"""Members of an INFO that a playback replaces or leaves out."""
_STATE: Final = ("connect", "subs")
_MILLISECOND: Final = 1_000_000


class _Brief:
    """The items of one capture in brief."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._t = 0
        self._informed = False
        self._next: Counter[tuple[ConnectionId, Direction]] = Counter()

    def time(self, wall: int) -> int:
        """Return the time of the next item."""
        self._t = max(self._t, -(-wall // _MILLISECOND) * _MILLISECOND)
        return self._t

    def frames(self, ref: BlockRef, item: Frames) -> Iterator[Frames]:
        """Yield the frames of a record that its client sent or received, one by one."""
        if (item.in_first if item.direction == C2S else item.out_first) is None:
            return
        extra: dict[str, Any] = {key: value for key, value in (item.extra or {}).items() if key != "of"}
        for one in frames_of(ref, item):
            data = self._data(one) if self._query.wants(one) else b""
            if not data:
                continue
            leg = self._next[one.conn, one.direction], self.time(one.wall)
            self._next[one.conn, one.direction] += 1
            ops = one.frame.op.bit if one.frame is not None else 0
            yield Frames(item.conn, item.direction, data, 1, ops, *leg, *leg, None, one.flags, extra or None)

    def _data(self, one: CapturedFrame) -> bytes:
        frame = one.frame
        if frame is None:
            return one.data
        if frame.op == Op.INFO:
            if self._informed:
                return b""
            self._informed = True
            try:
                return encode.info(rewrite_info(frame.args, remove=_OF_A_PLACE))
            except ValueError:
                return one.data
        if frame.op in _ANSWERED_LIVE:
            return b""
        return load_frame(*dump_frame(frame, padded=True)) if leaves_empty(frame) else one.data


def brief_items(reader: CaptureReader, query: Query) -> Iterator[tuple[BlockRef, Item]]:
    """Yield the items of a capture in brief; the time of an item is the wall clock (Unix ns)."""
    brief = _Brief(query)
    for ref, item in reader.items(query.wants_block):
        if isinstance(item, Frames):
            for frame in brief.frames(ref, item) if query.wants_record(ref, item) else ():
                yield ref, frame
        elif not isinstance(item, OpenRecord) and query.wants_connection(ref, item):
            yield ref, _briefly(item, brief.time(ref.wall(item.t)))


def _briefly(item: CloseRecord | FiringRecord | GapRecord | Preamble | OpaqueRecord | Note, t: int) -> Item:
    if isinstance(item, CloseRecord):
        detail = item.info.get("detail")
        return item._replace(t=t, info={"detail": detail} if detail else {})
    if isinstance(item, Preamble):
        return item._replace(t=t, info={key: value for key, value in item.info.items() if key in _STATE})
    return item._replace(t=t)
