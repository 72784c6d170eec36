"""Captures for other tools: a line of JSON per frame, a table of Parquet.  (`pcapng.py`: packets.)

An export appears under its name when it is whole and not before: it is written beside it under a name of its
own, synced and renamed.  What it takes of memory does not grow with the capture: a block, and for Parquet
one row group.
"""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from natsproxy.capture.format.records import Flags
from natsproxy.capture.read.reader import CaptureReader
from natsproxy.capture.read.segment import CaptureFile
from natsproxy.capture.read.view import Query, Seen, walk
from natsproxy.errors import CaptureError
from natsproxy.wire.ops import Op

if TYPE_CHECKING:
    import pyarrow as pa

NO_ARROW: Final = "Parquet needs pyarrow: pip install 'natsproxy[spark]'"


# -- the file


@contextmanager
def output(path: Path, reader: CaptureReader, *, force: bool = False) -> Iterator[IO[bytes]]:
    """Give a file to write, which becomes `path` when the block ends without an error.

    Raises CaptureError for a name that is taken (unless `force`) or that is part of the capture itself, and
    for what the disk refuses.
    """
    if path.exists() and not force:
        raise CaptureError("it exists already: give another name, or --force to overwrite it", path=path)
    if path.exists() and any(path.samefile(part) for part in reader.paths):
        raise CaptureError("this is the capture itself: give another name", path=path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with _created(partial) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise CaptureError(f"cannot write it: {error.strerror or error}", path=path) from None
    finally:
        with suppress(OSError):  # it was renamed, or never made
            partial.unlink()


def _created(path: Path) -> IO[bytes]:
    """Create a file that only its owner reads, as captures are."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


# -- JSON


def jsonl(reader: CaptureReader, out: IO[bytes], query: Query) -> int:
    """Write the frames that `query` asks for as lines of JSON; return how many there were."""
    count = 0
    for one in walk(reader, query):
        out.write(json_line(one).encode() + b"\n")
        count += 1
    return count


def json_line(one: Seen) -> str:
    """Return a frame as a JSON object; payloads that are not UTF-8 come as hex, those cut short not."""
    frame = one.head
    row: dict[str, Any] = {
        "time": iso(one.wall),
        "conn": one.conn,
        "direction": one.direction.label,
        "in": one.in_ordinal,
        "out": one.out_ordinal,
        "delay_ns": one.delay,
        "cause": one.cause,
        "flags": one.flags,
    }
    if frame is not None:
        row["op"] = frame.op.label
        for name in ("subject", "reply", "sid", "queue", "args"):
            value = getattr(frame, name)
            if value:
                row[name] = value.decode("utf-8", "backslashreplace")
        if frame.headers and len(frame.headers) == frame.header_size:
            row["headers"] = frame.headers.decode("utf-8", "backslashreplace")
        if frame.size or frame.op in (Op.PUB, Op.MSG):
            row["size"] = frame.size
        if one.frame is not None and (frame.size or frame.op in (Op.PUB, Op.MSG)):
            row |= _payload(frame.body)
    return json.dumps(row)


def _payload(body: bytes) -> dict[str, str]:
    try:
        return {"payload": body.decode()}
    except UnicodeDecodeError:
        return {"payload_hex": body.hex()}


def iso(wall: int) -> str:
    """Return a time (Unix ns) as text."""
    return datetime.datetime.fromtimestamp(wall / 1e9, datetime.UTC).isoformat()


def remarks(one: Seen) -> list[str]:
    """Return what the proxy did with a frame, in a few words each; nothing for one that passed."""
    found = []
    if one.cause:
        found.append(one.cause if one.out_ordinal is None or one.in_ordinal is None else f"by {one.cause}")
    if one.in_ordinal is None:
        found.append("made here")
    elif one.out_ordinal is None:
        found.append("not passed")
    if one.delay:
        found.append(f"+{one.delay / 1e6:.1f} ms")
    found += [text for flag, text in _NOT_WHOLE.items() if one.flags & flag]
    return found


_NOT_WHOLE = {
    Flags.CUT: "cut: it never ended",
    Flags.TRUNCATED: "longer than what is recorded",
    Flags.PAYLOAD: "payload not kept",
}


# -- Parquet


def parquet(reader: CaptureReader, out: IO[bytes], query: Query, payload: int = -1) -> int:
    """Write the frames that `query` asks for as Spark's table `frames`; return how many there were.

    payload: bytes of each (0 none, -1 all).  Raises CaptureError where pyarrow is not installed.
    """
    try:
        from natsproxy.capture.export.parquet import FramesFile
    except ImportError:
        raise CaptureError(NO_ARROW) from None
    with FramesFile(out) as file:
        for made in _batches(reader, query, payload):
            file.add(made)
    return file.rows


def _batches(reader: CaptureReader, query: Query, payload: int) -> Iterator[pa.RecordBatch]:
    from natsproxy.capture.columns.arrow import batch

    for path in reader.paths:
        with CaptureFile(path) as file:
            for ref in file.blocks():
                if query.wants_block(ref):
                    yield batch(file, ref, payload=payload, query=query)
