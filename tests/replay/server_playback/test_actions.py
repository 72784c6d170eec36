"""The text of mismatches."""

from __future__ import annotations

from natsproxy.replay.conversation.difference import Difference
from natsproxy.replay.server_playback.actions import Candidate, Mismatch


def test_a_mismatch_tells_already_used_from_never_recorded() -> None:
    used = Mismatch(1, "shop", "PUB a 'x'", (Candidate("PUB a 'x'", None, True, 1),))
    other = Mismatch(
        2, "", "PUB a 'x'", (Candidate("PUB a 'y'", Difference("body", "body", b"y", b"x"), False, 1),)
    )
    assert (
        str(used) == "client 'shop' sent a frame that was never recorded: PUB a 'x'\n"
        "  recorded, but already used: PUB a 'x'"
    )
    assert "connection 2" in str(other)
    assert "nearest (body differs, not used): PUB a 'y'\n    body: 'y' recorded, 'x' sent" in str(other)
    assert "no similar frame was recorded" in str(Mismatch(1, "", "SUB a"))
