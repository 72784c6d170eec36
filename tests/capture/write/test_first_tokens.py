"""What a block's summary says of the subjects in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.capture.format.records import Flags, Frames, Item, Note
from natsproxy.capture.read.frames import Query, read_frames
from natsproxy.capture.read.reader import open_capture
from natsproxy.capture.write.builder import COMPILED, BlockBuilder
from natsproxy.capture.write.first_tokens import MOST
from natsproxy.wire.ops import C2S, S2C, Direction
from tests.kit.captures import Scribe, write

compiled = pytest.mark.skipif(not COMPILED, reason="not built: tokens are not looked at")
CASES: list[tuple[Direction, bytes, int, list[bytes]]] = [
    (C2S, b"PUB a.b 1\r\nx\r\npub c 0\r\n\r\nPING\r\n", 0, [b"a", b"c"]),
    (C2S, b"SUB orders.* q 1\r\nUNSUB 1\r\n", 0, [b"orders"]),
    (S2C, b"MSG a 1 0\r\n\r\nMSG a.x 1 r 0\r\n\r\n+OK\r\nPONG\r\n", 0, [b"a"]),
    (S2C, b"HMSG h.h 1 12 12\r\nNATS/1.0\r\n\r\n\r\n", 0, [b"h"]),
    (C2S, b'CONNECT {"verbose":false}\r\nPUB \t after 0\r\n\r\n', 0, [b"after"]),
    (C2S, b"PUB cut.short 100\r\nabc", Flags.TRUNCATED, [b"cut"]),
    (C2S, b"PUB drop.ped 0\r\n", Flags.PAYLOAD, [b"drop"]),
    (S2C, b"hmsg kept.part 1 r 12 20\r\nNATS/1.0\r\n\r\nabc", Flags.PAYLOAD, [b"kept"]),
    (C2S, b"PU", Flags.CUT, []),
    (C2S, b"PUB .odd 0\r\n\r\n", 0, [b""]),
]


def tokens(*items: Item) -> list[bytes] | None:
    """Return the first tokens in the summary of a block."""
    builder = BlockBuilder()
    builder.begin(0, 0)
    for item in items:
        builder.add(item)
    found: list[bytes] | None = builder.seal().summary[9]
    return found


@compiled
@pytest.mark.parametrize(("direction", "data", "flags", "expected"), CASES)
def test_first_tokens(direction: Direction, data: bytes, flags: int, expected: list[bytes]) -> None:
    record = Frames(1, direction, memoryview(bytearray(data)), 1, 0, 0, 0, 0, 0, None, flags)
    deep: list[Any] = []
    for _ in range(100):
        deep = [deep]
    odd = record._replace(extra={"deep": {"x": {"y": deep}}})
    assert tokens(record) == tokens(odd) == tokens(Note(0, {"deep": deep}), record, odd) == expected


@compiled
@pytest.mark.parametrize("subjects", [[b"x" * (MOST + 1)], [b"s%d" % n for n in range(MOST + 1)]])
def test_too_many_or_too_long_is_not_known(subjects: list[bytes]) -> None:
    pubs = [b"PUB %s.z 0\r\n\r\n" % subject for subject in subjects]
    connect = b"CONNECT {}\r\n"  # the pure parser reads a record that has one
    runs = [Frames(1, C2S, pub, 1, 0, 0, 0, 0, 0) for pub in pubs]
    assert tokens(*runs) is None
    assert tokens(*(run._replace(data=connect + pub) for run, pub in zip(runs, pubs, strict=True))) is None
    assert tokens(*runs[1:]) == sorted(b"s%d" % n for n in range(1, len(runs)))


@compiled
def test_blocks_of_other_subjects_are_not_opened(tmp_path: Path) -> None:
    scribe = Scribe()
    for number in range(40):
        scribe.frame(number, 1, C2S, b"PUB %s.n 1\r\nx\r\n" % (b"ab"[number // 20 :][:1]))
    path = write(tmp_path / "x.ncap", scribe.items, per_block=10)
    refs = list(open_capture(path).blocks())
    assert [Query(subjects=(b"a.*",)).wants_block(ref) for ref in refs] == [True, True, False, False]
    assert all(Query(subjects=(b"*.n",)).wants_block(ref) for ref in refs)
    assert len(list(read_frames(open_capture(path), Query(subjects=(b"b.>",))))) == 20


names = st.lists(st.sampled_from([b"a", b"b", b"ab", b"*", b">", b"c"]), min_size=1, max_size=3).map(
    b".".join
)


@given(subjects=st.lists(names, min_size=1, max_size=12), patterns=st.lists(names, min_size=1, max_size=2))
def test_passing_over_blocks_changes_no_answer(
    tmp_path_factory: pytest.TempPathFactory, subjects: list[bytes], patterns: list[bytes]
) -> None:
    scribe = Scribe()
    for number, subject in enumerate(subjects):
        scribe.frame(number, 1, C2S, b"SUB %s 1\r\n" % subject)
    path = write(tmp_path_factory.mktemp("t") / "x.ncap", scribe.items, per_block=2)
    query = Query(subjects=tuple(patterns))
    found = [one.in_ordinal for one in read_frames(open_capture(path), query)]
    assert found == [one.in_ordinal for one in read_frames(open_capture(path)) if query.wants(one)]
