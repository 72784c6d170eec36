"""The playback of a server on scripted conversations: no sockets, no clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.replay.conversation.match_options import MatchOptions
from natsproxy.replay.server_playback.actions import DisconnectClient, ForwardToServer, SendToClient
from natsproxy.replay.server_playback.playback import ServerPlayback
from natsproxy.wire import encode
from natsproxy.wire.ops import C2S, S2C
from natsproxy.wire.parse import frames
from tests.replay.scripted import MS, Line, connect, events, hello, named
from tests.replay.server_playback.playing import LARGE, Play, kept

A, B = "A" * 21 + "1", "B" * 21 + "2"  # nuids, recorded and live


REQUEST: list[Line] = [
    *hello(1, "a"),
    (1, ">", b"SUB _INBOX.%b.* 1\r\nPUB ask _INBOX.%b.t1 1\r\n?\r\n" % (A.encode(), A.encode())),
    (1, "<", b"MSG _INBOX.%b.t1 1 2\r\n42\r\n" % A.encode()),
]


def test_info_is_the_recorded_one_with_our_address() -> None:
    (received,) = ServerPlayback(events(REQUEST)).opened(7, ("127.0.0.1", 1234))
    assert isinstance(received, SendToClient)
    assert b'"server_id":"S"' in received.data
    assert b'"port":1234' in received.data


def test_an_answer_goes_to_the_live_inbox_on_the_live_sid() -> None:
    play = Play(REQUEST)
    play.open(1, "a")
    received = play.send(
        1, b"SUB _INBOX.%b.* 9\r\nPUB ask _INBOX.%b.xy 1\r\n?\r\nPING\r\n" % (B.encode(), B.encode())
    )
    assert received == b"MSG _INBOX.%b.xy 9 2\r\n42\r\nPONG\r\n" % B.encode()
    assert play.machine.done


def test_a_message_waits_for_its_subscription_and_its_publish() -> None:
    play = Play(
        [
            *hello(1, "a"),
            *hello(2, "b"),
            (1, ">", b"SUB news 1\r\n"),
            (2, ">", b"PUB news 2\r\nhi\r\n"),
            (1, "<", b"MSG news 1 2\r\nhi\r\n"),
        ]
    )
    play.open(1, "a")
    play.open(2, "b")
    play.send(2, b"PUB news 2\r\nhi\r\n")
    assert play.got[1] == b""
    assert play.send(1, b"SUB news 5\r\n") == b"MSG news 5 2\r\nhi\r\n"


def test_clients_of_one_name_are_bound_by_their_frames() -> None:
    play = Play(
        [
            *hello(1, "same"),
            *hello(2, "same"),
            (1, ">", b"SUB x 1\r\n"),
            (2, ">", b"SUB y 1\r\n"),
            (2, ">", b"PUB x 1\r\n!\r\n"),
            (1, "<", b"MSG x 1 1\r\n!\r\n"),
        ]
    )
    play.open(1, "same")
    play.open(2, "same")
    play.send(1, b"SUB y 3\r\n")
    play.send(2, b"SUB x 4\r\n")
    play.send(1, b"PUB x 1\r\n!\r\n")
    assert play.got[2] == b"MSG x 4 1\r\n!\r\n"
    assert not play.machine.mismatches


def test_an_uncommitted_client_may_move_to_another_connection() -> None:
    play = Play(
        [
            *hello(1, "s"),
            *hello(2, "s"),
            (1, ">", b"SUB x 1\r\nPUB one 0\r\n\r\n"),
            (2, ">", b"SUB x 1\r\nPUB two 0\r\n\r\n"),
            (2, "<", b"MSG x 1 0\r\n\r\n"),
        ]
    )
    play.open(1, "s")
    play.send(1, b"SUB x 1\r\n")
    assert play.send(1, b"PUB two 0\r\n\r\n") == b"MSG x 1 0\r\n\r\n"
    play.open(2, "s")
    play.send(2, b"SUB x 9\r\nPUB one 0\r\n\r\n")
    assert not play.machine.mismatches
    assert play.machine.done


def test_the_inboxes_learned_for_the_wrong_connection_are_forgotten() -> None:
    lines: list[Line] = [*hello(1, "s"), *hello(2, "s")]
    for conn, letter, ask in ((1, "A", b"one"), (2, "C", b"two")):
        inbox = b"_INBOX.%b" % (letter * 21 + "1").encode()
        lines += [
            (conn, ">", b"SUB %b.* 1\r\n" % inbox),
            (conn, ">", b"PUB %b %b.t 0\r\n\r\n" % (ask, inbox)),
            (conn, "<", b"MSG %b.t 1 3\r\n%b\r\n" % (inbox, ask)),
        ]
    play = Play(lines)
    for live, letter, ask in ((1, "D", b"two"), (2, "E", b"one")):
        inbox = b"_INBOX.%b" % (letter * 21 + "1").encode()
        play.open(live, "s")
        play.send(live, b"SUB %b.* 1\r\n" % inbox)
        assert play.send(live, b"PUB %b %b.u 0\r\n\r\n" % (ask, inbox)) == b"MSG %b.u 1 3\r\n%b\r\n" % (
            inbox,
            ask,
        )
    assert play.machine.done


def test_recorded_timing_holds_answers_back_too() -> None:
    play = Play(REQUEST, timing="recorded")
    play.open(1, "a")
    received = play.send(
        1, b"SUB _INBOX.%b.* 9\r\nPUB ask _INBOX.%b.xy 1\r\n?\r\n" % (B.encode(), B.encode())
    )
    assert received == b""
    play.wait(MS)
    assert play.got[1].endswith(b"42\r\n")


def test_an_unrecorded_request_gets_an_error_and_503_an_unrecorded_publish_an_error() -> None:
    play = Play(REQUEST)
    play.open(1, "a")
    play.send(1, b"SUB _INBOX.%b.* 9\r\n" % B.encode())
    received = play.send(1, b"PUB other _INBOX.%b.zz 0\r\n\r\n" % B.encode())
    error, _, answer = received.partition(b"\r\n")
    assert error == b"-ERR 'Permissions Violation for Publish to \"other\": not in the capture'"
    assert answer.startswith(b"HMSG _INBOX.%b.zz 9 " % B.encode())
    assert b"NATS/1.0 503 natsproxy: not in the capture\r\nNats-Subject: other\r\n" in answer
    assert play.send(1, b"PUB other 0\r\n\r\n").startswith(
        b'-ERR \'Permissions Violation for Publish to "other"'
    )
    assert len(play.machine.mismatches) == 2


def test_a_request_ends_when_the_answer_of_another_client_is_refused() -> None:
    """The one who asked would wait in vain."""
    inbox = b"_INBOX.%b.t" % A.encode()
    play = Play(
        [
            *hello(1, "asks"),
            *hello(2, "answers"),
            (1, ">", b"SUB _INBOX.%b.* 1\r\n" % A.encode()),
            (2, ">", b"SUB ask 1\r\n"),
            (1, ">", b"PUB ask %b 1\r\n?\r\n" % inbox),
            (2, "<", b"MSG ask 1 %b 1\r\n?\r\n" % inbox),
            (2, ">", b"PUB %b 2\r\n42\r\n" % inbox),
            (1, "<", b"MSG %b 1 2\r\n42\r\n" % inbox),
        ]
    )
    play.open(1, "asks")
    play.open(2, "answers")
    play.send(2, b"SUB ask 3\r\n")
    play.send(1, b"SUB _INBOX.%b.* 4\r\n" % B.encode())
    play.send(1, b"PUB ask _INBOX.%b.u 1\r\n?\r\n" % B.encode())
    refused = play.send(2, b"PUB _INBOX.%b.u 2\r\n43\r\n" % B.encode())
    assert refused.startswith(b"-ERR 'Permissions Violation for Publish to ")
    assert b"HMSG _INBOX.%b.u 4 " % B.encode() in play.got[1]
    assert b"503 natsproxy: not in the capture: body: 42 recorded, 43 sent" in play.got[1]


def test_ignored_input_gets_nothing() -> None:
    play = Play(REQUEST, unrecorded="ignore")
    play.open(1, "a")
    assert play.send(1, b"PUB other 0\r\n\r\nSUB more 4\r\n") == b""
    assert not play.machine.mismatches


def test_passed_input_is_forwarded_with_all_subscriptions() -> None:
    play = Play(REQUEST, unrecorded="pass")
    play.open(1, "a")
    play.send(1, b"SUB _INBOX.%b.* 9\r\nPUB other 0\r\n\r\n" % B.encode())
    assert play.other == [
        ForwardToServer(1, b"SUB _INBOX.%b.* 9\r\n" % B.encode()),
        ForwardToServer(1, b"PUB other 0\r\n\r\n"),
    ]


def test_the_real_server_answers_a_ping_behind_frames_that_it_has() -> None:
    """A PONG from us would say that it knows a subscription that may still be on its way."""
    play = Play(REQUEST, unrecorded="pass")
    play.open(1, "a")
    assert play.send(1, b"PING\r\n") == b"PONG\r\n"
    assert play.send(1, b"SUB _INBOX.%b.* 9\r\nPING\r\n" % B.encode()) == b"PONG\r\n"
    assert play.send(1, b"PUB other 0\r\n\r\nPING\r\n") == b""
    assert play.send(1, b"PING\r\n") == b""
    assert play.other[2:] == [ForwardToServer(1, b"PING\r\n")] * 2
    assert play.answer(1, b"PONG\r\n") == b"PONG\r\n"


def test_headers_match_by_meaning() -> None:
    recorded = encode.pub(b"h", headers=b"NATS/1.0\r\nA: 1\r\nB: x y\r\n\r\n")
    play = Play([*hello(1, "a"), (1, ">", recorded)])
    play.open(1, "a")
    play.send(1, encode.pub(b"h", headers=b"NATS/1.0\r\nB:x y\r\nA:  1\r\n\r\n"))
    assert play.machine.done


def test_a_users_matcher_decides_about_bodies_and_copies_carry_the_live_one() -> None:
    lines: list[Line] = [
        *hello(1, "a"),
        (1, ">", b'SUB t 1\r\nPUB t 16\r\n{"ts":1,"v":"x"}\r\n'),
        (1, "<", b'MSG t 1 16\r\n{"ts":1,"v":"x"}\r\n'),
    ]
    play = Play(lines, options=MatchOptions(bodies=((b"t", lambda _ours, theirs: b"ts" in theirs),)))
    play.open(1, "a")
    received = play.send(1, b'SUB t 1\r\nPUB t 16\r\n{"ts":2,"v":"x"}\r\n')
    assert received == b'MSG t 1 16\r\n{"ts":2,"v":"x"}\r\n'


def test_the_server_ends_the_connection_where_it_did() -> None:
    play = Play([*hello(1, "a"), (1, ">", b"PUB x 0\r\n\r\n"), (1, "closed", b"server-closed")])
    play.open(1, "a")
    play.send(1, b"PUB x 0\r\n\r\n")
    play.wait(MS)
    assert play.other == [DisconnectClient(1)]


def test_a_connect_that_is_no_json_is_hung_up_on() -> None:
    play = Play(REQUEST)
    play.open(1, "a")
    assert play.send(1, b"CONNECT nonsense\r\n") == b""
    assert play.other == [DisconnectClient(1)]


def test_a_verbose_client_gets_its_oks() -> None:
    play = Play(REQUEST)
    play.got[1] = b""
    play._do(play.machine.opened(1, ("127.0.0.1", 1)))
    play.got[1] = b""
    assert play.send(1, b'CONNECT {"verbose":true,"name":"a"}\r\nPING\r\n') == b"+OK\r\nPONG\r\n"


def test_a_window_reads_on_as_exchanges_are_used() -> None:
    many: list[Line] = [*hello(1, "a"), (1, ">", b"SUB n 1\r\n")]
    for n in range(200):
        many += [(1, ">", b"PUB n 3\r\n%03d\r\n" % n), (1, "<", b"MSG n 1 3\r\n%03d\r\n" % n)]
    play = Play(many, window=4096)
    play.open(1, "a")
    assert not play.machine.recording.whole
    play.send(1, b"SUB n 1\r\n")
    for n in range(200):
        assert play.send(1, b"PUB n 3\r\n%03d\r\n" % n) == b"MSG n 1 3\r\n%03d\r\n" % n
    assert play.machine.done


SUBJECTS = (b"own.1", b"own.2", b"shared", b"ask")
PROGRAM = st.lists(st.sampled_from(SUBJECTS), max_size=8)


def _merged(draw: st.DrawFn, programs: list[list[bytes]]) -> list[tuple[int, bytes]]:
    """Return the steps of two programs in an order that keeps each one's own: (who, step)."""
    turns = draw(st.permutations([who for who, steps in enumerate(programs) for _ in steps]))
    todo = [iter(steps) for steps in programs]
    return [(who, next(todo[who])) for who in turns]


