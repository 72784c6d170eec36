"""The difference of two multisets, in memory and in files."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.replay.diff.multiset_diff import MultisetDiff, Surplus

WORDS = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 1)), max_size=60)


def digest(word: str) -> bytes:
    return blake2b(word.encode(), digest_size=12).digest()


def surplus(entries: list[tuple[str, int]], limit: int) -> tuple[list[Surplus], bool]:
    with MultisetDiff(limit) as multisets:
        for place, (word, side) in enumerate(entries):
            multisets.add(digest(word), ord(word), side, place)
        return sorted(multisets.surplus()), multisets.spilled


@given(WORDS)
def test_the_order_of_the_elements_does_not_matter(entries: list[tuple[str, int]]) -> None:
    ahead = Counter({word: 0 for word, _ in entries})
    for word, side in entries:
        ahead[word] += -1 if side else 1
    found, spilled = surplus(entries, limit=1000)
    assert not spilled
    assert {one.key: one.by for one in found} == {ord(word): by for word, by in ahead.items() if by}
    for one in found:
        assert entries[one.place] == (chr(one.key), 0 if one.by > 0 else 1)


@given(WORDS, st.integers(0, 6))
def test_files_give_the_same_answer_as_memory(entries: list[tuple[str, int]], limit: int) -> None:
    """Places may differ: any of several equal frames may be the surplus one."""
    memory, files = surplus(entries, limit=1000)[0], surplus(entries, limit)[0]
    assert [one[:2] for one in files] == [one[:2] for one in memory]
    for one in files:
        assert entries[one.place] == (chr(one.key), 0 if one.by > 0 else 1)


def test_equal_entries_need_no_files_however_many() -> None:
    with MultisetDiff(limit=2) as multisets:
        for n in range(1000):
            multisets.add(digest(str(n)), 0, 0, n)
            multisets.add(digest(str(n)), 0, 1, n)
        assert not multisets.spilled
        assert list(multisets.surplus()) == []


def test_the_files_leave_with_the_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with suppress(ZeroDivisionError), MultisetDiff(limit=2) as multisets:
        for n in range(10):
            multisets.add(digest(str(n)), n, 0, n)
        assert multisets.spilled
        assert list(tmp_path.iterdir()) != []
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
