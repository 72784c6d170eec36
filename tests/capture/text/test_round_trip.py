"""The text of a capture gives the capture back, item by item, whatever it holds."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.capture.format.records import Frames, Item, Note, OpenRecord
from natsproxy.capture.read.frames import Query, frames_of
from natsproxy.capture.read.reader import CaptureReader, open_capture
from natsproxy.capture.read.segment import BlockRef
from natsproxy.capture.text.parser import TextParser
from natsproxy.capture.text.writer import write_text
from natsproxy.wire.ops import C2S
from tests.capture.columns.test_table import generated
from tests.kit.captures import MONO, write

RECORDINGS = Path(__file__).parents[3] / "recordings"
GOLDEN = sorted(RECORDINGS.glob("*.ncap"))


def text_of(reader: CaptureReader, query: Query | None = None) -> str:
    out = io.BytesIO()
    write_text(reader, out, query or Query())
    return out.getvalue().decode()


def one_by_one(items: Iterable[tuple[BlockRef, Item]]) -> Iterator[tuple[Any, ...]]:
    """Yield what a capture says, without its division into records and blocks."""
    for ref, item in items:
        if isinstance(item, Frames):
            for one in frames_of(ref, item):
                yield (one.conn.number, *one._replace(frame=None)[1:]), item.extra
        else:
            yield ref.wall(item.t), item


def parsed(text: str) -> Iterator[tuple[Any, ...]]:
    """Yield what a text says, as it stands there."""
    for clocks, item in TextParser(io.BytesIO(text.encode()), "x.nats.txt").items():
        if isinstance(item, Frames):
            delay = (item.out_t or 0) - (item.in_t or 0) if None not in (item.in_t, item.out_t) else 0
            of = (item.extra or {}).get("of")
            fields = (
                item.conn,
                item.direction,
                item.t,
                item.t + clocks,
                item.in_first,
                item.out_first,
                delay,
            )
            yield (*fields, item.cause, item.flags, of, None, item.data), item.extra
        else:
            yield item.t + clocks, item


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden_captures_come_back(path: Path, tmp_path: Path) -> None:
    """Through a file, as commands and playbacks read it."""
    text = tmp_path / "x.nats.txt"
    text.write_text(text_of(open_capture(path)))
    assert list(one_by_one(open_capture(text).items())) == list(one_by_one(open_capture(path).items()))
    old, new = next(open_capture(path).segments()), next(open_capture(text).segments())
    for name in ("recorder", "boot", "wall", "mono", "seed", "rules", "settings"):
        assert getattr(new, name) == getattr(old, name)
    assert text_of(open_capture(text)) == text.read_text()


@pytest.mark.parametrize("path", sorted(RECORDINGS.glob("*.nats.txt")), ids=lambda path: path.name)
def test_golden_texts_stay_as_they_are(path: Path) -> None:
    """Old ones are read, and new ones look the same: a cassette that is recorded again has a small diff."""
    capture = RECORDINGS / f"{path.name.removesuffix('.nats.txt')}-v1.1.ncap"
    assert list(one_by_one(open_capture(path).items())) == list(one_by_one(open_capture(capture).items()))
    assert text_of(open_capture(capture)) == path.read_text()


def test_an_older_text_is_read() -> None:
    """One with arguments below their line, and a declaration of each connection."""
    old = Path(__file__).with_name("older.nats.txt")
    capture = open_capture(RECORDINGS / "denied-v1.1.ncap")
    assert list(one_by_one(open_capture(old).items())) == list(one_by_one(capture.items()))


def test_each_scenario_has_its_golden_text() -> None:
    assert {path.stem.split("-")[0] for path in GOLDEN} == {
        path.name.removesuffix(".nats.txt") for path in RECORDINGS.glob("*.nats.txt")
    }


@pytest.mark.parametrize("seed", range(12))
def test_captures_of_all_kinds_of_items_come_back(seed: int, tmp_path: Path) -> None:
    reader = open_capture(write(tmp_path / "x.ncap", generated(seed), per_block=7))
    assert list(parsed(text_of(reader))) == list(one_by_one(reader.items()))


words = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=12).map(str.encode)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.text()
    # msgpack's texts hold no lone surrogates
    .filter(lambda text: not any("\ud800" <= char <= "\udfff" for char in text))
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("a$é :\n", max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
bodies = (
    st.binary(max_size=200)
    | st.text(max_size=100).map(lambda text: text.encode("utf-8", "surrogatepass"))
    | st.text("ab \n\t\\|=", max_size=60).map(str.encode)
    | st.sampled_from([b'{"a": [1, 2.50, {"b": "\\u003c \xc3\xa9"}], "c": {}, "d": []}' * n for n in (1, 3)])
    | st.sampled_from(
        [b'{"a":[1,2.50,{"b":"x","long":"%b"}],"c":{},"a":1e5}' % (b"y" * 70), b"[" * 99 + b"]" * 99]
    )
)


@given(st.data())
def test_any_message_comes_back(data: st.DataObject) -> None:
    """Subjects, headers and payloads that nobody should write, too."""
    subject, reply, body = data.draw(words), data.draw(st.just(b"") | words), data.draw(bodies)
    pairs = data.draw(
        st.lists(st.tuples(words, st.text(max_size=9).map(lambda t: t.encode("utf-8", "replace"))))
    )
    block = b"NATS/1.0\r\n" + b"".join(b"%b:%b\r\n" % pair for pair in pairs) + b"\r\n"
    gap = data.draw(st.sampled_from([b" ", b"  ", b" \t"]))
    line = gap.join(word for word in (b"HPUB", subject, reply) if word)
    raw = b"%b %d %d\r\n%b%b\r\n" % (line, len(block), len(block) + len(body), block, body)
    back_and_forth([Frames(1, C2S, raw, 1, 2, 0, MONO, 0, MONO)])


@given(st.dictionaries(st.text('ab$é:" \n', max_size=4), values, max_size=3))
def test_any_facts_come_back(info: dict[str, Any]) -> None:
    back_and_forth([OpenRecord(1, MONO, info), Note(MONO + 5, info)])


def back_and_forth(items: list[Item]) -> None:
    """Check that items are the same behind a text."""

    class Reader(CaptureReader):
        def items(self, keep: object = None) -> Iterator[tuple[BlockRef, Item]]:
            ref = next(iter(open_capture(GOLDEN[0]).blocks()))
            return iter([(ref, item) for item in items])

    reader = Reader([])
    assert list(parsed(text_of(reader))) == list(one_by_one(reader.items()))
