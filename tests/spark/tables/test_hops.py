"""Two recording proxies in a row: requests pair within each, and `hops` joins the two."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nats
import pytest

from natsproxy.capture.read.reader import open_capture
from natsproxy.testing import TestProxy
from tests.kit.clients import settle
from tests.kit.servers import NatsServer
from tests.spark.conftest import load
from tests.spark.hop_captures import (
    AHEAD,
    FAR_AHEAD,
    LATER_AHEAD,
    MS,
    TOOK,
    USES,
    in_a_row,
    restarted,
    skewed,
    strangers,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
Row = dict[str, Any]
REQUESTS = 100


def tables(spark: SparkSession, captures: list[Path], *names: str) -> dict[str, list[Row]]:
    """Return the rows of some tables of captures."""
    from natsproxy.spark.tables import derive

    frames, items = load(spark, captures)
    return {name: derive(name, frames, items).toArrow().to_pylist() for name in names}


def recorder(path: Path) -> str:
    """Return the id of the recorder of a capture."""
    return next(open_capture(path).segments()).recorder.hex()


async def ask(url: str) -> None:
    """A client asks a service, both through the same proxy."""

    async def answer(message: Any) -> None:
        await message.respond(b"42")

    service, client = [await nats.connect(url, name=name) for name in ("service", "client")]
    try:
        await service.subscribe("svc", cb=answer)
        await settle(service)
        for _ in range(REQUESTS):
            await client.request("svc", b"?", timeout=10)
    finally:
        await client.close()
        await service.close()


@pytest.mark.long
@pytest.mark.server
def test_a_sidecar_and_a_gateway(spark: SparkSession, tmp_path: Path) -> None:
    """Every request is answered in either recording; every frame between the two is there once."""
    near, far = tmp_path / "sidecar.ncap", tmp_path / "gateway.ncap"
    with (
        NatsServer() as server,
        TestProxy(server.url, record=far) as gateway,
        TestProxy(gateway.url, record=near) as sidecar,
    ):
        asyncio.run(ask(sidecar.url))
    found = tables(spark, [near, far], "requests", "hops")
    ids = recorder(near), recorder(far)
    assert Counter((row["recorder"], row["outcome"]) for row in found["requests"]) == {
        (one, "replied"): REQUESTS for one in ids
    }
    assert all(row["t1"] <= row["t2"] <= row["t3"] <= row["t4"] for row in found["requests"])
    hops = found["hops"]
    assert {(row["recorder"], row["next_recorder"]) for row in hops} == {ids}
    messages = Counter((row["dir"], row["op"], row["subject"] == "svc") for row in hops if row["subject"])
    asked, answered = (messages[0, "PUB", svc] for svc in (True, False))
    heard, got = (messages[1, "MSG", svc] for svc in (True, False))
    assert (asked, answered, heard, got) == (REQUESTS,) * 4
    assert {row["latency_ns"] >= 0 for row in hops} == {True}


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[Row]]:
    """Return the rows of all captures that are made by hand, by the names of the two."""
    folder = tmp_path_factory.mktemp("hops")
    captures = [path for make in (in_a_row, strangers, skewed, restarted) for path in make(folder)]
    names = {recorder(path): path.stem for path in captures}
    found: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in tables(spark, captures, "hops")["hops"]:
        found[names[row["recorder"]], names[row["next_recorder"]]].append(row)
    return found


def chosen(rows: list[Row], *names: str) -> list[tuple[Any, ...]]:
    """Return some columns of rows, sorted."""
    return sorted(tuple(row[name] for name in names) for row in rows)


@pytest.mark.long
def test_clocks_and_addresses(made: dict[tuple[str, str], list[Row]]) -> None:
    """The difference of the clocks is found for each hour; the client of another machine is not the proxy."""
    names = ("conn_id", "next_conn_id", "dir", "ordinal", "op", "subject", "size", "clock_ns", "latency_ns")
    rows = chosen(made["near", "far"], *names)
    secret = rows.pop(2)
    assert (secret[:5], secret[7:]) == ((1, 5, 0, 2, "PUB"), (AHEAD, TOOK))
    assert rows == [
        (1, 5, 0, 0, "PUB", "a.0", 1, AHEAD, TOOK),
        (1, 5, 0, 1, "PUB", "a.1", 1, AHEAD, 3 * MS),
        (1, 5, 1, 0, "INFO", None, 0, AHEAD, TOOK),
        (7, 7, 0, 0, "PUB", "a", 1, LATER_AHEAD, TOOK),
        (7, 7, 1, 0, "INFO", None, 0, LATER_AHEAD, TOOK),
    ]


@pytest.mark.long
def test_strangers_at_one_address(made: dict[tuple[str, str], list[Row]]) -> None:
    """What differs in one frame is not one connection, nor is what began more than five minutes apart."""
    assert set(made) == {
        ("near", "far"),
        ("near_ahead", "far_ahead"),
        ("near_behind", "far_behind"),
        ("near1", "far1"),
        ("near2", "far1"),
        ("near2", "far2"),
    }


@pytest.mark.long
def test_clocks_far_apart(made: dict[tuple[str, str], list[Row]]) -> None:
    """Of connections with one address and the same frames, those are one that began together."""
    names = ("conn_id", "next_conn_id", "dir", "ordinal", "clock_ns", "latency_ns")
    for way, ahead in (("ahead", FAR_AHEAD), ("behind", -FAR_AHEAD)):
        assert chosen(made[f"near_{way}", f"far_{way}"], *names) == [
            (use, use, dir_, 0, ahead, TOOK) for use in range(1, USES + 1) for dir_ in (0, 1)
        ]


@pytest.mark.long
def test_recordings_that_begin_again(made: dict[tuple[str, str], list[Row]]) -> None:
    """Each frame that two of the recordings have is there once."""
    names = ("conn_id", "next_conn_id", "ordinal", "latency_ns", "clock_ns")
    found = {pair: chosen(rows, *names) for pair, rows in made.items() if pair[0] in ("near1", "near2")}
    assert found == {
        ("near1", "far1"): [(1, 5, number, TOOK, None) for number in (0, 1)],
        ("near2", "far1"): [*((1, 5, number, TOOK, None) for number in (2, 3)), (2, 6, 0, TOOK, None)],
        ("near2", "far2"): [*((1, 5, number, TOOK, None) for number in (4, 5)), (2, 6, 1, TOOK, None)],
    }
