"""Two recording proxies in a row: requests pair within each, and `hops` joins the two."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nats
import pytest

from natsproxy.capture.read.reader import open_capture
from natsproxy.testing import TestProxy
from tests.kit.clients import settle
from tests.kit.servers import NatsServer
from tests.spark.conftest import load
from tests.spark.hop_captures import AHEAD, MS, in_a_row

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


@pytest.mark.long
def test_clocks_and_addresses(spark: SparkSession, tmp_path: Path) -> None:
    """The difference of the clocks is found, and the client of another machine is not taken for the proxy."""
    hops = tables(spark, in_a_row(tmp_path), "hops")["hops"]
    names = ("conn_id", "next_conn_id", "dir", "ordinal", "op", "subject", "size", "clock_ns", "latency_ns")
    assert sorted(tuple(row[name] for name in names) for row in hops) == [
        (1, 5, 0, 0, "PUB", "a.0", 1, AHEAD, 2 * MS),
        (1, 5, 0, 1, "PUB", "a.1", 1, AHEAD, 3 * MS),
        (1, 5, 1, 0, "INFO", None, 0, AHEAD, 2 * MS),
    ]
