"""The messages of a run that streams hold twice or in another order, by the acks of the server.

An ack counts as it came from the server, also where a rule took it on its way to the program.  A copy with
the Nats-Msg-Id of the first one has the sequence of that one in its ack: the stream holds it once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from natsproxy.protocol.jetstream import publish_ack
from natsproxy.sweep.published import Pairs
from natsproxy.sweep.traffic import Arrived, RunTraffic, group
from natsproxy.wire.ops import S2C

_LAST_COUNTS: Final = (b"$KV.", b"$O.")
"""Buckets, in which a copy of the last value changes nothing."""


class Stored(NamedTuple):
    """Where a publish is: the stream, and its sequence there."""

    stream: str
    seq: int


def stored(run: RunTraffic) -> dict[int, Stored]:
    """Return where the publishes of a run are, by their number among `run.published`, if that is known."""
    asked = Counter(one.frame.reply for one in run.published)
    answers = [*(one.frame for one in run.got), *(one.frame for one in run.touched if one.direction == S2C)]
    found: dict[bytes, Stored] = {}
    for frame in answers:
        if asked[frame.subject] == 1 and (ack := publish_ack(frame.body)) is not None and ack.seq:
            found.setdefault(frame.subject, Stored(ack.stream, ack.seq))
    publishes = enumerate(run.published)
    return {number: found[one.frame.reply] for number, one in publishes if one.frame.reply in found}


def usual_copies(runs: Sequence[Sequence[Arrived]]) -> dict[str, int]:
    """Return how often clean runs publish one payload on one subject at most, by row."""
    found: dict[str, int] = {}
    for publishes in runs:
        copies = Counter((one.frame.subject, one.frame.body) for one in publishes)
        for one in publishes:
            count = copies[one.frame.subject, one.frame.body]
            found[group(one)] = max(count, found.get(group(one), 1))
    return found


def stored_twice(run: RunTraffic, usual: Mapping[str, int], by_clock: Collection[bytes]) -> Iterator[Arrived]:
    """Yield the publishes that a stream holds once more than `usual`.

    by_clock: subjects on which equal messages come at any number.
    """
    copies: defaultdict[tuple[bytes, bytes], set[Stored]] = defaultdict(set)
    publishes = run.published
    for number, where in sorted(stored(run).items()):
        one = publishes[number]
        subject = one.frame.subject
        if subject in by_clock or subject.startswith(_LAST_COUNTS):
            continue
        seen = copies[subject, one.frame.body]
        again = where not in seen and len(seen) >= usual.get(group(one), 1)
        seen.add(where)
        if again:
            yield one


def stored_out_of_order(run: RunTraffic, ours: Sequence[Arrived], pairs: Pairs) -> Iterator[Arrived]:
    """Yield the publishes that a stream holds behind those which a connection of a clean run sent later."""
    publishes = run.published
    latest: dict[tuple[str, bytes, object], int] = {}
    in_stream = sorted(stored(run).items(), key=lambda item: item[1])
    for number, where in in_stream:
        partner = pairs.partner.get(number)
        if partner is None:
            continue
        one = publishes[number]
        key = where.stream, one.frame.subject, ours[partner].conn
        if partner < latest.get(key, -1):
            yield one
        latest[key] = max(partner, latest.get(key, -1))
