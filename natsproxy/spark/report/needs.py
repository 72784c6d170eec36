"""The section "Who needs what": the subjects that each client used, generalised, and its block.

A client is a user here; one without a user goes by its name, as `natsproxy permissions` has it.  Blocks are
made by the Python code of that command, so the rows of a client are fetched all or not at all: those of the
clients with most frames, as many as fit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from natsproxy.permissions import rows as stored
from natsproxy.permissions.formats import UNNAMED, distinct_text, server_text
from natsproxy.permissions.needs import ClientNeeds, needs_of_rows
from natsproxy.permissions.rows import RESPOND
from natsproxy.permissions.templates import Evidence
from natsproxy.permissions.uses import By
from natsproxy.printable import printable
from natsproxy.spark.report.groups import TEXT, TOP, Row, rows
from natsproxy.spark.report.tables import Axis, Tables

ROWS: Final = 2_000
"""The rows of the table that are fetched."""
LETTERS: Final = 20_000
"""The characters of a block up to which the page has it."""
_LABEL: Final = "coalesce(user, name, '')"
"""SQL for `Client.label` by user; the table has NULL for what is not known."""


def permissions(table: DataFrame, axis: Axis, tables: Tables) -> dict[str, Any]:
    """Return the lines of clients with their evidence, and a block for each; those with most frames first."""
    labelled = table.withColumn("label", F.expr(_LABEL))
    counts = labelled.groupBy("label").agg(F.count("*").alias("rows"), F.sum("frames").alias("frames"))
    summed = counts.agg(F.count("*").alias("clients"), F.sum("rows").alias("rows"))
    whole = rows(summed)[0]
    if not whole["clients"]:
        return {}
    listed = rows(counts.orderBy(F.desc("frames"), "label").limit(TOP))
    wanted = fitting({row["label"]: row["rows"] for row in listed})
    found = labelled.where(F.col("label").isin(wanted)).select(*stored.PermissionRow._fields)
    return {
        "clients": whole["clients"],
        **section([stored.PermissionRow(**row) for row in rows(found)], axis),
    }


def fitting(sizes: dict[str, int]) -> list[str]:
    """Return the labels whose rows are fetched, `ROWS` at most together; sizes: rows by label, in order."""
    left, wanted = ROWS, []
    for label, size in sizes.items():
        if size <= left:
            left -= size
            wanted.append(label)
    return wanted


def section(found: Iterable[stored.PermissionRow], axis: Axis) -> dict[str, Any]:
    """Return what the page shows of all rows of some clients."""
    needs = needs_of_rows(found)
    needs.sort(key=lambda one: (-_frames(one), one.label))
    return {
        "listed": [line for need in needs for line in _lines(need, axis)],
        "blocks": [_block(need) for need in needs],
    }


def _frames(need: ClientNeeds) -> int:
    answers = need.responses.evidence.frames if need.responses else 0
    return sum(one.frames for one in need.lines.values()) + answers


def _name(need: ClientNeeds) -> str:
    return printable(need.label or UNNAMED)[:TEXT]


def _lines(need: ClientNeeds, axis: Axis) -> list[Row]:
    lines = [
        _line(need, str(place.verb), place.subject, place.queue, one, axis)
        for place, one in need.lines.items()
    ]
    if need.responses is not None:
        lines.append(_line(need, RESPOND, b"", b"", need.responses.evidence, axis))
    return lines


def _line(need: ClientNeeds, verb: str, subject: bytes, queue: bytes, evidence: Evidence, axis: Axis) -> Row:
    return {
        "name": _name(need),
        "allowed": verb,
        "template": _text(subject),
        "queue": _text(queue),
        "frames": evidence.frames,
        "denied": evidence.denied,
        "values": distinct_text(evidence),
        "first": axis.ms(evidence.first),
        "last": axis.ms(evidence.last),
    }


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")[:TEXT]


def _block(need: ClientNeeds) -> Row:
    """Return the block of a client; without its text where that is long."""
    text = server_text([need], By.USER)
    return {
        "name": _name(need),
        "frames": _frames(need),
        "lines": len(need.lines),
        "text": text if len(text) <= LETTERS else None,
    }
