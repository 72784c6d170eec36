"""Blocks that somebody made to do harm: both decoders say the same, nothing crashes, memory stays."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import msgpack
import pytest
from hypothesis import settings

from natsproxy.capture.columns.table import FIELDS
from natsproxy.capture.format.records import Frames
from natsproxy.wire.ops import C2S, S2C
from tests.capture.columns.test_table import arrow, both, refs
from tests.kit.captures import MONO, write


def fuzz(*arguments: object) -> str:
    """Run the fuzzer; return what it prints."""
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.capture.fuzz", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not arrow.COMPILED, reason="the compiled decoder was not built")
def test_mutated_blocks_are_the_same_to_both() -> None:
    """Five hundred of them; a hundred times as many under the deep profile."""
    count = 10 * settings().max_examples
    seen = json.loads(fuzz("differ", 0, count))
    assert sum(seen.values()) == count
    assert min(seen.values()) > count // 50


@pytest.mark.long
def test_memory_is_flat() -> None:
    """Whole blocks, blocks that are given up, blocks that are refused."""
    assert int(fuzz("memory", 5)) < 2 << 20


def test_a_small_block_with_a_great_column_is_refused(tmp_path: Path) -> None:
    """A cause is repeated for each frame of its record."""
    for frames, refused in ((10, False), (300, True)):
        record = Frames(1, S2C, b"+OK\r\n" * frames, frames, 0, 0, MONO, None, None, "r" * (1 << 20))
        for file, ref in refs(write(tmp_path / f"{frames}.ncap", [record])):
            made = both(file, ref, ["cause", "op"])
            assert ("does not fit" in made) if refused else made.num_rows == frames


def test_text_that_is_not_utf_8_grows_threefold(tmp_path: Path) -> None:
    """And is still text, in both."""
    data = b"PUB %s 0\r\n\r\n" % (b"\xff" * 100_000)
    for file, ref in refs(write(tmp_path / "a.ncap", [Frames(1, C2S, data, 1, 1, 0, MONO, 0, MONO)])):
        (row,) = both(file, ref, ["subject", "template"]).to_pylist()
        assert row["subject"] == row["template"] == "\ufffd" * 100_000


def test_items_of_nothing() -> None:
    """Values that say that they are long, cut where it hurts."""
    from tests.capture.fuzz import HUGE, Body, summary, told

    fine = msgpack.packb([0, 1, 1, 0, 1, 0, 0, 0, 0, None, b"+OK\r\n"])
    for huge in HUGE:
        for place in range(len(fine) + 1):
            for raw in (fine[:place] + huge + fine[place:], fine[:place] + huge, fine + huge[:place]):
                body = Body(raw, summary(random.Random(0), len(raw)))
                one, other = (
                    told(decode, body, list(FIELDS), -1, None) for decode in (arrow.batch, arrow.pure_batch)
                )
                assert one == other if isinstance(one, str) else one.equals(other)
