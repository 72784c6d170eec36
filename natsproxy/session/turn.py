"""A turn: the work that a session may do in one call, so that no connection keeps the loop from the others.

A call ends early in two ways.  Work whose price shows at once (rules, held frames) ends when `spent` says so,
which is asked between frames.  Work that follows from the frames (events, records, the filters of a
recording) is paid for after the call: of these no more than `frames` are dealt with at once.  The rest stays
where it is, for the next call (`DirectionPipe.pending`, `Session.next_tick`, `DirectionPipe.unsent`).
"""

from __future__ import annotations

from natsproxy.wire.frames import NO_LIMIT


class Turn:
    """A turn without end; those of a relay are limited.

    frames: the most frames that a call may deal with.
    """

    frames = NO_LIMIT

    def spent(self) -> bool:
        """Return whether it is time to stop."""
        return False


ENDLESS = Turn()
