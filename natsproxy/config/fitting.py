"""Latency fitted from a capture: what `capture = "tuesday.ncap"` in a rule's delay stands for.

    delay = { distribution = "empirical", capture = "tuesday.ncap", subject = "orders.>" }

Theory
1. A request is a client's publish with a reply subject, its answer the first message that its own connection
   gets on that subject; the time between is from the request's arrival at the proxy to the answer's
   departure.  What was dropped on either leg measures nothing.
2. Once, when the rules are read, the capture is turned into quantiles and the table into one that holds them:
   chain, captures and scripts of exact firings then need no second file.
3. Memory is bounded: OPEN requests wait for answers, the oldest is given up; of more than SAMPLES latencies
   every second one is kept, from then on as well.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from natsproxy.capture.read.reader import open_capture
from natsproxy.capture.read.view import Query, walk
from natsproxy.errors import NatsproxyError
from natsproxy.protocol.subjects import compile_pattern
from natsproxy.rules.file import values
from natsproxy.wire.ops import C2S, Op, op_mask

OPEN: Final = 65_536
SAMPLES: Final = 100_000
QUANTILES: Final = 100
_PUBS: Final = op_mask(Op.PUB, Op.HPUB)
_MESSAGES: Final = _PUBS | op_mask(Op.MSG, Op.HMSG)


class Fitting:
    """Replaces captures in rule tables by what was measured.  folder: what their paths are relative to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, table: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a rule's table without captures.

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
            told = ", ".join(pattern.decode("utf-8", "replace") for pattern in patterns)
            raise ValueError(f"cannot be fitted: {path} has no answered request on {told}")
        found = [f"{value}ns" for value in quantiles(measured)]
        return {**table, "delay": {"distribution": "empirical", "values": found}}


def latencies(path: Path, patterns: tuple[bytes, ...]) -> Iterator[int]:
    """Yield the times (ns) that requests of a capture waited for their answers, in file order."""
    wanted = [compile_pattern(pattern) for pattern in patterns]
    waiting: OrderedDict[tuple[int, bytes], int] = OrderedDict()
    for one in walk(open_capture(path), Query(ops=_MESSAGES)):
        frame = one.head
        if frame is None or one.in_ordinal is None or one.out_ordinal is None:
            continue
        if one.direction == C2S:
            if frame.reply and _PUBS >> frame.op & 1 and any(match(frame.subject) for match in wanted):
                waiting[one.conn, frame.reply] = one.t
                if len(waiting) > OPEN:
                    waiting.popitem(last=False)
        elif (asked := waiting.pop((one.conn, frame.subject), None)) is not None:
            yield one.t + one.delay - asked


def thinned(found: Iterator[int], most: int = SAMPLES) -> list[int]:
    """Return measurements, evenly thinned where there are more than `most`."""
    kept: list[int] = []
    step = 1
    for number, value in enumerate(found):
        if number % step == 0:
            kept.append(value)
            if len(kept) > most:
                del kept[1::2]
                step *= 2
    return kept


def quantiles(measured: list[int], parts: int = QUANTILES) -> list[int]:
    """Return the least, the greatest and what lies evenly between; all of them where there are few."""
    ordered = sorted(measured)
    if len(ordered) <= parts + 1:
        return ordered
    return [ordered[round(part * (len(ordered) - 1) / parts)] for part in range(parts + 1)]
