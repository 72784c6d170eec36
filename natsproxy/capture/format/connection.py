"""The identity of a connection in a capture.

A proxy numbers its connections from 1, and starts over after a restart; so does the next recorder of a proxy.
A capture may hold many such runs, so a number alone is ambiguous.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

_TEXT: Final = re.compile(r"(?:(?P<run>[1-9][0-9]{0,17}):)?(?P<number>-?[0-9]{1,19})", re.ASCII)


class ConnectionId(NamedTuple):
    """A connection of a capture.

    recorder: the id of the run that recorded it; each start of a recorder has a new one.  run: the position
    of that run among those of the capture, by time, from 1.  number: that of the connection in its run.
    """

    recorder: bytes
    run: int
    number: int

    def __str__(self) -> str:
        """Return `NUMBER` for the first run, which is nearly always the only one, else `RUN:NUMBER`."""
        return str(self.number) if self.run == 1 else f"{self.run}:{self.number}"


@dataclass(frozen=True, slots=True)
class ConnectionChoice:
    """A choice of connections; an empty one selects all.

    chosen: (run, number); run 0 stands for every run.
    """

    chosen: frozenset[tuple[int, int]] = frozenset()

    @classmethod
    def of(cls, *numbers: int) -> ConnectionChoice:
        """Return the choice of the connections with these numbers, in every run."""
        return cls(frozenset((0, number) for number in numbers))

    @classmethod
    def parse(cls, texts: Iterable[str]) -> ConnectionChoice:
        """Return the choice of `NUMBER` (in every run) and `RUN:NUMBER`.

        Raises ValueError for another text.
        """
        chosen = set[tuple[int, int]]()
        for text in texts:
            found = _TEXT.fullmatch(text.strip())
            if found is None:
                raise ValueError(f"{text!r} is not a connection: give NUMBER, or RUN:NUMBER for one run only")
            chosen.add((int(found["run"] or 0), int(found["number"])))
        return cls(frozenset(chosen))

    def __bool__(self) -> bool:
        return bool(self.chosen)

    def __contains__(self, conn: ConnectionId) -> bool:
        return conn.number in self.numbers(conn.run)

    def numbers(self, run: int) -> frozenset[int]:
        """Return the numbers of the connections that are chosen in a run."""
        return _numbers(self.chosen, run)

    def without(self, found: Iterable[ConnectionId]) -> list[str]:
        """Return the chosen connections that are not in `found`, as texts."""
        there = {one for conn in found for one in ((conn.run, conn.number), (0, conn.number))}
        missing = sorted(self.chosen - there)
        return [f"{run}:{number}" if run else str(number) for run, number in missing]

    @property
    def last_run(self) -> int:
        """The greatest run that it names, 0 for none."""
        return max((run for run, _ in self.chosen), default=0)


@lru_cache(256)
def _numbers(chosen: frozenset[tuple[int, int]], run: int) -> frozenset[int]:
    return frozenset(number for one, number in chosen if one in (0, run))
