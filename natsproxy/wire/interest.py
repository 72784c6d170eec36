"""Interest: the frames that somebody wants to see, compiled for one look-up per frame.

An `Interest` is made of clauses.  A clause wants the frames of some ops, at some `Need`, whose subject
matches one of `match` (None: any subject) and none of `unless`: an allow list is "everything unless
these".  A frame's need is the highest need of the clauses that want it.  Clauses know nothing of rules: the
rules engine decides later which rule acts, for the few frames that get that far.

Ops without a subject (PING, INFO, ...) are wanted by op alone: `match` and `unless` do not apply to them.
Immutable and shared by all connections of a proxy; what a single connection wants besides goes to its
scanner's `watch_sids` and `watch_subjects`.
"""

from __future__ import annotations

from typing import NamedTuple

from natsproxy.wire.frames import Need


class Clause(NamedTuple):
    """One want: `ops` is an op bitmask, `match` and `unless` are NATS subject patterns."""

    ops: int
    need: Need = Need.LINE
    match: tuple[bytes, ...] | None = None
    unless: tuple[bytes, ...] = ()
