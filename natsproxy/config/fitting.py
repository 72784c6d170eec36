"""Latency fitted from a capture: the meaning of `capture = "tuesday.ncap"` in a rule's delay.

    delay = { distribution = "empirical", capture = "tuesday.ncap", subject = "orders.>" }

Theory
1. A request is a client's publish with a reply subject.  Its answer is the first message that the same
   connection gets on that subject.  The latency runs from the request's arrival at the proxy to the answer's
   departure.  A frame that was dropped on either leg is not measured.
2. The capture is read once, when the rules are read.  Its quantiles replace it in the rule's table, so that
   chains, captures and exact scripts need no second file.
3. Memory is bounded.  At most MAX_OPEN requests wait for answers; a further one displaces the oldest.  When
   more than MAX_SAMPLES latencies are kept, every second one is dropped, and only every second new one (then
   every fourth, and so on) is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from natsproxy.capture.format.connection import ConnectionId
from natsproxy.capture.read.frames import Query, read_frames
from natsproxy.capture.read.reader import open_capture
from natsproxy.errors import NatsproxyError
from natsproxy.protocol.subjects import compile_pattern
from natsproxy.rules.file import values
from natsproxy.wire.ops import C2S, Op, op_mask

MAX_OPEN: Final = 65_536
MAX_SAMPLES: Final = 100_000
QUANTILES: Final = 100
_PUBS: Final = op_mask(Op.PUB, Op.HPUB)
_MESSAGES: Final = _PUBS | op_mask(Op.MSG, Op.HMSG)


class Fitting:
    """A function on rule tables that replaces captures by quantiles.  folder: the base of relative paths."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, table: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a rule's table with `values` (durations) in place of `capture`.

        Raises ValueError with the end of a sentence that begins with `delay`.
        """
        delay = table.get("delay")
        if not isinstance(delay, Mapping) or "capture" not in delay:
            return table
        unknown = [key for key in delay if key not in ("distribution", "capture", "subject")]
        if delay.get("distribution") != "empirical" or unknown:
            raise ValueError("with a capture takes distribution = \"empirical\" and perhaps 'subject'")
        try:
            path = self._folder / values.text(delay["capture"])
            patterns = values.several(values.pattern)(delay.get("subject", ">"))
        except ValueError as error:
            raise ValueError(f"of the empirical distribution: a parameter {error}") from None
        try:
            measured = thinned(latencies(path, patterns))
        except OSError as error:
            raise ValueError(f"cannot read the capture {path}: {error.strerror}") from None
        except NatsproxyError as error:
            raise ValueError(f"cannot be fitted: {error}") from None
        if not measured:
            shown = ", ".join(pattern.decode("utf-8", "replace") for pattern in patterns)
            raise ValueError(f"cannot be fitted: {path} has no answered request on {shown}")
        durations = [f"{value}ns" for value in quantiles(measured)]
        return {**table, "delay": {"distribution": "empirical", "values": durations}}


def latencies(path: Path, patterns: tuple[bytes, ...]) -> Iterator[int]:
    """Yield the latencies (ns) of the answered requests of a capture, by time.

    patterns: the request subjects that count.
    """
    wanted = [compile_pattern(pattern) for pattern in patterns]
    waiting: OrderedDict[tuple[ConnectionId, bytes], int] = OrderedDict()
    for one in read_frames(open_capture(path), Query(ops=_MESSAGES)):
        frame = one.head
        if frame is None or one.in_ordinal is None or one.out_ordinal is None:
            continue
        if one.direction == C2S:
            # The last request on a reply subject counts: clients reuse the subjects of answered ones.
            if frame.reply and _PUBS >> frame.op & 1 and any(match(frame.subject) for match in wanted):
                waiting[one.conn, frame.reply] = one.t
                if len(waiting) > MAX_OPEN:
                    waiting.popitem(last=False)
        elif (requested := waiting.pop((one.conn, frame.subject), None)) is not None:
            yield one.t + one.delay - requested


def thinned(measured: Iterator[int], most: int = MAX_SAMPLES) -> list[int]:
    """Return measurements; of more than `most` an evenly spaced part."""
    kept: list[int] = []
    spacing = 1
    for number, value in enumerate(measured):
        if number % spacing == 0:
            kept.append(value)
            if len(kept) > most:
                del kept[1::2]
                spacing *= 2
    return kept


def quantiles(measured: list[int], parts: int = QUANTILES) -> list[int]:
    """Return `parts + 1` evenly spaced quantiles, extremes included; all values if they are few."""
    ordered = sorted(measured)
    if len(ordered) <= parts + 1:
        return ordered
    return [ordered[round(part * (len(ordered) - 1) / parts)] for part in range(parts + 1)]
