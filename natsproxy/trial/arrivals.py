"""The items of a recording in the order of their arrival; a frame that was held is recorded when it left.

Two passes: the first finds the longest time that a frame was held, and the second keeps what was recorded in
that time.  In a direction the ordinals decide, since the times of one read may differ by microseconds.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Final

from natsproxy.capture.format.connection import ConnectionId
from natsproxy.capture.format.records import Frames, Item
from natsproxy.capture.read.reader import CaptureReader
from natsproxy.capture.read.segment import BlockRef
from natsproxy.units import SECOND
from natsproxy.wire.ops import Direction

_SLACK: Final = SECOND // 10
"""Time (ns) by which records of one moment may differ."""
_Way = tuple[ConnectionId | None, Direction | None]
"""A direction of a connection; without one: the other records of the connection."""


def arrivals(read: Callable[[], CaptureReader]) -> Iterator[tuple[BlockRef, Item]]:
    """Yield the items of a recording by their arrival, without frames that the proxy made.

    read: opens it.  Raises CaptureError.
    """
    window = _SLACK + max((_held(item) for _, item in read().items()), default=0)
    waiting: list[tuple[int, int, _Way]] = []
    by_way: defaultdict[_Way, list[tuple[int, int, BlockRef, Item]]] = defaultdict(list)
    recorded = 0
    for number, (ref, item) in enumerate(read().items()):
        way: _Way = (ref.connection(item), None)
        first = number
        if isinstance(item, Frames):
            if item.in_first is None:
                continue
            way, first = (way[0], item.direction), item.in_first
        arrived = ref.wall(item.t)
        recorded = max(recorded, arrived + _held(item))
        heapq.heappush(waiting, (arrived, number, way))
        heapq.heappush(by_way[way], (first, number, ref, item))
        while waiting[0][0] < recorded - window:
            yield _next(waiting, by_way)
    while waiting:
        yield _next(waiting, by_way)


def _next(
    waiting: list[tuple[int, int, _Way]], by_way: dict[_Way, list[tuple[int, int, BlockRef, Item]]]
) -> tuple[BlockRef, Item]:
    """Take the item that came first: of the next direction, that with the lowest ordinal."""
    _, _, way = heapq.heappop(waiting)
    _, _, ref, item = heapq.heappop(by_way[way])
    if not by_way[way]:
        del by_way[way]
    return ref, item


def _held(item: Item) -> int:
    """Return how long a frame was held (ns)."""
    if not isinstance(item, Frames) or item.in_t is None or item.out_t is None:
        return 0
    return max(0, item.out_t - item.in_t)
