"""The statements of `natsproxy check` on captures, as rows: `format("natscap")` with `what` = "findings".

A check needs the whole history of a recording, in order, and keeps a bounded memory of it.  So a task reads
one recording from its first block to its last.  A recording is what one place names (a file, a folder, a
glob), as `natsproxy check` has it; files of one recorder that are named one by one are one recording too.
Of several recordings one more task compares the payloads, since that check looks at all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import InputPartition

from natsproxy.capture.read.reader import CaptureReader, Tell
from natsproxy.check.checker import CHECKS, check_captures
from natsproxy.check.statement import CANNOT_SAY, ProofFrame, Statement
from natsproxy.errors import CaptureError
from natsproxy.spark.source.options import Options
from natsproxy.spark.source.paths import listing
from natsproxy.spark.source.recording import RecordingReader, SurveyedCapture
from natsproxy.spark.source.survey import SegmentFile, load, survey

if TYPE_CHECKING:
    import pyarrow as pa

_COMPARING: Final = ("payload_changed",)
"""The checks that compare captures with each other."""
_DIRECTIONS: Final = {"c2s": 0, "s2c": 1}
Row = dict[str, Any]


@dataclass(frozen=True)
class CheckPartition(InputPartition):
    """The work of one task: checks, and the captures that they read."""

    checks: tuple[str, ...]
    captures: tuple[SurveyedCapture, ...]


def plan_checks(options: Options) -> list[CheckPartition]:
    """Return the partitions of captures."""
    files = survey(options.paths) if options.survey is None else load(options.survey)
    captures = recordings(options.paths, files)
    if len(captures) < 2:
        return [CheckPartition(tuple(CHECKS), (one,)) for one in captures]
    alone = tuple(name for name in CHECKS if name not in _COMPARING)
    return [
        *(CheckPartition(alone, (one,)) for one in captures),
        CheckPartition(_COMPARING, tuple(captures)),
    ]


def recordings(places: Iterable[str], files: Iterable[SegmentFile]) -> list[SurveyedCapture]:
    """Return the recordings that places name; those that share a recorder are one, named as the first."""
    known = {file.name: file for file in files}
    found: list[tuple[str, dict[str, SegmentFile]]] = []
    for place in places:
        mine = {name: known[name] for name in listing(place) if name in known}
        name, others = place, list[tuple[str, dict[str, SegmentFile]]]()
        for one in found:
            if _recorders(one[1]) & _recorders(mine):
                name, mine = (one[0] if name == place else name), {**one[1], **mine}
            else:
                others.append(one)
        found = [*others, (name, mine)] if mine else others
    return [SurveyedCapture(place, tuple(mine.values())) for place, mine in found]


def _recorders(files: dict[str, SegmentFile]) -> set[str]:
    return {file.segment[0] for file in files.values()}


def read_statements(
    partition: InputPartition, schema: pa.Schema, options: Options
) -> Iterator[pa.RecordBatch]:
    """Yield the statements of one partition, in the columns of `schema`.

    Raises CaptureError for a capture that cannot be read, where `mode` is FAILFAST; else each check states
    that the recording does not tell.
    """
    import pyarrow as pa

    if isinstance(partition, CheckPartition):
        rows = list(_rows(partition, options))
        yield pa.RecordBatch.from_arrays(
            [pa.array([row[field.name] for row in rows], field.type) for field in schema], schema=schema
        )


def table_of(options: Options, schema: pa.Schema) -> pa.Table:
    """Return all statements on captures, made in this process."""
    import pyarrow as pa

    batches = [batch for one in plan_checks(options) for batch in read_statements(one, schema, options)]
    return pa.Table.from_batches(batches, schema).combine_chunks()


def _rows(partition: CheckPartition, options: Options) -> Iterator[Row]:
    opened = {one.place: RecordingReader(one.files) for one in partition.captures}

    def reader(place: Path | str, lost: Tell | None) -> CaptureReader:
        return opened[str(place)]

    try:
        statements = check_captures(opened, partition.checks, opened=reader)
    except CaptureError as error:
        if options.mode == "FAILFAST":
            raise
        text = f"the recording does not tell: {error}"
        statements = [Statement(name, CANNOT_SAY, text) for name in partition.checks]
    yield from (_row(statement, opened) for statement in statements)


def _row(statement: Statement, opened: dict[str, RecordingReader]) -> Row:
    frames = [_frame(proof, opened[proof.capture]) for proof in statement.frames]
    return {
        "capture": frames[0]["capture"] if frames else _only(list(map(_text, opened))),
        "recorder": frames[0]["recorder"]
        if frames
        else _only([recorder for one in opened.values() for recorder in one.recorders.values()]),
        "t_ns": frames[0]["t_ns"] if frames else None,
        "check": statement.check,
        "verdict": statement.verdict,
        "sentence": _text(statement.sentence),
        "clients": list(map(_text, statement.clients)),
        "rules": list(statement.rules),
        "frames": frames,
    }


def _frame(proof: ProofFrame, recording: RecordingReader) -> Row:
    run, _, number = proof.connection.rpartition(":")
    return {
        "capture": _text(proof.capture),
        "connection": proof.connection,
        "recorder": recording.recorders[int(run or 1)],
        "conn_id": int(number),
        "dir": _DIRECTIONS[proof.direction],
        "ordinal": proof.ordinal,
        "t_ns": recording.began + proof.t,
        "text": proof.text,
        "rule": proof.rule or None,
    }


def _text(text: str) -> str:
    """Return a text without surrogates, which JSON of a client may hold, and a column may not."""
    return text.encode(errors="replace").decode()


def _only(texts: Sequence[str]) -> str | None:
    """Return a text that is the only one."""
    return texts[0] if len(texts) == 1 else None
