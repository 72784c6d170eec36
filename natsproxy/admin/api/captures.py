"""Endpoints for captures: start and stop one, write a note into it, download its segments.

A capture started here goes into the folder of --admin-captures, under a name without slashes: a holder of the
token can write nowhere else on the disk.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import trio

from natsproxy.admin.api import times
from natsproxy.admin.api.operation import ApiError, ApiRequest, Operation, Param
from natsproxy.admin.api.schema import Schema, fields, flag, items, shape, text, whole
from natsproxy.admin.managed import ManagedProxy
from natsproxy.admin.streamed import Streamed
from natsproxy.capture.format.blocks import MAGIC
from natsproxy.capture.names import of_file
from natsproxy.capture.read.segment import CaptureFile
from natsproxy.config.recording import RECORD_OPTIONS, RecordSettings, capture_settings
from natsproxy.errors import CaptureError

_PATH: Final = "/v1/proxies/{proxy}/capture"
_PIECE: Final = 256 * 1024  # bytes per chunk of a download
_MOST: Final = 1000  # segments in one answer
_OF_RECORD: Final = "@record"
"""The first part of the names of segments of --record, which no name in the folder begins with."""
_MEDIA: Final = "application/octet-stream"
_VALUE: Final[Schema] = {"type": ["string", "integer", "number"], "maxLength": 1000}

SHAPES: Final = {
    "CaptureSettings": fields(
        {},
        {
            name: {**(items(_VALUE, 100) if option.many else _VALUE), "description": option.help}
            for name, option in RECORD_OPTIONS.items()
        },
    ),
    "Capture": fields(
        {
            "recording": flag("Whether a capture is being recorded."),
            "path": text("Its file or folder; null for none.", null=True),
            "file": text("The segment that is being written; null for none.", null=True),
            "size": whole("Size of that segment so far, in bytes."),
            "waiting": whole("Bytes in memory that are not written yet."),
            "unwritten": text("Why the last capture is incomplete; null if it is complete.", null=True),
        }
    ),
    "Segment": fields(
        {
            "name": text("File name, for a download."),
            "size": whole("Readable size in bytes."),
            "writing": flag("Whether it is still being written."),
            "modified": text("Time of the last write."),
            "modified_ns": whole("The same, as Unix time."),
        }
    ),
    "Segments": fields({"total": whole("Number of segments."), "segments": items(shape("Segment"))}),
}


class Captures:
    """The operations on captures.  folder: for those started here, None for none."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    # -- the capture

    async def show(self, call: ApiRequest) -> dict[str, Any]:
        """Return the state of the capture."""
        proxy = call.proxy.proxy
        recorder = proxy.recorder
        return {
            "recording": recorder is not None,
            "path": str(recorder.settings.path) if recorder is not None else None,
            "file": str(recorder.file) if recorder is not None else None,
            "size": recorder.size if recorder is not None else 0,
            "waiting": recorder.waiting if recorder is not None else 0,
            "unwritten": proxy.unwritten,
        }

    async def start(self, call: ApiRequest) -> dict[str, Any]:
        """Start a capture in the folder."""
        if self._folder is None:
            raise ApiError(409, "there is no folder for captures: name one with --admin-captures")
        if call.proxy.proxy.recorder is not None:
            raise ApiError(409, "a capture is already being recorded: stop it first")
        settings = capture_settings(self._folder / call.body["name"], call.body.get("settings", {}))
        await trio.to_thread.run_sync(partial(self._folder.mkdir, parents=True, exist_ok=True))
        call.proxy.proxy.start_recording(settings)
        call.tell("capture started", name=call.body["name"])
        return await self.show(call)

    async def stop(self, call: ApiRequest) -> dict[str, Any]:
        """End the capture; return when its index is written."""
        _recording(call)
        call.tell("capture stops")  # before its end, so that it has a note of it
        with trio.CancelScope(shield=True):  # a client that disconnects must not cancel the stop
            await call.proxy.proxy.stop_recording()
        return await self.show(call)

    async def rotate(self, call: ApiRequest) -> dict[str, Any]:
        """Begin a new segment."""
        _recording(call)
        call.tell("new segment")
        call.proxy.proxy.rotate()
        return await self.show(call)

    async def mark(self, call: ApiRequest) -> dict[str, Any]:
        """Write a note into the capture."""
        _recording(call)
        call.tell("capture marked", noted=False)
        call.proxy.proxy.mark(call.body["text"])
        return await self.show(call)

    # -- its segments

    async def segments(self, call: ApiRequest) -> dict[str, Any]:
        """Return the segments, by their names."""
        found = await trio.to_thread.run_sync(self._files, call.proxy)
        names = sorted(found)[call.query["offset"] : call.query["offset"] + call.query["limit"]]
        shown = []
        for name in names:
            row = await self._row(call.proxy, name, found[name])
            if row is not None:
                shown.append(row)
        return {"total": len(found), "segments": shown}

    async def download(self, call: ApiRequest) -> Streamed:
        """Return a segment up to its last whole block."""
        found = await trio.to_thread.run_sync(self._files, call.proxy)
        path = found.get(call.path["segment"])
        row = await self._row(call.proxy, call.path["segment"], path) if path is not None else None
        if path is None or row is None:
            raise ApiError(404, f"there is no segment {call.path['segment'][:80]!r}")
        coded = quote(os.fsencode(path.name))
        file = f'="{path.name}"' if coded == path.name else f"*=utf-8''{coded}"
        headers = {
            "Content-Disposition": f"attachment; filename{file}",
            "Content-Length": str(row["size"]),
        }
        return Streamed(_pieces(path, row["size"]), _MEDIA, headers)

    async def _row(self, managed: ManagedProxy, name: str, path: Path) -> dict[str, Any] | None:
        recorder = managed.proxy.recorder
        writing = recorder is not None and recorder.file == path
        try:
            size, modified = await trio.to_thread.run_sync(_looked_at, path, not writing)
        except (CaptureError, OSError):  # just deleted, or not a capture
            return None
        if recorder is not None and writing:
            size = recorder.size
        at = times.iso_of(modified)
        return {"name": name, "size": size, "writing": writing, "modified": at, "modified_ns": modified}

    def _files(self, managed: ManagedProxy) -> dict[str, Path]:
        """Return the segments by their names.  It runs in a thread."""
        found: dict[str, Path] = {}
        if self._folder is not None:
            for path in [*self._folder.glob("*.ncap"), *self._folder.glob("*/*.ncap")]:
                found[str(path.relative_to(self._folder))] = path
        record = managed.proxy.settings.record
        if record is not None:
            found |= {f"{_OF_RECORD}/{path.name}": path for path in _segments_of(record)}
        return {name: path for name, path in found.items() if path.is_file() and not path.is_symlink()}


