"""An iteration is the same conversation under other names."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from natsproxy.protocol.identifiers import is_nuid
from natsproxy.replay.client_playback.batches import PlainBatch, batches
from natsproxy.replay.client_playback.iterations import Iteration
from natsproxy.replay.client_playback.replay_job import ReplayJob, ReplayOptions
from natsproxy.replay.conversation.steps import Step
from tests.replay.kit import PROGRAMS, nats_server, record_program
from tests.replay.scripted import Line, hello, write

A, B = b"YsWepi49b8wudIgA6wZ1I0", b"ve7W1VgogpWgdqn9EOcG89"
API = b'{"type":"io.nats.jetstream.api.v1.consumer_create_response","name":"%b"}' % B
LINES: list[Line] = [
    *hello(1, "a"),
    (1, ">", b"SUB _INBOX.%b.* 1\r\n" % A),
    (1, ">", b"PUB $JS.API.CONSUMER.CREATE.S.%b _INBOX.%b.t1 2\r\n{}\r\n" % (B, A)),
    (1, "<", b"MSG _INBOX.%b.t1 1 %d\r\n%b\r\n" % (A, len(API), API)),
    (1, ">", b"PUB $O.b.C.%b 22\r\n%b\r\n" % (B, B)),
    (1, ">", b"HPUB s 51 51\r\nNATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n\r\n" % A[:22]),
    (1, ">", b"PUB orders.new 1\r\nx\r\n"),
]


def renamed_bytes(path: Path, iteration: int) -> list[bytes]:
    return [
        batch.frame.raw if isinstance(batch, Step) else batch.data
        for batch in Iteration(iteration).batches(batches(path))
        if isinstance(batch, Step | PlainBatch)
    ]


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    lines = [(conn, kind, data.replace(b"51 51", b"%d %d" % ((49,) * 2))) for conn, kind, data in LINES]
    return write(tmp_path / "x.ncap", lines)


def test_the_first_iteration_is_the_recording(capture: Path) -> None:
    assert b"".join(renamed_bytes(capture, 0)) == b"".join(
        batch.frame.raw if isinstance(batch, Step) else batch.data
        for batch in batches(capture)
        if isinstance(batch, Step | PlainBatch)
    )


def test_names_change_as_whole_tokens_and_everywhere_alike(capture: Path) -> None:
    iteration = Iteration(1)
    a, b = iteration.subject(A), iteration.subject(B)
    assert len({A, B, a, b}) == 4
    assert is_nuid(a)
    assert is_nuid(b)
    renamed = renamed_bytes(capture, 1)[4:]
    answer = API.replace(B, b)
    assert renamed == [
        b"SUB _INBOX.%b.* 1\r\n" % a,
        b"PUB $JS.API.CONSUMER.CREATE.S.%b _INBOX.%b.t1 2\r\n{}\r\n" % (b, a),
        b"MSG _INBOX.%b.t1 1 %d\r\n%b\r\n" % (a, len(answer), answer),
        b"PUB $O.b.C.%b 22\r\n%b\r\n" % (b, B),  # an application's payload stays
        b"HPUB s 49 49\r\nNATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n\r\n" % a,
        b"PUB orders.new 1\r\nx\r\n",
    ]


def test_each_iteration_has_names_of_its_own() -> None:
    assert len({Iteration(n).subject(b"_INBOX." + A) for n in range(4)}) == 4
    assert len({Iteration(3).subject(b"_INBOX.%d" % n) for n in range(1000)}) == 1000
    assert Iteration(3).subject(b"_INBOX.>") == b"_INBOX.>"
    assert Iteration(3).subject(b"orders.OrderProcessorServiceXY.1") == b"orders.OrderProcessorServiceXY.1"
    assert Iteration(3).subject(A + b"0a1f").endswith(b"0a1f")
    assert Iteration(3).subject(b"oc_%b_2" % A) == b"oc_%b_2" % Iteration(3).subject(A)


@pytest.mark.server
async def test_a_program_is_played_twice_in_a_row(tmp_path: Path) -> None:
    capture = tmp_path / "x.ncap"
    await record_program(PROGRAMS / "requests.py", capture)
    async with nats_server() as server:
        played = ReplayJob(capture, ReplayOptions(speed=None, iterations=2))
        with trio.fail_after(60):
            await played.run(server)
    assert [str(missing) for missing in played.missing] == []
    assert played.facts()["connections"] == 4
