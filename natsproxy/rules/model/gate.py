"""Gates choose, of the frames that a selector matched, those on which a rule acts.

Theory
1. A gate counts the frames that its rule's selector matched *as received*, whatever other rules did to
   them.  m counts per connection and direction; with `per = "proxy"` the counting conditions use the count of
   all connections instead.  Random numbers always use m, so that
   probability never depends on the order of connects.
2. All conditions of a gate must hold: `after` skips the first n, `first` takes n from there, `every` takes
   each n-th from there, `between` is a time window, `only` is an exact list, `probability` draws a random
   number, `limit` ends it after n firings (and counts the matches that the other conditions let through).
3. Time is the age of the connection.  With `per = "proxy"`, and for a window whose times begin with `+`, it
   is the age of the rule: the time since it came into force.
4. `hours` are times of the day, on the clock on the wall of their zone at the moment of the match: a clock
   that is set, and daylight saving time, count from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, tzinfo
from typing import Final, NamedTuple

from natsproxy.rules.model.counts import Count
from natsproxy.units import HOUR, MINUTE, SECOND


class Window(NamedTuple):
    """A time window in ns; end: None for ever.  since_rule: from when the rule came into force."""

    start: int
    end: int | None
    since_rule: bool = False


@dataclass(slots=True)
class Hours:
    """Times of the day.

    spans: of ns since midnight, each from the first to before the second, which may be on the next day.
    unix: returns the Unix time (ns) at a time of the proxy's clock; given when the rule comes into force.
    """

    spans: tuple[tuple[int, int], ...]
    zone: tzinfo
    unix: Callable[[int], int] = field(default=lambda now: now, compare=False)

    def hold(self, now: int) -> bool:
        """Tell whether it is one of them at a time of the proxy's clock (ns)."""
        local = datetime.fromtimestamp(self.unix(now) // SECOND, self.zone)
        time = local.hour * HOUR + local.minute * MINUTE + local.second * SECOND
        return any(
            start <= time < end if start < end else time >= start or time < end for start, end in self.spans
        )

    def describe(self) -> str:
        """Return them in words."""
        spans = " and ".join(f"{_clock(start)} to {_clock(end)}" for start, end in self.spans)
        return f"from {spans} ({self.zone})"


def _clock(time: int) -> str:
    return f"{time // HOUR:02}:{time // MINUTE % 60:02}"


@dataclass(frozen=True, slots=True)
class Gate:
    """The conditions of one rule; the default lets everything through.

    probability: 0 to 1.  every, first, limit: counts from 1; after: from 0.  only:
    connection key (maybe with a direction before it, "c2s app/1"), or the key of those alike, "worker-*/1" ->
    the m that fire.  per_proxy: counts and
    times are the proxy's.  hours: times of the day.
    """

    probability: float | None = None
    every: int | None = None
    first: int | None = None
    after: int = 0
    limit: int | None = None
    between: Window | None = None
    only: Mapping[str, frozenset[int]] | None = field(default=None, hash=False)
    per_proxy: bool = False
    hours: Hours | None = field(default=None, hash=False)

    @property
    def open(self) -> bool:
        """True if everything passes."""
        return self is OPEN or self == OPEN

    @property
    def counts(self) -> bool:
        """True if it decides match by match, and not by time alone."""
        return replace(self, between=None, per_proxy=False) != OPEN

    def admits(
        self,
        count: Count,
        m: int,
        keys: tuple[str, ...],
        now: int,
        draw: Callable[[], float],
        direction: str = "",
    ) -> bool:
        """Tell whether the rule acts on this match; `count` includes it, and a yes is counted as fired.

        m, keys, direction: the match's own number, connection and direction, for `only`.  draw: returns the
        random number of the gate, in (0, 1).
        """
        place = count.matched - self.after
        passes = (
            place > 0
            and (self.first is None or place <= self.first)
            and (self.every is None or place % self.every == 0)
            and (self.limit is None or count.fired < self.limit)
            and self.in_time(now - count.since)
            and (self.hours is None or self.hours.hold(now))
            and (self.only is None or self._listed(m, keys, direction))
            # Last, because each random number costs a hash.
            and (self.probability is None or draw() < self.probability)
        )
        count.fired += passes
        return passes

    def _listed(self, m: int, keys: tuple[str, ...], direction: str) -> bool:
        listed = self.only or {}
        return any(m in listed.get(key, ()) or m in listed.get(f"{direction} {key}", ()) for key in keys)

    def in_time(self, age: int) -> bool:
        """Tell whether `between` holds at that age (ns)."""
        if self.between is None:
            return True
        start, end, _ = self.between
        return start <= age and (end is None or age < end)

    def describe(self) -> str:
        """Return the conditions in words, `always` for none."""
        words = [
            (self.after, f"after the first {self.after}"),
            (self.first, f"the first {self.first}"),
            (self.every, f"every {ordinal(self.every or 0)}"),
            (self.limit, "once at most" if self.limit == 1 else f"at most {self.limit} times"),
            (self.probability is not None, f"with probability {self.probability}"),
            (self.only is not None, "only the firings listed"),
        ]
        text = ", ".join(word for there, word in words if there)
        text += ", counted over all connections" if self.per_proxy and text else ""
        window = [] if self.between is None else [_window(self.between, self.per_proxy)]
        window += [] if self.hours is None else [self.hours.describe()]
        return ", ".join([text] * bool(text) + window) or "always"


OPEN: Final = Gate()


def ordinal(number: int) -> str:
    """Return `1st`, `2nd`, `11th`."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _window(between: Window, per_proxy: bool) -> str:
    start, end, since_rule = between
    times = f"{start / 1e9:g}s to {'the end' if end is None else f'{end / 1e9:g}s'}"
    return f"{times} after it came into force" if since_rule or per_proxy else f"at age {times}"
