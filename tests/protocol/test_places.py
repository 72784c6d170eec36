"""Places in frames, as settings name them."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.protocol.places import FramePlace, matches_any, parse_place, parse_pointer, pointer_text


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("/a/b~1c/~0/0", FramePlace(pointer=("a", "b/c", "~", "0"))),
        ("/", FramePlace(pointer=("",))),
        ("/first name/ x ", FramePlace(pointer=("first name", " x "))),
        ("orders.>  /ts", FramePlace(b"orders.>", pointer=("ts",))),
        ("/orders /ts", FramePlace(b"/orders", pointer=("ts",))),
        ("> /a /b", FramePlace(pointer=("a ", "b"))),
        ("header:X-*", FramePlace(header="X-*")),
        ("a.* header:X", FramePlace(b"a.*", header="X")),
        ("token", FramePlace()),
        ("a token", FramePlace(b"a")),
    ],
)
def test_a_place_is_read_and_written(text: str, place: FramePlace) -> None:
    assert parse_place(text) == place
    assert parse_place(str(place)) == place


@pytest.mark.parametrize("text", ["", "a", "a b", "a /x~2", "header:", "a..b /x", "orders.> ts", "/a~"])
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse_place(text)
    with pytest.raises(ValueError, match="must be"):
        parse_pointer(text or "token")


@given(
    st.lists(st.text(st.characters(codec="utf-8")), min_size=1, max_size=3).map(tuple),
    st.sampled_from([b">", b"a.*", b"/a", b"token"]),
)
def test_each_pointer_is_read_back(pointer: tuple[str, ...], subject: bytes) -> None:
    place = FramePlace(subject, pointer)
    assert parse_place(str(place)) == place
    assert pointer_text(pointer).startswith("/")


def test_a_pointer_covers_what_is_below_it() -> None:
    place = parse_pointer("/items/*/id")
    covered = [("items", "0", "id"), ("items", "x", "id", "y")]
    assert all(map(place.covers, covered))
    assert not any(
        map(place.covers, [(), ("items",), ("items", "0"), ("items", "0", "no"), ("x", "0", "id")])
    )


@given(st.text("ab*", max_size=8), st.text("abAB", max_size=8))
def test_a_star_matches_any_letters(glob: str, name: str) -> None:
    assert matches_any(name, ("no", glob)) == fnmatchcase(name.lower(), glob)


def test_many_stars_take_no_time() -> None:
    """A glob may come from a capture that somebody else made."""
    assert not matches_any("a" * 10_000 + "c", ("a*" * 50 + "b",))
