"""The text of mismatches."""

from __future__ import annotations

from natsproxy.replay.conversation.difference import Difference
from natsproxy.replay.server_playback.advice import Advice
from natsproxy.replay.server_playback.mismatch import Candidate, Mismatch
from tests.replay.scripted import named


def test_a_frame_that_differs_shows_both_values_and_the_option_that_accepts_it() -> None:
    near = Candidate(
        "PUB a '{\"qty\":3}'",
        Difference("body", "/qty", 3, 4).text,
        False,
        named(1),
        Advice("like_json", "a /qty"),
    )
    mismatch = Mismatch(2, "", "PUB a", "PUB a '{\"qty\":4}'", (near,), 5, 4)
    assert mismatch.summary == "/qty: 3 recorded, 4 sent: PUB a of connection 2"
    assert str(mismatch).splitlines() == [
        "connection 2 sent a frame that was never recorded: PUB a '{\"qty\":4}'",
        "  nearest (not used): PUB a '{\"qty\":3}'",
        "    /qty: 3 recorded, 4 sent",
        '    accepted with like_json="a /qty" (marker, TOML) or '
        "--like-json 'a /qty' (pytest: --nats-like-json)",
        "  recorded on this subject: 5 frames, 4 of them used",
    ]


def test_a_frame_that_was_used_is_not_one_that_was_never_recorded() -> None:
    used = Mismatch(1, "shop", "PUB a", "PUB a 'x'", (Candidate("PUB a 'x'", None, True, named(1)),), 1, 1)
    assert used.summary == "client 'shop' sent PUB a, more often than recorded"
    assert str(used).splitlines()[:2] == [
        "client 'shop' sent a frame more often than recorded: PUB a 'x'",
        "  recorded, but used already: PUB a 'x'",
    ]


def test_a_frame_of_another_client_is_called_that() -> None:
    other = Mismatch(1, "shop", "PUB a", "PUB a 'x'", (Candidate("PUB a 'x'", None, False, named(3)),), 1, 0)
    assert other.summary == "client 'shop' sent PUB a, which another client sent"
    assert "  recorded for another client (connection 3): PUB a 'x'" in str(other)


def test_without_a_similar_frame_there_is_nothing_to_show() -> None:
    mismatch = Mismatch(1, "", "SUB a", "SUB a")
    assert mismatch.summary == "connection 1 sent SUB a, which was never recorded"
    assert str(mismatch).endswith("SUB a\n  recorded on this subject: nothing")
