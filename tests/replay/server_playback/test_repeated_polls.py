"""Polls come more or less often than recorded, and at other times."""

from __future__ import annotations

import pytest

from natsproxy.replay.conversation.match_options import MatchOptions
from natsproxy.replay.server_playback.actions import DisconnectClient
from tests.replay.scripted import MS, Line, hello
from tests.replay.server_playback.playing import Play

INFO = b"$JS.API.STREAM.INFO.S"
A, B, C, D, E = (b"_INBOX.%b" % (letter * 21 + b"1") for letter in (b"A", b"B", b"C", b"D", b"E"))


def ask(subject: bytes, reply: bytes, body: bytes = b"") -> bytes:
    return b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(body), body)


def asked(subject: bytes, *answers: bytes) -> list[Line]:
    """Return polls, each on an inbox of its own, and the answers to them."""
    lines: list[Line] = []
    for n, answer in enumerate(answers):
        lines.append((1, ">", ask(subject, b"%b.%d" % (A, n))))
        lines.append((1, "<", b"MSG %b.%d 1 %d\r\n%b\r\n" % (A, n, len(answer), answer)))
    return lines


def playing(lines: list[Line], **options: object) -> Play:
    lines = [*hello(1, "a"), (1, ">", b"SUB %b.* 1\r\n" % A), *lines]
    play = Play(lines, options=MatchOptions(**options))  # type: ignore[arg-type]
    play.open(1, "a")
    play.send(1, b"SUB %b.* 1\r\n" % B)
    return play


def answers(play: Play, subject: bytes, count: int) -> list[bytes]:
    found = (play.send(1, ask(subject, b"%b.x%d" % (B, n))) for n in range(count))
    return [data.split(b"\r\n")[1] for data in found]


@pytest.mark.parametrize("subject", [INFO, b"$SRV.PING", b"$JS.API.DIRECT.GET.KV_a.$KV.a.key"])
def test_the_last_answer_is_given_again(subject: bytes) -> None:
    play = playing(asked(subject, b"one", b"two"))
    assert answers(play, subject, 4) == [b"one", b"two", b"two", b"two"]
    assert play.machine.mismatches == []
    assert play.machine.done


def test_nobody_misses_polls_that_do_not_come() -> None:
    play = playing(
        [*asked(INFO, b"1", b"2", b"3"), (1, ">", b"PUB done 0\r\n\r\n"), (1, "<", b"MSG in.z 1 0\r\n\r\n")]
    )
    assert answers(play, INFO, 1) == [b"1"]
    assert play.send(1, b"PUB done 0\r\n\r\n") == b"MSG in.z 1 0\r\n\r\n"
    assert play.machine.unused() == []
    assert play.machine.done


def test_nobody_misses_the_end_behind_a_poll_that_does_not_come() -> None:
    play = playing([*asked(INFO, b"1", b"2"), (1, "closed", b"server-closed")])
    assert answers(play, INFO, 1) == [b"1"]
    assert play.machine.done
    assert play.send(1, ask(INFO, B + b".y")).endswith(b"\r\n2\r\n")
    assert not play.machine.done
    play.wait(2 * MS)
    assert play.other == [DisconnectClient(1)]
    assert play.machine.done


def test_a_poll_that_never_comes_at_all_is_missed() -> None:
    play = playing(asked(INFO, b"1"))
    assert [one.frame.subject for one in play.machine.unused()] == [INFO]


def test_an_answer_does_not_come_from_the_future() -> None:
    play = playing([*asked(INFO, b"empty"), (1, ">", b"PUB put 0\r\n\r\n"), *asked(INFO, b"full")])
    assert answers(play, INFO, 3) == [b"empty"] * 3
    play.send(1, b"PUB put 0\r\n\r\n")
    assert answers(play, INFO, 2) == [b"full"] * 2


def test_without_repeats_each_poll_has_its_place() -> None:
    play = playing(asked(INFO, b"one", b"two"), allow_repeats=False)
    answers(play, INFO, 3)
    assert len(play.machine.mismatches) == 1


def test_a_request_that_may_change_something_has_one_answer() -> None:
    play = playing(asked(b"orders.place", b"ok"))
    answers(play, b"orders.place", 2)
    assert len(play.machine.mismatches) == 1


def test_subjects_can_be_named_that_may_repeat() -> None:
    beats: list[Line] = [(1, ">", b"PUB health.a 2\r\nok\r\n")] * 3
    play = playing([*beats, *asked(b"status.a", b"fine")], repeat=(b"health.*", b"status.*"))
    play.send(1, b"PUB health.a 2\r\nok\r\n" * 5)
    assert answers(play, b"status.a", 2) == [b"fine"] * 2
    assert play.machine.mismatches == []
    play.send(1, b"PUB health.a 3\r\nbad\r\n")
    assert len(play.machine.mismatches) == 1


