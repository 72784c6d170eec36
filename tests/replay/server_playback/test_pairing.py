"""Pairing chooses the recorded connection that a live client plays."""

from __future__ import annotations

import pytest

from natsproxy.protocol.connect import Connect
from natsproxy.replay.conversation.identifier_map import IdentifierMap
from natsproxy.replay.conversation.match_options import DEFAULT, PARTS, MatchOptions
from natsproxy.replay.conversation.matching import Matcher
from natsproxy.replay.conversation.recording import Recording
from natsproxy.replay.server_playback.actions import DisconnectClient
from natsproxy.replay.server_playback.client import Client
from natsproxy.replay.server_playback.pairing import Pairing
from natsproxy.replay.server_playback.progress import Progress
from natsproxy.wire.ops import C2S
from natsproxy.wire.parse import frames
from tests.replay.scripted import MS, Line, events, hello
from tests.replay.server_playback.playing import Play

TWO: list[Line] = [
    *hello(1, "a"),
    *hello(2, "a"),
    *hello(3, "b"),
    (1, ">", b"SUB x 1\r\nPUB one 0\r\n\r\n"),
    (2, ">", b"SUB x 1\r\nPUB two 0\r\n\r\n"),
    (3, ">", b"PUB three 0\r\n\r\n"),
]


def bound(name: str, sent: bytes, lines: list[Line] = TWO) -> int | None:
    progress = Progress(Recording(events(lines)))
    progress.fill()
    client = Client(7, Connect(name=name), held=list(frames(sent, C2S)))
    Pairing(progress, Matcher(IdentifierMap()), {7: client}).bind(client)
    if client.playing is None:
        return None
    assert client.playing.client_id == 7
    return client.playing.conn.number


def test_the_name_counts_first_then_the_best_fit_then_the_earliest() -> None:
    assert bound("a", b"SUB x 4\r\n") == 1
    assert bound("a", b"SUB x 4\r\nPUB two 0\r\n\r\n") == 2
    assert bound("b", b"PUB two 0\r\n\r\n") == 3
    assert bound("a", b"PUB nothing 0\r\n\r\n") == 1


def test_an_unknown_client_name_needs_a_matching_conversation() -> None:
    assert bound("c", b"PUB three 0\r\n\r\n") == 3
    assert bound("c", b"PUB nothing 0\r\n\r\n") is None


def _workers() -> list[Line]:
    """Two clients of one name, each with a request on its own inbox."""
    lines: list[Line] = [*hello(1, "w"), *hello(2, "w")]
    for n in (1, 2):
        inbox = b"_INBOX.%s.1" % (b"%d" % n * 22)
        lines.append((n, ">", b"SUB %b 5\r\nPUB job.%d %b 1\r\n?\r\n" % (inbox, n, inbox)))
        lines.append((n, "<", b"MSG %b 5 4\r\njob%d\r\n" % (inbox, n)))
    return lines


def _inbox(live: int) -> bytes:
    return b"_INBOX.%s.1" % (b"%d" % (7 + live) * 22)


def _ask(live: int, job: int) -> bytes:
    return b"SUB %b 9\r\nPUB job.%d %b 1\r\n?\r\n" % (_inbox(live), job, _inbox(live))


def _answer(live: int, job: int) -> bytes:
    return b"MSG %b 9 4\r\njob%d\r\n" % (_inbox(live), job)


def test_a_request_of_another_worker_is_answered_to_the_one_that_sends_it() -> None:
    play = Play(_workers())
    for live in (1, 2):
        play.open(live, "w")
        play.send(live, b"SUB %b 8\r\n" % _inbox(live))
    for live, job in ((1, 2), (2, 1)):
        request = _ask(live, job).partition(b"\r\n")[2]
        assert play.send(live, request) == _answer(live, job).replace(b" 9 ", b" 8 ")
    assert not play.machine.mismatches
    assert not play.machine.unused()
    # Neither is there once more.
    assert b" 503 natsproxy: not in the capture" in play.send(1, _ask(1, 1).partition(b"\r\n")[2])
    assert len(play.machine.mismatches) == 1


def test_one_worker_has_all_the_work_where_the_client_does_not_count() -> None:
    for match_on, found in ((PARTS, 1), (("subject", "body"), 0)):
        play = Play(_workers(), options=MatchOptions(match_on=frozenset(match_on)))
        play.open(1, "w")
        assert play.send(1, _ask(1, 1)) == _answer(1, 1)
        received = play.send(1, _ask(1, 2).partition(b"\r\n")[2])
        assert len(play.machine.mismatches) == found
        assert (received == _answer(1, 2)) == (not found)


