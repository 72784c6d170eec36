"""The text of mismatches."""

from __future__ import annotations

from natsproxy.replay.server_playback.actions import Candidate, Mismatch


def test_a_mismatch_tells_already_used_from_never_recorded() -> None:
    used = Mismatch(1, "shop", "PUB a 'x'", (Candidate("PUB a 'x'", "", True, 1),))
    other = Mismatch(2, "", "PUB a 'x'", (Candidate("PUB a 'y'", "body", False, 1),))
    assert (
        str(used) == "client 'shop' sent a frame that was never recorded: PUB a 'x'\n"
        "  recorded, but already used: PUB a 'x'"
    )
    assert "connection 2" in str(other)
    assert "nearest (body differs, not used): PUB a 'y'" in str(other)
    assert "no similar frame was recorded" in str(Mismatch(1, "", "SUB a"))
