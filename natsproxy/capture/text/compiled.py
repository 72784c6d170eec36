"""The binary form of a text: the same items, in blocks.

Neighbouring frames of one read become one record again.  Secrets are removed as from a recording, since a
text may have been written by hand.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Final, cast

import msgpack

from natsproxy.capture.filter.redact import Secrets, redact_frames
from natsproxy.capture.format.blocks import BODY_MAX, BlockKind, header
from natsproxy.capture.format.records import CloseRecord, Flags, Frames, Item, Preamble
from natsproxy.capture.text.parser import TextParser, TimedItem
from natsproxy.capture.write.builder import BLOCK_SIZE, BlockBuilder, SealedBlock
from natsproxy.capture.write.index import Index
from natsproxy.capture.write.writer import beginning
from natsproxy.errors import CaptureError
from natsproxy.wire.frames import Run
from natsproxy.wire.ops import C2S, S2C

_RECORD: Final = 64 << 10  # the most bytes of neighbouring frames in one record
_SPOOLED: Final = 16 << 20  # bytes that stay in memory
_KEPT: Final = 8  # texts whose binary form is cached, since a playback opens its capture several times
_KEPT_SIZE: Final = 1 << 20  # bytes of such a text


def compiled(file: IO[bytes], path: Path | str) -> IO[bytes]:
    """Return the binary form of a text as a file, open for reading.

    Raises CaptureError, which names the line.
    """
    out = cast("IO[bytes]", SpooledTemporaryFile(_SPOOLED))  # noqa: SIM115 - the caller closes it
    try:
        text = file.read(_KEPT_SIZE + 1)
        if len(text) <= _KEPT_SIZE:
            out.write(_compiled(text, path))
        else:
            file.seek(0)
            compile_text(file, path, out)
        out.seek(0)
    except BaseException:
        out.close()
        raise
    return out


@lru_cache(_KEPT)
def _compiled(text: bytes, path: Path | str) -> bytes:
    out = BytesIO()
    compile_text(BytesIO(text), path, out)
    return out.getvalue()


def compile_text(file: IO[bytes], path: Path | str, out: IO[bytes]) -> int:
    """Write the binary form of a text; return the number of frames."""
    parser = TextParser(file, path)
    index = Index(parser.info.wall)
    offset = 0
    for part in beginning(parser.info, 0):
        offset += out.write(part)
    try:
        for block in _blocks(_records(_clean(parser.items())), path):
            summary, size = msgpack.packb(block.summary), sum(map(len, block.buffers))
            index.add(offset, summary, block.summary)
            for part in (header(BlockKind.RECORDS, 0, summary, block.buffers, size), summary, *block.buffers):
                offset += out.write(part)
        out.writelines(index.ending(offset))
    except OverflowError:
        raise CaptureError("a number in it is beyond what a capture holds", path=path) from None
    return index.frames


def _blocks(items: Iterator[TimedItem], path: Path | str) -> Iterator[SealedBlock]:
    """Yield the blocks of items; the clocks of a block are those of its first item."""
    builder = BlockBuilder()
    before = 0
    for clocks, item in items:
        if builder.begun and (clocks != before or builder.size >= BLOCK_SIZE):
            yield builder.seal()
        if not builder.begun:
            builder.begin(item.t, item.t + clocks)
            before = clocks
        builder.add(item)
        if builder.size > BODY_MAX:
            raise CaptureError("a frame that is longer than a block may be", path=path)
    if builder.begun:
        yield builder.seal()


def _records(items: Iterator[TimedItem]) -> Iterator[TimedItem]:
    """Yield items, with neighbouring frames that passed unchanged at one moment as one record."""
    held: list[Frames] = []
    clocks, size = 0, 0
    for timed in items:
        item = timed.item
        if held and not (
            isinstance(item, Frames)
            and timed.clocks == clocks
            and size + len(item.data) <= _RECORD
            and _follows(held[-1], item)
        ):
            yield TimedItem(clocks, _joined(held))
            held = []
        if not isinstance(item, Frames):
            yield timed
            continue
        size = size + len(item.data) if held else len(item.data)
        clocks = timed.clocks
        held.append(item)
    if held:
        yield TimedItem(clocks, _joined(held))


def _follows(one: Frames, other: Frames) -> bool:
    """Tell whether two frames came with the same read."""
    if one.in_first is None or one.out_first is None or one.cause is not None or one.flags or one.extra:
        return False
    return other._replace(data=b"", ops=0) == one._replace(
        data=b"", ops=0, in_first=one.in_first + 1, out_first=one.out_first + 1
    )


def _joined(held: list[Frames]) -> Frames:
    ops = 0
    for one in held:
        ops |= one.ops
    return held[0]._replace(data=b"".join(one.data for one in held), frames=len(held), ops=ops)


def _clean(items: Iterator[TimedItem]) -> Iterator[TimedItem]:
    """Yield items without secrets."""
    secrets: defaultdict[int, Secrets] = defaultdict(Secrets)
    for clocks, item in items:
        for clean in _without_secrets(item, secrets):
            yield TimedItem(clocks, clean)
        if isinstance(item, CloseRecord) and item.conn in secrets and not secrets[item.conn].alert:
            del secrets[item.conn]  # it has no state to keep


def _without_secrets(item: Item, secrets: defaultdict[int, Secrets]) -> Iterator[Item]:
    if isinstance(item, Frames):
        # What is left of a frame that was cut and redacted does not parse, and holds no secret.
        if item.flags & Flags.REDACTED and item.flags & (Flags.CUT | Flags.TRUNCATED):
            yield item
        else:
            of_connection, data = secrets[item.conn], bytes(item.data)
            of_connection.look(item.direction, [Run(data, 0, len(data), item.frames, item.ops)])
            yield from of_connection.clean(item)
    elif isinstance(item, Preamble):
        known = {"info": S2C, "connect": C2S}
        clean = {
            key: redact_frames(value, known[key])
            for key, value in item.info.items()
            if key in known and isinstance(value, bytes)
        }
        yield item._replace(info={**item.info, **clean})
    else:
        yield item
