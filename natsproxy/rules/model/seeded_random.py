"""Seeded randomness without state: a random number depends on the match, so one seed repeats a whole run.

Theory
1. u = hash(seed, rule name, connection key, direction, m, k), a number in (0, 1).  m is how many frames the
   rule's selector has matched on that connection and direction; k tells several draws for one frame apart
   (0 is the gate's, those from 1 on are the action's).
2. So no draw depends on time, on the order in which connections came, or on which other rules exist, and a
   rule that is added does not change the numbers of the others.
3. A server delivers to several subscriptions in random order.  So s2c the draws of a message belong to its
   substream, and m counts the frames of that substream: its subject and the subject of the subscription (of
   inboxes, whose names are new in each run, the prefix alone).
4. Each rule and connection remembers SUBSTREAMS substreams: beyond that the least recently used one is
   forgotten, and starts again if it comes back.
5. A value of a distribution is its inverse CDF at u: one draw, one value, for all of them.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from statistics import NormalDist
from typing import Final, NamedTuple

from natsproxy.protocol.identifiers import find_inbox
from natsproxy.rules.model.counts import RecentCounts
from natsproxy.wire.ops import Direction

GATE: Final = 0
ACTION: Final = 1
SUBSTREAMS: Final = 4096
_MAX_KEY_BYTES: Final = 400
_NORMAL: Final = NormalDist()
_SCALE: Final = 2.0**-53


class SeededRandom:
    """The random numbers of one rule on one connection and direction, or of one substream.

    prefix: the text that they depend on, beside the match.
    """

    __slots__ = ("_base", "prefix")

    def __init__(self, seed: int, rule: str, key: str, direction: Direction) -> None:
        parts = (str(seed), rule, key, direction.label)
        # Each part is preceded by its length, so that no two lists of parts make the same bytes.
        self.prefix = b"".join(b"%d:%s," % (len(part), part) for part in map(_utf8, parts))
        self._base = blake2b(self.prefix, digest_size=8)

    def draw(self, m: int, k: int = GATE) -> float:
        """Return the number in (0, 1), ends excluded, for the m-th match and its k-th draw."""
        state = self._base.copy()
        state.update(b"%d.%d" % (m, k))
        # 53 bits, as many as a float has; the half keeps the number away from 0 and 1.
        return ((int.from_bytes(state.digest(), "big") >> 11) + 0.5) * _SCALE

    def below(self, first: int, count: int, probability: float) -> list[int]:
        """Return those of `count` matches, from number `first` on, that draw less than `probability`."""
        # `draw` written out for a loop, without a call and a float for each match.
        edge = _edge(probability)
        copy, hits = self._base.copy, []
        for m in range(first, first + count):
            state = copy()
            state.update(b"%d.0" % m)
            if state.digest() < edge:
                hits.append(m)
        return hits

    def substream(self, name: bytes) -> SeededRandom:
        """Return the random numbers of one substream."""
        # Not made by `__init__`: copying the hash of the prefix spares hashing it anew.
        made = SeededRandom.__new__(SeededRandom)
        part = b"%d:%s," % (len(name), name)
        made.prefix = self.prefix + part
        made._base = self._base.copy()
        made._base.update(part)
        return made

    @property
    def digest(self) -> bytes:
        """Eight bytes that identify these random numbers."""
        return self._base.digest()


@lru_cache(64)
def _edge(probability: float) -> bytes:
    """Return the digest from which on numbers are not below a probability: comparing bytes is cheaper."""
    first = bisect_left(range(1 << 53), probability, key=lambda top: (top + 0.5) * _SCALE)
    return (first << 11).to_bytes(9, "big")[1:] if first >> 53 == 0 else b"\xff" * 9


class Draws(NamedTuple):
    """The random numbers of one match: the m-th of its direction or of its substream."""

    numbers: SeededRandom
    m: int

    def draw(self, k: int = GATE) -> float:
        """Return the k-th number of the match, in (0, 1)."""
        return self.numbers.draw(self.m, k)


class Substreams:
    """The counts of matches per substream, for one rule on one connection and at most `limit` substreams.

    counts: by the digest of a substream.
    """

    def __init__(self, limit: int = SUBSTREAMS) -> None:
        self._limit = limit
        self.counts = RecentCounts(limit)
        # By subject and subscription: the digest and the random numbers of the substream.
        self._known: dict[tuple[bytes, bytes], tuple[bytes, SeededRandom]] = {}

    def __len__(self) -> int:
        return len(self.counts)

    def draws(self, numbers: SeededRandom, subject: bytes, subscribed: bytes, count: int = 1) -> Draws:
        """Count `count` neighbouring deliveries; return the draws of the first.  numbers: the rule's."""
        digest, own = self.find(numbers, subject, subscribed)
        return Draws(own, self.counts.add(digest, count) + 1)

    def find(self, numbers: SeededRandom, subject: bytes, subscribed: bytes) -> tuple[bytes, SeededRandom]:
        """Return what identifies the substream of a delivery, and its random numbers; nothing is counted."""
        return self._known.get((subject, subscribed)) or self._learn(numbers, subject, subscribed)

    def _learn(self, numbers: SeededRandom, subject: bytes, subscribed: bytes) -> tuple[bytes, SeededRandom]:
        own = numbers.substream(substream_of(subject, subscribed))
        if len(self._known) >= self._limit:
            self._known.clear()
        if len(subject) + len(subscribed) <= _MAX_KEY_BYTES:
            self._known[subject, subscribed] = own.digest, own
        return own.digest, own