@st.composite
def _interleavings(draw: st.DrawFn) -> tuple[list[tuple[int, bytes]], list[tuple[int, bytes]]]:
    """Two programs, each a SUB of its own, one of the shared subject, and publishes; interleaved twice."""
    programs = []
    for who in (0, 1):
        subs = [b"SUB own.%d 1\r\n" % (who + 1), b"SUB shared 2\r\n"]
        publishes = [b"PUB %b 3\r\n%d%02d\r\n" % (subject, who, n) for n, subject in enumerate(draw(PROGRAM))]
        programs.append([*subs, *publishes])
    return _merged(draw, programs), _merged(draw, programs)


def _takers(step: bytes) -> list[tuple[int, bytes]]:
    """Return the receivers of a publish and their sids: `own.N` is one's own, `shared` is everybody's."""
    subject = step.split()[1]
    if subject == b"shared":
        return [(0, b"2"), (1, b"2")]
    return [(int(subject[-1:]) - 1, b"1")] if subject.startswith(b"own.") else []


@given(_interleavings())
def test_two_clients_whose_programs_interleave_differently_still_match(
    orders: tuple[list[tuple[int, bytes]], list[tuple[int, bytes]]],
) -> None:
    """Each client gets the frames recorded for it, on each subject in the recorded order."""
    recorded, live = orders
    subs = [(who + 1, ">", step) for who, step in recorded if step.startswith(b"SUB")]
    lines: list[Line] = [*hello(1, "same"), *hello(2, "same"), *subs]
    wanted: dict[tuple[int, bytes], list[bytes]] = {}
    for who, step in recorded:
        if step.startswith(b"PUB"):
            lines.append((who + 1, ">", step))
            _, subject, _, body = step.split()
            for to, sid in _takers(step):
                lines.append((to + 1, "<", b"MSG %b %b 3\r\n%b\r\n" % (subject, sid, body)))
                wanted.setdefault((to, subject), []).append(body)
    play = Play(lines)
    for who in (0, 1):
        play.open(who, "same")
    for who, step in live:
        play.send(who, step)
    assert play.machine.done
    assert not play.machine.mismatches
    got: dict[tuple[int, bytes], list[bytes]] = {}
    for who in (0, 1):
        for frame in frames(play.got[who], S2C):
            got.setdefault((who, frame.subject), []).append(frame.body)
    assert got == wanted


