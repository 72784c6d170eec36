"""A look at a capture before it is played."""

from __future__ import annotations

from pathlib import Path

from natsproxy.replay.client_playback.dry_run import examine
from tests.replay.scripted import MS, hello, write


def test_it_counts_the_frames_to_play(tmp_path: Path) -> None:
    facts = examine(
        write(tmp_path / "x.ncap", [*hello(1, "a"), (1, ">", b"PUB a 0\r\n\r\n")], step=1000 * MS)
    )
    assert facts == {
        "seconds": 4.0,
        "connections": 1,
        "client_frames": 3,
        "client_bytes": facts["client_bytes"],
        "server_frames": 2,
        "out_of_order": 0,
        "begun_before_the_capture": 0,
        "largest_gap_seconds": 1.0,
    }
    assert facts["client_bytes"] > 80
