"""The table `permissions`: the same blocks from it as from the captures."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from natsproxy.cli import main
from natsproxy.errors import NatsproxyError
from natsproxy.permissions.formats import FORMATS
from natsproxy.permissions.needs import needs_of, needs_of_rows
from natsproxy.permissions.rows import FOLDED, PermissionRow
from natsproxy.permissions.templates import COUNTED
from natsproxy.permissions.uses import By
from tests.kit.documents import ROOT
from tests.permissions.kit import NUID, UUID, Sent, connect, items, msg, pub, segments, sub
from tests.spark.conftest import load
from tests.spark.generated_traffic import Conversation, record
from tests.spark.hop_captures import in_a_row, restarted
from tests.spark.odd_captures import skewed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
CLIENTS = 30
FLOW = b'{"config":{"flow_control":true}}'
_ROW = PermissionRow(
    "ann", None, None, "go", "publish", None, "a.*", "02", 3, 0, 1, 2, False, [None, ["1"]], None, None
)
DENIED = b"-ERR 'Permissions Violation for Publish to \"%b\"'\r\n"
TRACED = b"NATS/1.0\r\nNats-Trace-Dest: r.%d\r\n\r\n"


def _frame(random: Random) -> Sent:
    """Return any frame that matters for permissions, of few different subjects."""
    token = random.choice((b"a", b"b", b"id-7", NUID, UUID, b"%d" % random.randrange(9)))
    other = random.choice((token, b"x", b"%d" % random.randrange(3)))
    stream = random.choice((b"S", b"T"))
    inbox = b"r.%d" % random.randrange(4)
    traced = TRACED % random.randrange(4)
    return random.choice(
        (
            pub(b"o.%b.%b" % (token, other)),
            pub(
                b"$JS.API.CONSUMER.CREATE.%b.%b.o.%b" % (stream, token, other),
                b"",
                random.choice((FLOW, b"{}")),
            ),
            pub(b"$JS.ACK.%b.%b.1.2.3.4.5" % (stream, token)),
            pub(b"$KV.%b.%b" % (stream, token)),
            pub(inbox),
            pub(inbox),
            (">", b"HPUB o.t %d %d\r\n%b\r\n" % (len(traced), len(traced), traced)),
            msg(b"ask", inbox),
            msg(b"ask", inbox),
            sub(b"o.%b.>" % token, random.choice((b"", b"crew", b"crew.%b" % NUID))),
            ("<", DENIED % b"o.%b.%b" % (token, other)),
        )
    )


def _traffic(random: Random) -> Iterable[tuple[int, Sent]]:
    """Yield the frames of clients beside each other, and those of one that used many values."""
    for conn in range(1, CLIENTS + 1):
        yield conn, connect(f"client{conn % (CLIENTS - 5)}", lang=random.choice(("go", "python3")))
    for conn in random.choices(range(1, CLIENTS + 1), k=1_500):
        yield conn, _frame(random)
    yield 98, connect("silent")
    yield 99, connect("many")
    for number in range(max(COUNTED, FOLDED) + 5):
        yield 99, pub(b"o.%d.x" % (number % COUNTED))
        yield 99, pub(b"p.%d.x" % number)
    for number in range(FOLDED):
        yield 99, pub(b"q.%d.%d" % (number, number // (FOLDED - 1)))


def _check_blocks(rows: list[PermissionRow], captures: list[Path]) -> None:
    """Compare all formats, by all labels, with rows in any order."""
    Random(0).shuffle(rows)
    for by in By:
        ours, theirs = needs_of_rows(rows, by), needs_of(captures, by, lost=lambda text: None)
        for write in FORMATS.values():
            assert write(ours, by, None) == write(theirs, by, None)


def _rows(table: Any) -> list[PermissionRow]:
    return [PermissionRow(**row) for row in table.toArrow().to_pylist()]


@pytest.mark.long
def test_the_blocks_are_those_of_the_captures(spark: SparkSession, tmp_path: Path) -> None:
    """Of random traffic in segments, the golden captures, proxies in a row, and one that restarted."""
    from natsproxy.spark.tables import derive

    captures = [
        *segments(tmp_path / "random", items(list(_traffic(Random(7)))), 700),
        *sorted((ROOT / "recordings").glob("*.ncap")),
        record(tmp_path / "conversation.ncap", Conversation(100), block=20_000),
        *in_a_row(tmp_path),
        *restarted(tmp_path),
        skewed(tmp_path / "skewed.ncap"),
    ]
    rows = _rows(derive("permissions", *load(spark, captures)))
    many = [row for row in rows if row.name == "many" and row.verb]
    assert sorted(row.template or "" for row in many) == ["o.*.x", "p.*.x", "q.*.0", "q.*.1"]
    assert max(len(values or ()) for row in many for values in row.values or ()) == COUNTED
    assert {row.verb for row in rows} == {"publish", "subscribe", "respond", None}
    _check_blocks(rows, captures)


def test_a_stored_table_is_read_without_spark(tmp_path: Path) -> None:
    """Of an analysis, and of a watch; one that is not listed is none."""
    import pyarrow as pa

    from natsproxy.spark.storage import local
    from natsproxy.spark.storage.permission_rows import read_rows

    row = _ROW
    (tmp_path / "permissions").mkdir()
    local.write_table(pa.Table.from_pylist([row._asdict()]), str(tmp_path / "permissions" / "as_of=1"))
    with pytest.raises(NatsproxyError, match="no complete table permissions"):
        list(read_rows(tmp_path))
    local.write_list([{"table": "permissions", "written": "batch"}], str(tmp_path / "analysis"))
    assert list(read_rows(tmp_path)) == [row]
    _list_of_a_watch(tmp_path, rows=1, touched=1)
    assert list(read_rows(tmp_path)) == [row]


def _list_of_a_watch(folder: Path, *, rows: int, touched: int) -> None:
    """Write the list of a watch that wrote its table at version 1, and got the last rows at another."""
    from natsproxy.spark.storage import local
    from natsproxy.spark.storage.watch_state import WatchState, WholeTable

    place = "permissions/as_of=1"
    state = WatchState(touched=touched, whole_tables={"permissions": WholeTable(place, rows, 1)})
    listed = {"written": "stream", "version": 2}
    lines = [
        {"table": "permissions", "places": [place], **listed},
        {"table": "analysis", "state": state.to_json(), **listed},
    ]
    local.write_list(lines, str(folder / "analysis"))


def test_a_table_that_is_behind_its_watch_says_so(tmp_path: Path) -> None:
    """One without rows is refused: an empty block looks as if nobody needed anything."""
    import pyarrow as pa

    from natsproxy.spark.schema import TABLES
    from natsproxy.spark.storage import local
    from natsproxy.spark.storage.parquet import no_rows

    (tmp_path / "permissions").mkdir()
    local.write_table(
        pa.Table.from_pylist([_ROW._asdict()], no_rows(TABLES["permissions"]).schema),
        str(tmp_path / "permissions" / "as_of=1"),
    )
    run = partial(CliRunner().invoke, main, ["permissions", "--tables", str(tmp_path)])

    _list_of_a_watch(tmp_path, rows=1, touched=1)
    assert (run().exit_code, run().stderr) == (0, "")
    _list_of_a_watch(tmp_path, rows=1, touched=2)
    behind = run()
    assert (behind.exit_code, '"a.*"  # 3 frames' in behind.stdout) == (0, True)
    assert "frames that came after it wrote the table permissions" in behind.stderr
    for touched in (1, 2):
        _list_of_a_watch(tmp_path, rows=0, touched=touched)
        refused = run()
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert "has not yet written rows into the table permissions" in refused.stderr
