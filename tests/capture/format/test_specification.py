"""The page `recordings/FORMAT.md` against the code, and a reader that was written from that page alone."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from natsproxy.capture.format import blocks, records
from natsproxy.capture.read.reader import open_capture
from natsproxy.capture.write.builder import BLOCK_SIZE
from natsproxy.wire.ops import Op

RECORDINGS = Path(__file__).parents[3] / "recordings"
PAGE = (RECORDINGS / "FORMAT.md").read_text(encoding="utf-8")


def table(first: str) -> list[list[str]]:
    """Return the rows of the table whose first column has this heading."""
    lines = PAGE.splitlines()
    at = next(
        place
        for place, line in enumerate(lines)
        if line.startswith(f"| {first} |") and lines[place + 1].startswith("| ---")
    )
    rows = []
    for line in lines[at + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_the_page_names_the_version() -> None:
    assert PAGE.startswith("# The capture format, version {}.{}\n".format(*blocks.VERSION))


def test_header_and_footer_have_the_documented_layout() -> None:
    for heading, layout in (("header field", blocks.HEADER), ("footer field", blocks.FOOTER)):
        sizes = [int(row[2]) for row in table(heading)]
        offsets = [int(row[1]) for row in table(heading)]
        assert offsets == [sum(sizes[:place]) for place in range(len(sizes))]
        assert sum(sizes) == layout.size
    assert table("header field")[0][3] == f"`{blocks.SYNC.decode()}`"
    assert table("footer field")[0][3] == f"`{blocks.END.decode()}`"
    assert blocks.MAGIC.hex(" ").upper() in PAGE
    assert PAGE.count(str(blocks.BODY_MAX)) == 2
    assert f"{BLOCK_SIZE >> 20} MiB of body" in PAGE


def test_block_kinds_summary_and_ops_are_the_code_s() -> None:
    assert [(int(row[0]), row[1]) for row in table("block kind")] == [
        (kind, kind.name) for kind in blocks.BlockKind
    ]
    assert [row[1] for row in table("index")] == list(blocks.Summary._fields)
    assert [(int(row[0]), row[1]) for row in table("bit of `ops`")] == [(op.value, op.label) for op in Op]


def test_items_and_flags_are_the_code_s() -> None:
    for row, kind in zip(table("kind"), records.KINDS, strict=True):
        assert row[1].lower() == records.NAMES[kind]
        if kind is not records.Frames:
            assert row[2].split(", ") == list(kind._fields)
    assert [row[0] for row in table("element")] == table("kind")[0][2].split(", ")
    assert [(int(row[0]), row[1]) for row in table("flag")] == [
        (flag, flag.name) for flag in records.Flags if flag
    ]


def read_as_the_page_says(raw: bytes) -> Iterator[list[Any]]:
    """Yield the items of a file, times made absolute; uses nothing of natsproxy."""
    assert raw[:8] == bytes.fromhex("894E4341500D0A1A")
    at = 8
    while raw[at : at + 4] == b"NBLK":
        kind, flags, summary_size, length, crc = struct.unpack_from("<BBHII", raw, at + 4)
        summary = raw[at + 16 : at + 16 + summary_size]
        body = raw[at + 16 + summary_size : at + 16 + summary_size + length]
        assert zlib.crc32(raw[at : at + 12] + summary + body) == crc
        at += 16 + summary_size + length
        if kind != 2 or flags:
            continue
        mono0 = msgpack.unpackb(summary)[0]
        unpacker = msgpack.Unpacker(strict_map_key=False)
        unpacker.feed(body)
        for item in unpacker:
            for place in {0: (6, 8), 6: (3,), 7: (1,)}.get(item[0], (2,)):
                item[place] = None if item[place] is None else item[place] + mono0
            yield item
    end, crc, index = struct.unpack("<4sIQ", raw[-16:])
    assert end == b"NEND"
    assert zlib.crc32(raw[-8:]) == crc
    assert raw[index : index + 4] == b"NBLK"


@pytest.mark.parametrize("file", sorted(RECORDINGS.glob("*.ncap")), ids=lambda file: file.stem)
def test_a_reader_written_from_the_page_reads_the_golden_captures(file: Path) -> None:
    theirs = list(read_as_the_page_says(file.read_bytes()))
    ours = [item for _, item in open_capture(file).items()]
    assert len(theirs) == len(ours)
    for row, item in zip(theirs, ours, strict=True):
        assert row == records.encode(item, 0)


def test_the_page_has_no_table_without_a_test() -> None:
    headings = set(re.findall(r"(?m)^\| ([^|]+) \|.*\n\| ---", PAGE))
    checked = {
        "header field",
        "footer field",
        "block kind",
        "index",
        "bit of `ops`",
        "kind",
        "element",
        "flag",
    }
    assert headings == checked | {"key"}
