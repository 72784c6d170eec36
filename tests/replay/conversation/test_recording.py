"""The recording: exchanges and effects as they are read."""

from __future__ import annotations

import pytest

from natsproxy.replay.conversation.exchanges import Effect
from natsproxy.replay.conversation.recording import Recording
from tests.replay.scripted import MS, Line, events, hello


@pytest.mark.parametrize("kept", [True, False])
def test_the_distance_from_a_cause_does_not_depend_on_the_frames_between(
    monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """kept: the cause waits to be used; else it is forgotten, and nothing is known of the distance."""
    monkeypatch.setattr("natsproxy.bounded.LIMIT", 3)
    lines: list[Line] = [*hello(1, "a"), *hello(2, "b"), (1, ">", b"PUB a 0\r\n\r\n")]
    lines += [(2, ">", b"PUB b 0\r\n\r\n")] * 5
    recording, waiting, last = Recording(events([*lines, (1, "closed", b"server-closed")])), [], None
    while (found := recording.read()) is not None:
        last = found
        if kept:
            waiting.append(found)
    assert isinstance(last, Effect)
    assert last.offset == (6 * MS if kept else 0)
