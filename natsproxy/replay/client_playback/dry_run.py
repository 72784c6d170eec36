"""Inspection of a capture before it is played: duration, counts, irregularities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from natsproxy.capture.format.connection import ConnectionId
from natsproxy.replay.conversation.steps import Began, Step, events
from natsproxy.wire.ops import C2S


def examine(path: Path | str) -> dict[str, Any]:
    """Return facts about a capture: duration and largest gap in seconds, counts, events out of order.

    Raises CaptureError where it cannot be read or played.
    """
    connections: set[ConnectionId] = set()
    sent = received = size = disordered = late = 0
    last = gap = 0
    for event in events(path):
        connections.add(event.conn)
        if event.t < last:
            disordered += 1
        else:
            gap, last = max(gap, event.t - last), event.t
        if isinstance(event, Began):
            late += event.late
        elif isinstance(event, Step):
            if event.direction == C2S:
                sent += 1
                size += event.frame.wire_size
            else:
                received += 1
    return {
        "seconds": round(last / 1e9, 3),
        "connections": len(connections),
        "client_frames": sent,
        "client_bytes": size,
        "server_frames": received,
        "out_of_order": disordered,
        "begun_before_the_capture": late,
        "largest_gap_seconds": round(gap / 1e9, 3),
    }