@pytest.mark.parametrize(("match_on", "refused"), [((), 0), (("order",), 1)])
def test_publishes_on_a_subject_keep_their_order_where_that_counts(
    match_on: tuple[str, ...], refused: int
) -> None:
    """Those on other subjects, and polls, may come at any time."""
    info = b"PUB $JS.API.STREAM.INFO.S _INBOX.1 0\r\n\r\n"
    lines: list[Line] = [
        *hello(1, "a"),
        (1, ">", info + b"PUB a 1\r\n1\r\nPUB a 1\r\n2\r\nPUB b 1\r\n1\r\n"),
    ]
    play = Play(lines, options=MatchOptions(match_on=DEFAULT.match_on | set(match_on)))
    play.open(1, "a")
    play.send(1, b"PUB b 1\r\n1\r\nPUB a 1\r\n2\r\n")
    assert len(play.machine.mismatches) == refused
    play.send(1, b"PUB a 1\r\n1\r\n")
    if refused:
        (mismatch,) = play.machine.mismatches
        assert mismatch.summary == "client 'a' sent PUB a, before its turn"
        assert str(mismatch).splitlines()[:2] == [
            "client 'a' sent a frame before its turn: PUB a '2'",
            "  recorded, but after others on its subject: PUB a '2'",
        ]
        play.send(1, b"PUB a 1\r\n2\r\n")
    assert len(play.machine.mismatches) == refused
    assert [one.frame.subject for one in play.machine.unused()] == [b"$JS.API.STREAM.INFO.S"]


def test_subjects_need_not_agree_where_only_bodies_count() -> None:
    lines: list[Line] = [
        *hello(1, "a"),
        (1, ">", b"SUB news 1\r\nPUB a.1 1\r\nx\r\nPUB b.1 1\r\ny\r\nPUB $KV.b.k 1\r\nz\r\n"),
    ]
    play = Play(lines, options=MatchOptions(match_on=frozenset({"body"})))
    play.open(1, "a")
    play.send(1, b"SUB news 1\r\nPUB c 1\r\ny\r\nPUB d 1\r\nx\r\n")
    assert not play.machine.mismatches
    play.send(1, b"SUB other 2\r\nPUB $KV.c.k 1\r\nz\r\nPUB c 1\r\nx\r\n")
    assert len(play.machine.mismatches) == 3


def test_an_empty_publish_is_no_subscription_to_its_subject() -> None:
    play = Play([*hello(1, "a"), (1, ">", b"SUB news 1\r\nPUB news 0\r\n\r\n")])
    play.open(1, "a")
    play.send(1, b"PUB news 0\r\n\r\n" * 2)
    (mismatch,) = play.machine.mismatches
    assert mismatch.summary == "client 'a' sent PUB news, more often than recorded"


def test_the_end_of_a_connection_comes_when_another_worker_has_done_the_rest_of_its_work() -> None:
    lines: list[Line] = [*hello(1, "w"), *hello(2, "w"), (2, ">", b"SUB own 1\r\n")]
    lines += [
        (1, ">", b"PUB job 1\r\n1\r\n"),
        (1, ">", b"PUB job 1\r\n2\r\n"),
        (1, "closed", b"server-closed"),
    ]
    play = Play(lines)
    play.open(1, "w")
    play.open(2, "w")
    play.send(1, b"PUB job 1\r\n2\r\n")
    play.wait(MS)
    play.send(2, b"SUB own 1\r\n")
    assert play.other == []
    play.send(2, b"PUB job 1\r\n1\r\n")
    assert play.other == [DisconnectClient(1)]


def test_clients_that_begin_alike_are_known_by_the_order_in_which_they_connect() -> None:
    """Their first frames came in another order, when they were recorded and now."""
    lines: list[Line] = [*hello(2, "w"), *hello(1, "w"), *hello(3, "w")]
    lines += [(n, ">", b"SUB x 1\r\n") for n in (3, 1, 2)]
    lines += [(n, ">", b"PUB is.%d 0\r\n\r\n" % n) for n in (1, 2, 3)]
    play = Play(lines)
    for live in (11, 12, 13):
        play.open(live, "w")
    for live in (12, 13, 11):
        play.send(live, b"SUB x 1\r\n")
    found = {one.client_id: one.conn.number for one in play.machine.progress.connections.values()}
    assert found == {11: 1, 12: 2, 13: 3}
