"""A capture's clients played to a capture's server: both replays at once, observed, with no server at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from natsproxy.addresses import Address
from natsproxy.capture.format.connection import ConnectionChoice
from natsproxy.errors import ConfigError
from natsproxy.replay.client_playback.replay_job import ReplayJob, ReplayOptions
from natsproxy.replay.diff.compare import compare
from natsproxy.replay.observe import observe
from tests.replay.big import big
from tests.replay.kit import cassette
from tests.replay.scripted import hello, write


@pytest.mark.long
@pytest.mark.parametrize("speed", [None, 10.0])
async def test_both_replays_of_a_capture_agree(speed: float | None, tmp_path: Path) -> None:
    capture, observed = big(tmp_path / "x.ncap", 4000, asks=4), tmp_path / "o.ncap"
    with trio.fail_after(30):
        async with cassette(capture) as server:
            played = ReplayJob(capture, ReplayOptions(speed=speed), observed)
            await played.run(server.address)
            await server.finished(10)
    assert [str(missing) for missing in played.missing] == []
    facts = played.facts()
    assert (facts["connections"], facts["missing"]) == (6, 0)
    report = compare(capture, observed)
    assert [(row.group, row.sample) for row in report.rows if not row.same] == []
    assert facts["frames"] == sum(row.recorded.sent + row.recorded.subscribed for row in report.rows)


async def test_only_the_chosen_connections_are_played(tmp_path: Path) -> None:
    lines = [
        *hello(1, "a"),
        *hello(2, "b"),
        (1, ">", b"PUB a 0\r\n\r\n"),
        (2, ">", b"PUB b 0\r\n\r\n"),
    ]
    capture = write(tmp_path / "x.ncap", lines)
    with trio.fail_after(30):
        async with cassette(capture) as server:
            played = ReplayJob(capture, ReplayOptions(speed=None, connections=ConnectionChoice.of(2)))
            await played.run(server.address)
            while server.connected:
                await trio.lowlevel.checkpoint()
            assert [exchange.frame.subject for exchange in server.unused()] == [b"a"]
    assert (played.facts()["connections"], played.facts()["frames"]) == (1, 1)


async def test_an_address_that_cannot_be_listened_on_is_reported(tmp_path: Path) -> None:
    async with cassette(write(tmp_path / "x.ncap", hello(1, "a"))) as server:
        with pytest.RaisesGroup(
            pytest.RaisesExc(ConfigError, match="cannot listen on"), flatten_subgroups=True
        ):
            async with observe(tmp_path / "o.ncap", Address("127.0.0.1", 1), server.address):
                pass