def test_a_client_does_not_keep_its_first_read_alive() -> None:
    machine = ServerPlayback(events(hello(1, "a")))
    machine.opened(1, ("127.0.0.1", 4222))
    read = connect("a") + LARGE
    machine.received(1, list(frames(read, C2S)), 0)
    assert kept(len(read)) == []


@pytest.mark.parametrize("unrecorded", ["error", "pass"])
@pytest.mark.parametrize("limit", [b"", b" 2"])
def test_a_subscription_that_ended_leaves_and_what_is_late_still_goes_there(
    limit: bytes, unrecorded: str
) -> None:
    """Some clients have an inbox for each request."""
    lines: list[Line] = [*hello(1, "a"), *hello(2, "b")]
    for n in range(1, 51):
        lines += [
            (1, ">", b"SUB in.%d %d\r\n" % (n, n)),
            (2, ">", b"PUB in.%d 1\r\nx\r\nPUB in.%d 1\r\ny\r\n" % (n, n)),
            (1, "<", b"MSG in.%d %d 1\r\nx\r\nMSG in.%d %d 1\r\ny\r\n" % (n, n, n, n)),
        ]
    play = Play(lines, unrecorded=unrecorded)
    play.open(1, "a")
    play.open(2, "b")
    for n in range(1, 51):
        play.send(1, b"SUB in.%d %d\r\nUNSUB %d%b\r\n" % (n, n + 100, n + 100, limit))
        for letter in (b"x", b"y"):
            play.send(2, b"PUB in.%d 1\r\n%b\r\n" % (n, letter))
            assert play.got[1].endswith(b"MSG in.%d %d 1\r\n%b\r\n" % (n, n + 100, letter))
    client, recorded = play.machine._clients[1], play.machine.progress.connections[named(1)]
    assert (client.subs, client.sids, client.limits, client.unpassed, recorded.sids) == ({},) * 5
    assert play.machine.done
