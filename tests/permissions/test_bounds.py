"""What is held for blocks: bounded, and the block is never wider than without a bound."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from natsproxy.capture.format.connection import ConnectionId
from natsproxy.cli import main
from natsproxy.errors import NatsproxyError
from natsproxy.permissions import templates
from natsproxy.permissions.formats import evidence_text
from natsproxy.permissions.needs import needs_of
from natsproxy.permissions.templates import COUNTED, HELD, Evidence, MappedPermission, Room, Templates
from natsproxy.permissions.uses import By, ClientDetails, Use, Verb
from natsproxy.protocol.subjects import is_subset
from tests.permissions.kit import NUID, connect, items, segments

WORDS = [b"%c%c" % (first, second) for first in b"abcd" for second in b"xyz"]
TOKENS = st.sampled_from([*WORDS, *WORDS, *WORDS, b"1", b"22", b"333", NUID])
SUBJECTS = st.lists(
    st.one_of(
        st.builds(b"o.%b".__mod__, TOKENS),
        st.builds(b"o.%b.%b".__mod__, st.tuples(TOKENS, TOKENS)),
        st.builds(b"o.%b.%b.%b".__mod__, st.tuples(TOKENS, TOKENS, st.sampled_from(WORDS[:2]))),
    ),
    max_size=150,
)


def use(subject: bytes, *, denied: bool = False, t: int = 1) -> Use:
    return Use(ConnectionId(bytes(16), 0, 1), ClientDetails(), Verb.PUBLISH, subject, b"", t, denied=denied)


def lines(uses: Iterable[tuple[bytes, bool]]) -> dict[MappedPermission, Evidence]:
    """Return the lines; with each subject, whether the server denied the use."""
    one = Templates(words=2)
    for subject, denied in uses:
        one.add(use(subject))
        if denied:
            one.add(use(subject, denied=True))
    return one.lines()


def letters(number: int) -> bytes:
    """Return a word of its own for a number."""
    return bytes(97 + int(digit) for digit in f"{number:06}")


@settings(max_examples=150, deadline=None)
@given(SUBJECTS, st.lists(st.sampled_from([False, False, True]), min_size=150, max_size=150))
def test_a_bounded_block_allows_all_uses_and_no_more(subjects: list[bytes], denied: list[bool]) -> None:
    """No more than the block without a bound, whose lines are those that were not denied each time."""
    uses = [*zip(subjects, denied, strict=False)]
    exact = lines(uses)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(templates, "HELD", 6)
        patch.setattr(templates, "COUNTED", 3)
        bounded = lines(uses)
    allowed = [place.subject for place, one in bounded.items() if one.denied < one.frames]
    may = [place.subject for place, one in exact.items() if one.denied < one.frames]
    for subject, was_denied in uses:
        assert was_denied or any(is_subset(subject, one) for one in allowed), subject
    for one in allowed:
        assert any(is_subset(one, wide) for wide in may), one
    for count in ("frames", "denied"):
        assert sum(getattr(one, count) for one in bounded.values()) == sum(
            getattr(one, count) for one in exact.values()
        )


@pytest.mark.parametrize(
    ("forms", "found"),
    [
        ([b"users.%b.created"], [b"users.*.created"]),
        ([b"users.%b.orders.17", b"users.%b.orders.18"], [b"users.*.orders.17", b"users.*.orders.18"]),
    ],
)
def test_words_are_held_up_to_those_that_are_counted(forms: list[bytes], found: list[bytes]) -> None:
    """As ids are; the evidence says that there were more."""
    one = Templates()
    for number in range(2 * HELD):
        for form in forms:
            one.add(use(form % letters(number)))
    assert one._held <= HELD
    made = one.lines()
    assert [place.subject for place in made] == found
    for evidence in made.values():
        assert f"{2 * HELD} frames, {COUNTED}+ values" in evidence_text(evidence)
        assert len(evidence.values[1]) == COUNTED


def test_lines_that_stay_apart_are_refused_beyond_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all clients together: no block is better than half of one."""
    monkeypatch.setattr(templates, "LINES", 300)
    room = Room()
    clients = [Templates(room=room) for _ in range(3)]
    for number in range(300):
        clients[number % 3].add(use(b"a.%b.%b" % (letters(number), letters(number))))
    with pytest.raises(NatsproxyError, match="used more than 300 different subjects whose words"):
        clients[0].add(use(b"one.more"))


def test_clients_are_refused_beyond_a_number(tmp_path: Path) -> None:
    frames = [(conn, connect(f"client{conn}")) for conn in (1, 2, 3)]
    path = str(segments(tmp_path / "c", items(frames), 9)[0])
    done = CliRunner().invoke(main, ["permissions", path, "--clients", "2"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "more than 2 clients by user: choose --by account, fewer captures, or a larger" in done.stderr
    assert len(needs_of([Path(path)], By.NAME, most=3)) == 3