def _recording(call: ApiRequest) -> None:
    if call.proxy.proxy.recorder is None:
        raise ApiError(409, "no capture is being recorded")


def _segments_of(settings: RecordSettings) -> Iterator[Path]:
    path = settings.path
    if path.suffix != ".ncap":
        yield from path.glob("*.ncap")
        return
    yield from of_file(path)


def _looked_at(path: Path, finished: bool) -> tuple[int, int]:
    """Return the bytes of a segment to its last whole block, and the time of its last write (Unix ns).

    finished: False where it is being written, and its size is known.
    """
    facts = path.stat()
    return _whole_size(path) if finished else facts.st_size, facts.st_mtime_ns


def _whole_size(path: Path) -> int:
    with CaptureFile(path) as file:
        if file.indexed() is not None:
            return file.size()
        offset = len(MAGIC)
        while (block := file.block_at(offset)) is not None:
            offset = block.end
        return offset


async def _pieces(path: Path, size: int) -> AsyncGenerator[str | bytes, None]:
    with path.open("rb") as file:
        while size > 0:
            piece = await trio.to_thread.run_sync(file.read, min(_PIECE, size))
            if not piece:
                return
            size -= len(piece)
            yield piece


def operations(folder: Path | None) -> tuple[Operation, ...]:
    """Return the operations.  folder: for captures started here."""
    captures = Captures(folder)
    name = text("A file x.ncap, or a folder for segments.", most=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    mark = text("The note.", most=1000)
    limit = Param("limit", whole("Maximum number of results.", least=0, most=_MOST), 100)
    offset = Param("offset", whole("Number of results to skip.", most=1 << 53), 0)
    answer = shape("Capture")
    return (
        Operation("GET", _PATH, "getCapture", "The capture that is being made.", captures.show, answer),
        Operation(
            "POST",
            _PATH,
            "startCapture",
            "Begin a capture in the folder of --admin-captures.",
            captures.start,
            answer,
            body=fields({"name": name}, {"settings": shape("CaptureSettings")}),
            status=201,
            more=(409, 422),
        ),
        Operation("DELETE", _PATH, "stopCapture", "End the capture.", captures.stop, answer, more=(409,)),
        Operation(
            "POST",
            _PATH + "/rotate",
            "rotateCapture",
            "Begin a new segment, soon.",
            captures.rotate,
            answer,
            more=(409,),
        ),
        Operation(
            "POST",
            _PATH + "/mark",
            "markCapture",
            "Write a note into the capture.",
            captures.mark,
            answer,
            body=fields({"text": mark}),
            more=(409,),
        ),
        Operation(
            "GET",
            _PATH + "/segments",
            "listSegments",
            "The segments of captures.",
            captures.segments,
            shape("Segments"),
            params=(limit, offset),
        ),
        Operation(
            "GET",
            _PATH + "/segments/{segment}",
            "getSegment",
            "A segment as a file; one that is being written comes to its last whole block.",
            captures.download,
            _MEDIA,
            more=(404,),
        ),
    )
