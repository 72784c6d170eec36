"""Counts of a block: those of its frames read one by one, from the compiled decoder and from its twin."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from natsproxy.capture.columns import counts
from natsproxy.capture.format.records import Frames
from natsproxy.capture.read.frames import CapturedFrame, frames_of
from natsproxy.capture.read.segment import BlockRef, CaptureFile
from natsproxy.protocol.template import template
from natsproxy.wire.ops import Op
from tests.capture.columns.test_table import RECORDINGS, generated
from tests.kit.captures import write

Key = tuple[int, str | None, str | None, str | None]


def key(one: CapturedFrame) -> Key:
    """Return what a frame is counted by."""
    head = one.head
    if head is None:
        return one.conn.number, None, None, one.cause
    named = template(head.subject).decode("utf-8", "replace") if head.subject else None
    return one.conn.number, head.op.label, named, one.cause


def one_by_one(file: CaptureFile, ref: BlockRef) -> counts.BlockCounts:
    """Count the frames of a block as objects."""
    items = list(file.items(ref))
    records = [item for item in items if isinstance(item, Frames)]
    frames = [one for item in records for one in frames_of(ref, item)]
    connects = [
        (one.conn.number, one.head.args.decode()) for one in frames if one.head and one.head.op == Op.CONNECT
    ]
    return counts.BlockCounts(
        Counter(map(key, frames)),
        sum(len(item.data) for item in records),
        connects if ref.summary.ops else [],
        [item for item in items if not isinstance(item, Frames)],
    )


@pytest.mark.parametrize("pure", [False, True], ids=["compiled", "pure"])
def test_counts_are_those_of_the_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pure: bool) -> None:
    """Golden captures; and frames of every kind, cut ones and odd texts among them."""
    if pure:
        monkeypatch.setattr(counts, "decoder", None)
    made = [write(tmp_path / f"{seed}.ncap", generated(seed), per_block=20) for seed in range(5)]
    seen: Counter[Key] = Counter()
    for path in (*RECORDINGS.glob("*.ncap"), *made):
        with CaptureFile(path) as file:
            for ref in file.blocks():
                found = counts.count(file, ref)
                assert found == one_by_one(file, ref)
                seen += found.frames
    assert {None, "CONNECT", "HMSG"} <= {op for _, op, _, _ in seen}
    assert any(named and not named.isascii() for _, _, named, _ in seen)
