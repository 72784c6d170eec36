"""The data of the report, computed from the tables; `SECTIONS` lists its sections.

Spark does all aggregation; the results are small whatever the captures' size (top N rows, at most `BUCKETS`
steps of time).  A section whose table is missing or empty gives the reason in one sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from natsproxy.errors import NatsproxyError
from natsproxy.spark.report import (
    checks,
    connections,
    errors,
    exchanges,
    faults,
    jetstream,
    needs,
    overview,
    senders,
    traffic,
)
from natsproxy.spark.report.findings import findings
from natsproxy.spark.report.groups import TEXT, TOP
from natsproxy.spark.report.tables import Axis, Tables, axis, short

_AT_ONCE: Final = 4
"""The sections that are computed at the same time: planning a small query takes longer than running it."""

_RECORDERS: Final = 12
"""The recorders that the page offers, those with most frames: every row has the counts of each."""


@dataclass(frozen=True)
class ReportSection:
    """A section of the page.

    name: its key in the data.  table: the one that `ask` queries.  empty: the sentence shown without rows.
    missing: one more where the table was not written.
    """

    name: str
    table: str
    ask: Callable[[DataFrame, Axis, Tables], Any]
    empty: str
    missing: str = ""


SECTIONS: Final = (
    ReportSection("traffic", "frames", traffic.traffic, "No frame was recorded."),
    ReportSection(
        "templates", "frames", traffic.templates, "No message was recorded: nobody published anything."
    ),
    ReportSection("senders", "frames", senders.senders, "No message was recorded: nobody sent anything."),
    ReportSection("fanout", "fanout", traffic.fanout, "No message reached the server."),
    ReportSection(
        "latency",
        "requests",
        exchanges.latency,
        "No request was recorded: nobody published with a reply subject.",
    ),
    ReportSection("slowest", "requests", exchanges.slowest, "No request that was answered was recorded."),
    ReportSection(
        "deliveries",
        "js_acks",
        jetstream.deliveries,
        "No JetStream delivery that wants an answer was recorded.",
    ),
    ReportSection(
        "publishes",
        "pub_acks",
        jetstream.publishes,
        "No JetStream publish that wants an acknowledgement was recorded.",
    ),
    ReportSection("js_api", "js_api", jetstream.api, "No JetStream API call was recorded."),
    ReportSection(
        "checks",
        "findings",
        checks.checks,
        "No check found anything wrong, and none lacked frames to judge by.",
    ),
    ReportSection("errors", "errors", errors.errors, "No client got an error (-ERR)."),
    ReportSection("faults", "faults", faults.faults, "No rule fired: the traffic passed as it was."),
    ReportSection(
        "connections",
        "connections",
        connections.connections,
        "No connection opened or closed while recording.",
    ),
    ReportSection(
        "subscriptions", "subscriptions", connections.subscriptions, "No subscription was recorded."
    ),
    ReportSection(
        "hops", "hops", connections.hops, "No proxy passed its frames to another one that recorded them."
    ),
    ReportSection(
        "permissions",
        "permissions",
        needs.permissions,
        "No client was recorded.",
        " natsproxy analyze makes it where --tables names it.",
    ),
    ReportSection("gaps", "gaps", overview.gaps, "Nothing is missing: the recorder kept up all the time."),
)


def collect(
    spark: SparkSession,
    out: str | Path,
    captures: Sequence[str | Path] = (),
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the data of the page, as values for JSON.

    captures: their names, for the heading.  notes: warnings about them.  Raises NatsproxyError where
    `out` has no complete table of frames.
    """
    tables = Tables(spark, out)
    tables.fold()
    frames = tables.get("frames")
    if frames is None:
        raise NatsproxyError(f"{out} has no tables to report on: {tables.why['frames']}")
    totals, recorders = overview.overview(frames), overview.recorders(frames)
    known = [row["recorder"] for row in recorders if row["recorder"] is not None]
    tables.recorder_choices = known[:_RECORDERS] if len(known) > 1 else []
    first, last = totals.pop("first") or 0, totals.pop("last") or 0
    whole = axis(first, last)
    data: dict[str, Any] = {
        "captures": [Path(str(path)).name[:TEXT] for path in captures][:TOP],
        "notes": [note[:TEXT] for note in notes][:TOP],
        "recorders": recorders,
        "recorder_choices": list(map(short, tables.recorder_choices)),
        "axis": {"t0": first / 1e6, "step": whole.step / 1e6, "count": whole.count, "length": whole.ms(last)},
        "top": TOP,
        "totals": totals,
        "empty": {},
    }

    def ask(section: ReportSection) -> Any:
        table = tables.get(section.table)
        return None if table is None else section.ask(table, whole, tables)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = list(pool.map(ask, SECTIONS))
    for section, answer in zip(SECTIONS, answers, strict=True):
        data[section.name] = answer or None
        if not answer:
            why = tables.why.get(section.table)
            data["empty"][section.name] = f"{why}{section.missing}" if why else section.empty
    if totals["corrupt"] and not data["gaps"]:
        data["empty"]["gaps"] = "The recorder kept up, but parts of the capture could not be read."
    data["findings"] = findings(data)
    return data