def test_an_inbox_is_known_by_its_request() -> None:
    """The program subscribed in another order, to one inbox more."""
    lines: list[Line] = [
        (1, ">", b"SUB %b 2\r\n" % A + ask(b"one", A)),
        (1, "<", b"MSG %b 2 1\r\n1\r\n" % A),
        (1, ">", b"SUB %b 3\r\n" % B + ask(b"two", B)),
        (1, "<", b"MSG %b 3 1\r\n2\r\n" % B),
    ]
    play = playing(lines)
    play.send(1, b"SUB %b 7\r\nSUB %b 8\r\nSUB %b 9\r\n" % (C, D, E))
    assert play.send(1, ask(b"two", C)) == b"MSG %b 7 1\r\n2\r\n" % C
    assert play.send(1, ask(b"one", D)) == b"MSG %b 8 1\r\n1\r\n" % D
    assert play.machine.done


def workers(**options: object) -> Play:
    """Two clients of one name, each with work of its own."""
    lines: list[Line] = [*hello(1, "w"), *hello(2, "w")]
    lines += [(n, ">", b"SUB work q 1\r\n") for n in (1, 2)]
    lines += [(n, ">", b"PUB done.%d 0\r\n\r\n" % n) for n in (1, 2)]
    return Play(lines, options=MatchOptions(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize("late", [False, True])
def test_workers_of_one_name_share_their_work(late: bool) -> None:
    """late: the other one has connected, and subscribes later."""
    play = workers()
    play.open(1, "w")
    play.open(2, "w")
    play.send(1, b"SUB work q 1\r\n")
    if not late:
        play.send(2, b"SUB work q 1\r\n")
    play.send(1, b"PUB done.2 0\r\n\r\n")
    if late:
        play.send(2, b"SUB work q 1\r\n")
    play.send(2, b"PUB done.1 0\r\n\r\n")
    assert play.machine.done


@pytest.mark.parametrize(("match_on", "mismatches"), [(("client",), 1), ((), 0)])
def test_one_worker_does_all_the_work_where_the_client_does_not_count(
    match_on: tuple[str, ...], mismatches: int
) -> None:
    play = workers(match_on=frozenset({"subject", "headers", "body", *match_on}))
    play.open(1, "w")
    play.send(1, b"SUB work q 1\r\nPUB done.1 0\r\n\r\nPUB done.2 0\r\n\r\n")
    assert len(play.machine.mismatches) == mismatches


# -- reads of what the program writes

GET = b"$JS.API.DIRECT.GET.KV_a.$KV.a.%b"


def put(key: bytes, value: bytes, seq: int, answer: bytes = b"") -> list[Line]:
    """Return a recorded publish to a stream, and its ack."""
    answer = answer or b'{"stream":"KV_a","seq":%d}' % seq
    reply = b"%b.put%d" % (A, seq)
    return [
        (1, ">", ask(b"$KV.a." + key, reply, value)),
        (1, "<", b"MSG %b 1 %d\r\n%b\r\n" % (reply, len(answer), answer)),
    ]


def got(key: bytes, value: bytes, seq: int, at: bytes = b"") -> list[Line]:
    """Return a recorded read of a key, which shows a sequence; at: makes its inbox its own."""
    reply, block = b"%b.get%d%b" % (A, seq, at), b"NATS/1.0\r\nNats-Sequence: %d\r\n\r\n" % seq
    size = len(block), len(block) + len(value)
    return [
        (1, ">", ask(GET % key, reply)),
        (1, "<", b"HMSG %b 1 %d %d\r\n%b%b\r\n" % (reply, *size, block, value)),
    ]


def absent(key: bytes, at: bytes) -> list[Line]:
    reply, block = b"%b.none%b" % (A, at), b"NATS/1.0 404 Message Not Found\r\n\r\n"
    size = len(block), len(block)
    return [(1, ">", ask(GET % key, reply)), (1, "<", b"HMSG %b 1 %d %d\r\n%b\r\n" % (reply, *size, block))]


class Keys:
    """A program that writes and reads keys."""

    def __init__(self, *lines: list[Line]) -> None:
        self.play = playing([line for some in lines for line in some])
        self.calls = 0

    def put(self, key: bytes, value: bytes) -> None:
        self._ask(b"$KV.a." + key, value)

    def get(self, key: bytes) -> bytes:
        return self._ask(GET % key).split(b"\r\n")[-2]

    def _ask(self, subject: bytes, body: bytes = b"") -> bytes:
        self.calls += 1
        return self.play.send(1, ask(subject, b"%b.%d" % (B, self.calls), body))


def test_a_read_shows_the_write_before_it_whatever_other_tasks_have_left_to_do() -> None:
    keys = Keys(
        put(b"x", b"x1", 1),
        got(b"x", b"x1", 1),
        put(b"y", b"y1", 2),
        got(b"y", b"y1", 2),
        put(b"x", b"x2", 3),
        got(b"x", b"x2", 3),
    )
    keys.put(b"x", b"x1")
    assert keys.get(b"x") == b"x1"
    keys.put(b"x", b"x2")
    assert [keys.get(b"x"), keys.get(b"x")] == [b"x2", b"x2"]
    keys.put(b"y", b"y1")
    assert [keys.get(b"y"), keys.get(b"x")] == [b"y1", b"x2"]
    assert keys.play.machine.mismatches == []


def test_reads_that_are_left_over_show_nothing_to_later_ones() -> None:
    """The program asks less often than when it was recorded."""
    keys = Keys(
        absent(b"x", b"1"),
        absent(b"x", b"2"),
        put(b"x", b"x1", 1),
        got(b"x", b"x1", 1, b"first"),
        got(b"x", b"x1", 1, b"second"),
        put(b"x", b"x2", 2),
        got(b"x", b"x2", 2),
    )
    keys.get(b"x")
    keys.put(b"x", b"x1")
    assert keys.get(b"x") == b"x1"
    keys.put(b"x", b"x2")
    assert keys.get(b"x") == b"x2"


def test_two_tasks_that_write_one_key_in_another_order_read_their_own() -> None:
    keys = Keys(put(b"x", b"a", 1), got(b"x", b"a", 1), put(b"x", b"b", 2), got(b"x", b"b", 2))
    keys.put(b"x", b"b")
    assert keys.get(b"x") == b"b"
    keys.put(b"x", b"a")
    assert keys.get(b"x") == b"a"


@pytest.mark.parametrize(
    "answer",
    [
        b'{"error":{"code":400,"err_code":10071,"description":"wrong sequence"},"stream":"KV_a","seq":0}',
        b'{"stream":"KV_a","seq":1,"duplicate":true}',
    ],
)
def test_a_publish_that_the_stream_did_not_take_is_no_write(answer: bytes) -> None:
    keys = Keys(
        put(b"x", b"x1", 1),
        got(b"x", b"x1", 1, b"first"),
        put(b"x", b"no", 2, answer),
        put(b"y", b"y1", 3),
        got(b"x", b"x1", 1, b"second"),
        put(b"x", b"x2", 4),
        got(b"x", b"x2", 4),
    )
    keys.put(b"x", b"x1")
    keys.put(b"x", b"no")
    assert [keys.get(b"x") for _ in range(3)] == [b"x1"] * 3
    keys.put(b"x", b"x2")
    assert keys.get(b"x") == b"x2"


def test_what_somebody_else_wrote_waits_for_the_request_that_made_him() -> None:
    keys = Keys(
        put(b"x", b"mine", 1),
        got(b"x", b"mine", 1),
        [(1, ">", b"PUB please 0\r\n\r\n")],
        got(b"x", b"his", 2),
    )
    keys.put(b"x", b"mine")
    assert [keys.get(b"x"), keys.get(b"x")] == [b"mine", b"mine"]
    keys.play.send(1, b"PUB please 0\r\n\r\n")
    assert keys.get(b"x") == b"his"


def test_a_pull_that_is_open_gets_what_another_client_publishes() -> None:
    """It came before that publish, and a recorded one like it behind."""
    nxt, first, second = b"$JS.API.CONSUMER.MSG.NEXT.S.C", b"PUB s 1\r\n1\r\n", b"PUB s 1\r\n2\r\n"

    def message(sid: bytes, n: int) -> bytes:
        return b"MSG s %b $JS.ACK.S.C.1.%d.%d.17.0 1\r\n%d\r\n" % (sid, n, n, n)

    play = Play(
        [
            *hello(1, "a"),
            *hello(2, "b"),
            (1, ">", b"SUB inb.* 1\r\n"),
            (2, ">", first),
            (1, ">", ask(nxt, b"inb.1")),
            (1, "<", message(b"1", 1)),
            (2, ">", second),
            (1, ">", ask(nxt, b"inb.2")),
            (1, "<", message(b"1", 2)),
        ]
    )
    play.open(1, "a")
    play.open(2, "b")
    play.send(1, b"SUB inb.* 1\r\n")
    play.send(2, first)
    assert play.send(1, ask(nxt, b"inb.1")) == message(b"1", 1)
    assert play.send(1, ask(nxt, b"inb.2")) == b""
    play.send(2, second)
    assert play.got[1].endswith(message(b"1", 2))
    assert play.machine.done
