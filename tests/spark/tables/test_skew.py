"""One hot subject, connection, inbox: messages are combined before anything is shuffled, and never sorted."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.conftest import Known

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
EACH, TASKS = 4_000, 4
PULL = "$JS.API.CONSUMER.MSG.NEXT.S.C"
KINDS = (
    (PULL, "PUB", "inbox"),
    ("inbox", "HMSG", None),
    ("svc", "PUB", "shared"),
    ("shared", "MSG", None),
    ("hot", "PUB", None),
    ("hot", "MSG", None),
)
"""The six kinds of frames, as many of each: subject, op, reply.  All are of one connection."""


@pytest.fixture(scope="module")
def hot(spark: SparkSession) -> DataFrame:
    """Frames that one connection says and hears in turn, read by `TASKS` tasks."""
    from natsproxy.spark.schema import FRAMES

    subject, op, reply = (
        f"elt(int(id % 6) + 1, {', '.join(repr(text) if text else 'NULL' for text in texts)})"
        for texts in zip(*KINDS, strict=True)
    )
    known = {
        "recorder": "'r'",
        "segment": "0",
        "block_off": "0",
        "idx": "id",
        "t_ns": "1767225600000000000 + id * 1000",
        "ts": "timestamp_micros(1767225600000000 + id)",
        "conn_id": "1",
        "dir": "id % 2",
        "op": op,
        "in_ordinal": "id DIV 2",
        "out_ordinal": "id DIV 2",
        "subject": subject,
        "template": subject,
        "reply": reply,
        "size": "4",
        "header_size": "0",
        "status": "if(id % 6 = 1, 404, NULL)",
        "js_verb": "if(id % 6 = 0, 'CONSUMER.MSG.NEXT', NULL)",
        "delay_ns": "0",
        "flags": "0",
    }
    fields = [part.split() for part in FRAMES.split(", ")]
    rows = spark.range(0, EACH * len(KINDS), 1, TASKS)
    return rows.selectExpr(*(f"CAST({known.get(name, 'NULL')} AS {kind}) AS {name}" for name, kind in fields))


def nodes(table: DataFrame) -> list[Any]:
    """Return the nodes of a table's physical plan."""
    found, todo = [], [table._jdf.queryExecution().executedPlan()]
    while todo:
        node = todo.pop()
        found.append(node)
        children = node.children()
        todo += [children.apply(place) for place in range(children.size())]
    return found


def shuffled(table: DataFrame) -> int:
    """Return the most records that a shuffle of a table's last run has written."""
    metrics = [node.metrics().get("shuffleRecordsWritten") for node in nodes(table)]
    most: int = max(metric.get().value() for metric in metrics if metric.isDefined())
    return most


@pytest.mark.long
def test_aggregations_are_partial_first(known: Known) -> None:
    """In hash tables, before the shuffle; no aggregation of frames sorts them."""
    from natsproxy.spark.tables import derive

    for name in ("requests", "js_acks", "subjects", "fanout"):
        text = str(derive(name, known.frames)._jdf.queryExecution().executedPlan())
        assert "SortAggregate" not in text, name
        assert re.search(r"HashAggregate\(keys=\[[^]]*\], functions=\[partial_", text), name


@pytest.mark.long
def test_a_hot_key_is_one_row_per_task(hot: DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pulls on one inbox and requests that share a reply subject are one row each; little is shuffled."""
    from natsproxy.spark.tables import derive

    monkeypatch.setattr("natsproxy.spark.tables.pairing.TURNS_MAX", EACH - 1)
    requests = derive("requests", hot)
    assert {
        (row.reply, row.outcome, row.status, row.requests, row.replies, row.latency_ns)
        for row in requests.collect()
    } == {("inbox", "pull", 404, EACH, EACH, None), ("shared", "replied", None, EACH, EACH, None)}
    subjects = derive("subjects", hot)
    assert {(row.template, row.dir): row.messages for row in subjects.collect()} == {
        (subject, int(op != "PUB")): EACH for subject, op, _ in KINDS
    }
    fanout = derive("fanout", hot)
    assert [(row.published, row.deliveries) for row in fanout.collect() if row.subject == "hot"] == [
        (EACH, EACH)
    ]
    for table in (requests, subjects, fanout):
        assert 0 < shuffled(table) <= TASKS * 2 * len(KINDS)
