"""The order in which trials are made, and which of them: pure functions on lists.

Trials of one fault at places of one class (client, direction, role or op, subject, state) should end alike,
so one of each class comes first.  For faults of the whole link the frame does not count, but the conversation
around it.  Those that tell most come first: what failed last time, then cuts at states where nothing was cut
yet, and lost acks.  The longest delays and what a clock decides come last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple
from zlib import crc32

from natsproxy.converters import duration
from natsproxy.protocol.subjects import collide
from natsproxy.sweep.faults import FAULTS
from natsproxy.sweep.positions import client_of, conversation_of
from natsproxy.sweep.selection import INBOX
from natsproxy.sweep.trial_facts import trial_key
from natsproxy.sweep.values import Place, Trial

_ACKS: Final = ("ack", "next", "publish-ack", "flow-reply")
_RANKS: Final = {
    "drop": 2.0,
    "late": 3.0,
    "duplicate": 3.2,
    "cut-payload": 3.4,
    "cut-head": 3.6,
    "reset": 5.0,
    "reset-payload": 5.1,
    "reset-head": 5.15,
    "restart": 5.2,
    "restart-lose-memory": 5.4,
    "pause": 20.0,
}
"""By the name of a fault, errors before `reset`; a pause costs most: it ends when a keep-alive runs out."""
_BY_STATE: Final = frozenset(fault.name for fault in FAULTS if fault.by_state)
_OTHERS: Final = 4.0
_NEW: Final = 0.0
_SEEN: Final = 1.0
_BY_CLOCK: Final = 10.0


class Plan(NamedTuple):
    """The trials.  first: one of each class, in order.  others: those that are like one of them, by place."""

    first: list[Trial]
    others: list[Trial]


def class_of(trial: Trial) -> tuple[str, ...]:
    """Return the class of a trial: those of one class should end alike."""
    connection, *frame, _ = trial.place.position
    told = trial.fault, trial.after, client_of(connection)
    if trial.fault in _BY_STATE:
        return *told, conversation_of(trial.place.state)
    return *told, *frame, trial.place.state


def planned(trials: Iterable[Trial], failed: Collection[str] = ()) -> Plan:
    """Return the order of trials.

    failed: the keys (`trial_key`) of those that failed last time, which come first.
    """
    again: list[Trial] = []
    first: dict[tuple[str, ...], Trial] = {}
    others: list[Trial] = []
    for trial in trials:
        if failed and trial_key(trial) in failed:
            again.append(trial)
            first.setdefault(class_of(trial), trial)
        elif class_of(trial) in first:
            others.append(trial)
        else:
            first[class_of(trial)] = trial
    known = set(map(trial_key, again))
    fresh = [trial for trial in first.values() if trial_key(trial) not in known]
    return Plan([*again, *_by_rank(fresh)], others)


def _by_rank(trials: list[Trial]) -> list[Trial]:
    cut: set[tuple[str, str]] = set()
    ranked: list[tuple[float, Trial]] = []
    for trial in trials:
        place = trial.place
        rank = _rank(trial)
        if trial.fault == "cut" and not place.by_clock:
            state = client_of(place.position.connection), place.state
            rank = _SEEN if state in cut else _NEW
            cut.add(state)
        ranked.append((rank + _BY_CLOCK * place.by_clock, trial))
    return [trial for _, trial in sorted(ranked, key=lambda one: one[0])]


def _rank(trial: Trial) -> float:
    if trial.fault == "drop" and trial.place.position.what in _ACKS:
        return _NEW
    if trial.fault.startswith("late"):  # the longer ones cost their delay
        return _RANKS["late"] + duration(trial.rules[0]["delay"]) / 1e9
    return _RANKS.get(trial.fault, _OTHERS)


def shard(trials: Iterable[Trial], number: int, of: int) -> list[Trial]:
    """Return a part of the trials: `number` from 1 to `of`; a trial is always in the same one, by its key.

    Raises ValueError for a number that is not one of them.
    """
    if not 1 <= number <= of:
        raise ValueError(f"must be a shard such as 1/4, not {number}/{of}")
    return [trial for trial in trials if crc32(trial_key(trial).encode()) % of == number - 1]


def only(trials: Iterable[Trial], keys: Collection[str]) -> list[Trial]:
    """Return the trials of these keys."""
    return [trial for trial in trials if trial_key(trial) in keys]


def without(trials: Iterable[Trial], keys: Collection[str]) -> list[Trial]:
    """Return the trials without those of these keys, which a sweep that goes on has made."""
    return [trial for trial in trials if trial_key(trial) not in keys]


def about(places: Sequence[Place], subjects: Collection[str]) -> list[Place]:
    """Return the places that subjects are about; without any, all places.

    subjects: patterns.  An ack, a pull or a status is about the subjects of its consumer's deliveries, an
    answer about that of its request.
    """
    if not subjects:
        return list(places)
    patterns = [subject.encode() for subject in subjects]
    found = [place for place in places if _is_about(place, patterns)]
    consumers = {place.of for place in found if place.position.what in ("delivery", "redelivery")}
    kept = {place.position for place in found}
    return [place for place in places if place.position in kept or place.of in consumers]


def _is_about(place: Place, patterns: list[bytes]) -> bool:
    subject = place.position.subject
    told = place.of if subject.startswith(INBOX.decode()) else subject
    return bool(told) and any(collide(pattern, told.encode()) for pattern in patterns)


def recovery(run: Sequence[Place], baseline: Sequence[Place]) -> list[Place]:
    """Return the places of a run on connections that its baseline does not have: those that a fault made."""
    known = {place.position.connection for place in baseline}
    return [place for place in run if place.position.connection not in known]