def substream_of(subject: bytes, subscribed: bytes) -> bytes:
    """Return the name of a delivery's substream.  subscribed: the subject of its subscription."""
    inbox = find_inbox(subject)
    if inbox is not None:
        return inbox.prefix + b".*"
    inbox = find_inbox(subscribed)
    return subject + b" " + (subscribed if inbox is None else inbox.prefix + b".*")


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


class Distribution(NamedTuple):
    """A named inverse CDF: `sample(u)` for u in (0, 1) returns a value in the unit of its parameters."""

    name: str
    sample: Callable[[float], float]

    def at_most(self, most: float) -> Distribution:
        """Return it with its values capped at `most`."""
        sample = self.sample
        return self._replace(sample=lambda u: min(most, sample(u)))


def constant(value: float) -> Distribution:
    """Return `value` always."""
    return Distribution("constant", lambda u: value)


def uniform(low: float, high: float) -> Distribution:
    """Return values spread evenly from `low` to `high`."""
    return Distribution("uniform", lambda u: low + (high - low) * u)


def normal(mean: float, stddev: float) -> Distribution:
    """Return a normal distribution whose negative values become zero (no frame goes back in time)."""
    return Distribution("normal", lambda u: max(0.0, mean + stddev * _NORMAL.inv_cdf(u)))


def lognormal(median: float, sigma: float) -> Distribution:
    """Return a log-normal distribution by its median and the deviation of its logarithm."""
    return Distribution("lognormal", lambda u: median * math.exp(sigma * _NORMAL.inv_cdf(u)))


def pareto(scale: float, shape: float) -> Distribution:
    """Return a Pareto distribution: at least `scale`, the smaller `shape` the heavier its tail."""
    return Distribution("pareto", lambda u: scale * (1.0 - u) ** (-1.0 / shape))


def empirical(values: tuple[float, ...]) -> Distribution:
    """Return the quantiles of measured `values`, interpolated linearly."""
    ordered = sorted(values)
    last = len(ordered) - 1

    def sample(u: float) -> float:
        place = u * last
        index = min(int(place), last - 1) if last else 0
        if not last:
            return ordered[0]
        return ordered[index] + (ordered[index + 1] - ordered[index]) * (place - index)

    return Distribution("empirical", sample)


def weighted(weights: tuple[int, ...]) -> Callable[[float], int | None]:
    """Return a choice by percent: u to the index of a weight, None in the rest of the weights to 100."""
    edges: list[int] = []
    total = 0
    for weight in weights:
        total += weight
        edges.append(total)

    def choose(u: float) -> int | None:
        index = bisect_right(edges, u * 100)
        return index if index < len(edges) else None

    return choose
