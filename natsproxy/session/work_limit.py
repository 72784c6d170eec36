"""The limit of the work that a session does in one call: no connection keeps the loop from the others.

A call ends early in two ways.  Work whose time shows at once (rules, held frames) ends when `reached` says
so, which is asked between frames.  Work that follows from the frames (events, records, the filters of a
recording) is paid for after the call: of these no more than `frames` are dealt with at once.  The rest stays
where it is, for the next call (`DirectionPipe.pending`, `Session.next_tick`, `DirectionPipe.unsent`).
"""

from __future__ import annotations

from natsproxy.wire.frames import NO_LIMIT


class WorkLimit:
    """No limit; a relay has its own (`net/timeslice.py`).

    frames: the most frames that a call may deal with.
    """

    __slots__ = ()

    frames = NO_LIMIT

    def reached(self) -> bool:
        """Return whether it is time to stop."""
        return False


UNLIMITED_WORK = WorkLimit()
