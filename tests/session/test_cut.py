"""A connection that ends inside a frame: the part that goes out, and what is recorded of it."""

from __future__ import annotations

import pytest

from natsproxy import close_reasons
from natsproxy.capture.format.records import Flags, Frames
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from natsproxy.session.values import FROM_CLIENT, TO_SERVER, End
from natsproxy.wire.ops import C2S, S2C, Direction, Op
from tests.session.playbook import CONNECT, INFO, Playbook

PUB = b"PUB a 4\r\nabcd\r\n"
MSG = b"MSG a 1 4\r\nabcd\r\n"
SECOND = 1_000_000_000


def under(*lines: str, kind: str = "close", more: str = "") -> Playbook:
    """Return a session under one rule, and more of them."""
    text = "\n".join(["[[rules]]", 'name = "cut"', f'kind = "{kind}"', *lines, ""])
    return Playbook(RuleChain(load(text + more, KINDS)))


def last(play: Playbook) -> list[tuple[object, ...]]:
    """Return the records of the frame at which the connection ended."""
    play.do(play.session.closed(play.now))
    return [
        (each.data, each.in_first, each.out_first, each.cause, each.flags, each.extra)
        for each in play.records
        if each.cause == "cut"
    ]


@pytest.mark.parametrize(
    ("at", "part"), [("before", b""), ("head", b"PUB "), ("payload", b"PUB a 4\r\nab"), ("after", PUB)]
)
@pytest.mark.parametrize("kind", ["close", "reset"])
def test_the_server_gets_the_part(kind: str, at: str, part: bytes) -> None:
    play = under('op = "PUB"', "after = 1", f'at = "{at}"', kind=kind).greeted().client(PUB + PUB + PUB)
    assert (play.to_server, play.to_client) == (PUB + part, b"")
    reset = kind == "reset"
    assert play.end == End(close_reasons.RULE, kind, reset, reset and at != "before")


@pytest.mark.parametrize(
    ("at", "part"), [("head", b"MSG a"), ("payload", b"MSG a 1 4\r\nab"), ("after", MSG)]
)
def test_the_client_gets_the_part(at: str, part: bytes) -> None:
    play = under('op = "MSG"', f'at = "{at}"').greeted().server(MSG)
    assert (play.to_server, play.to_client) == (b"", part)


def test_a_part_is_recorded_as_a_frame_that_was_cut() -> None:
    play = under('op = "PUB"', 'at = "payload"').greeted().client(PUB)
    assert last(play) == [
        (PUB, 2, None, "cut", 0, None),
        (b"PUB a 4\r\nab", None, 2, "cut", Flags.CUT, {"of": 2}),
    ]
    traffic = play.session.traffic()
    assert [traffic.frames(point)[Op.PUB] for point in (FROM_CLIENT, TO_SERVER)] == [1, 0]
    assert traffic.bytes(TO_SERVER) == len(CONNECT + b"PING\r\n" + b"PUB a 4\r\nab")


def test_a_whole_frame_is_recorded_as_one_that_passed() -> None:
    play = under('op = "PUB"', 'at = "after"').greeted().client(PUB)
    (record,) = (each for each in play.records if each.data == PUB)
    assert (record.in_first, record.out_first, record.flags) == (2, 2, 0)


def test_the_server_gets_a_part_of_the_rewritten_frame() -> None:
    rewrite = '[[rules]]\nname = "r"\nkind = "rewrite"\nfrom = "a"\nto = "other"\n'
    play = under('op = "PUB"', 'at = "payload"', more=rewrite).greeted().client(PUB)
    assert play.to_server == b"PUB other 4\r\nab"


def test_a_denied_frame_has_no_part() -> None:
    deny = '[[rules]]\nname = "d"\nkind = "deny"\nsubject = "a"\n'
    play = under('op = "PUB"', 'at = "payload"', more=deny).greeted().client(PUB)
    assert play.to_server == b""
    assert play.end is not None


def test_nothing_goes_out_ahead_of_a_frame_that_waits() -> None:
    late = '[[rules]]\nname = "late"\nkind = "latency"\nsubject = "b"\ndelay = "1s"\n'
    play = under('subject = "a"', 'at = "head"', more=late).greeted().client(b"PUB b 0\r\n\r\n" + PUB)
    assert play.to_server == b""
    assert [each[:3] for each in last(play)] == [(PUB, 3, None)]


def test_a_client_that_is_cut_in_its_connect_shows_no_secret() -> None:
    connect = CONNECT.replace(b"{", b'{"pass":"hunter2","jwt":"' + b"x" * 200 + b'",')
    play = under('op = "CONNECT"', 'at = "head"').server(INFO).client(connect)
    assert play.to_server == connect[: len(connect) // 2]
    play.do(play.session.closed(0))
    kept = [each for each in play.records if each.direction == C2S]
    assert len(kept) == 2
    assert not [each for each in kept if b"hunter2" in each.data or b"xxx" in each.data]


def test_a_large_payload_is_cut_in_its_middle() -> None:
    body = b"x" * 200_000
    play = under('op = "MSG"', 'at = "payload"').greeted()
    raw = b"MSG a 1 200000\r\n" + body + b"\r\n"
    for begin in range(0, len(raw), 65_536):
        play.server(raw[begin : begin + 65_536])
    assert play.to_client == raw[: len(b"MSG a 1 200000\r\n") + 100_000]


def sent(records: list[Frames], direction: Direction) -> bytes:
    """Return the bytes of one direction that went out, as the records have them."""
    went = [each for each in records if each.direction == direction and each.out_first is not None]
    return b"".join(each.data for each in sorted(went, key=lambda each: each.out_first or 0))


@pytest.mark.parametrize("at", ["before", "head", "payload", "after"])
def test_the_records_have_the_bytes_that_went_out(at: str) -> None:
    play = under('op = "MSG"', "after = 1", f'at = "{at}"').greeted().server(MSG + MSG + MSG)
    play.do(play.session.closed(0))
    assert sent(play.records, S2C) == INFO + b"PONG\r\n" + play.to_client
