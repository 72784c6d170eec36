"""Timers are read from the traffic; delays and patience follow from them."""

from __future__ import annotations

import json

import pytest

from natsproxy.capture.format.connection import ConnectionId
from natsproxy.sweep.timers import CLIENTS, LEAST, LONGEST, SHORT, UNKNOWN, Timers, timers_of
from natsproxy.sweep.traffic import Arrived, RunTraffic
from natsproxy.wire import encode
from natsproxy.wire.ops import C2S, S2C, Direction
from natsproxy.wire.parse import frames

CONN = ConnectionId(b"r", 1, 1)
SECOND = 1_000_000_000
Line = tuple[float, Direction, bytes]


def run(*lines: Line) -> RunTraffic:
    """Return a run of one connection: each frame with its time in seconds and its direction."""
    found = [
        Arrived(CONN, "#1", direction, round(at * SECOND), number, frame)
        for number, (at, direction, data) in enumerate(lines)
        for frame in frames(data, direction)
    ]
    return RunTraffic(found, {}, {})


def test_a_pull_shows_its_expiry_and_its_heartbeat() -> None:
    body = json.dumps({"batch": 1, "expires": 3 * SECOND, "idle_heartbeat": SECOND // 2}).encode()
    found = timers_of(run((0, C2S, encode.pub(b"$JS.API.CONSUMER.MSG.NEXT.S.c", body, reply=b"_INBOX.a"))))
    assert found == Timers(pull=3.0, heartbeat=0.5)


@pytest.mark.parametrize(("policy", "wait"), [("explicit", 4.0), ("none", 0.0)])
def test_a_consumer_shows_its_ack_wait_in_the_call_and_in_the_answer(policy: str, wait: float) -> None:
    config = {"ack_policy": policy, "ack_wait": 4 * SECOND, "idle_heartbeat": 2 * SECOND}
    body = json.dumps({"config": config}).encode()
    call = encode.pub(b"$JS.API.CONSUMER.CREATE.S.c", b"{}", reply=b"_INBOX.a")
    asked = encode.pub(b"$JS.API.CONSUMER.CREATE.S.c", body, reply=b"_INBOX.a")
    answer = encode.msg(b"_INBOX.a", b"1", body)
    wanted = Timers(ack_wait=wait, heartbeat=2.0)
    assert timers_of(run((0, C2S, asked))) == wanted
    assert timers_of(run((0, C2S, call), (1, S2C, answer))) == wanted
    assert timers_of(run((1, S2C, answer))) == UNKNOWN  # nobody has asked for it


def test_a_request_without_an_answer_shows_the_patience_of_its_client() -> None:
    asks = (0.0, C2S, encode.pub(b"time.now", reply=b"_INBOX.a"))
    answer = (0.5, S2C, encode.msg(b"_INBOX.a", b"1"))
    after = (2.5, C2S, encode.pub(b"next"))
    assert timers_of(run(asks, after)).request == 2.5
    assert timers_of(run(asks, answer, after)).request == 0.0
    assert timers_of(run(asks, (1.0, C2S, encode.PONG), after)).request == 2.5


def test_the_library_of_a_client_brings_its_defaults() -> None:
    def of(lang: str) -> Timers:
        return timers_of(run((0, C2S, encode.connect(json.dumps({"lang": lang}).encode()))))

    assert of("python3") == Timers(request=0.5, api=5, ping=360, drain=30)
    assert of("rust").ping == 180
    assert of("brainfuck") == Timers(request=1, api=5, ping=360, drain=30)
    assert {client.outstanding for client in CLIENTS.values()} == {2}


def test_regular_pings_show_the_interval() -> None:
    pings = [(float(at), C2S, encode.PING) for at in (0, 1, 2, 3)]
    assert timers_of(run(*pings)).ping == 3.0
    flushes = [(at, C2S, encode.PING) for at in (0.0, 1.0, 1.1, 3.0)]
    assert timers_of(run(*flushes)).ping == 0.0


def test_late_begins_short_and_has_a_limit() -> None:
    assert UNKNOWN.late == [SHORT]
    assert Timers(request=1.0, api=5.0, pull=2.0, ack_wait=30.0).late == [SHORT, 1.2, 2.5, 6.2]
    assert all(SHORT <= delay <= LONGEST for delay in Timers(*[40.0] * 7).late)
    assert Timers(request=2.0, heartbeat=1.0).late_at("heartbeat") == [SHORT, 3.0]


def test_patience_is_longer_than_what_a_program_waits_for_itself() -> None:
    assert UNKNOWN.patience(0.1) == LEAST
    assert UNKNOWN.patience(5.0) == 50.0
    assert Timers(ack_wait=30.0).patience(1.0) == 38.5
    assert Timers(heartbeat=15.0).patience(1.0) == pytest.approx(57.25)
    assert Timers(ping=360.0).patience(1.0) == LEAST
    assert Timers(ping=360.0).patience(1.0, silent=True) == 451.0
