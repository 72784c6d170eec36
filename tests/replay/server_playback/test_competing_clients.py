"""Clients that write one key, take from one consumer or stand in one queue group."""

from __future__ import annotations

from natsproxy.replay.server_playback.recorded_effects import PATIENCE
from tests.replay.scripted import Line, hello
from tests.replay.server_playback.playing import Play
from tests.replay.server_playback.test_repeated_polls import ask

# -- one key, written with the revision that was read

GET = b"$JS.API.DIRECT.GET.KV_a.$KV.a.n"


def inbox(conn: int) -> bytes:
    return b"_INBOX.%b" % (b"%d" % conn * 22)


def got(conn: int, seq: int, at: bytes = b"") -> list[Line]:
    """Return a read that shows a sequence, its value; at: makes its inbox its own."""
    reply, block = b"%b.g%d%b" % (inbox(conn), seq, at), b"NATS/1.0\r\nNats-Sequence: %d\r\n\r\n" % seq
    answer = b"HMSG %b 1 %d %d\r\n%b%d\r\n" % (reply, len(block), len(block) + 1, block, seq)
    return [(conn, ">", ask(GET, reply)), (conn, "<", answer)]


def update(seq: int, reply: bytes) -> bytes:
    block = b"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: %d\r\n\r\n" % seq
    return b"HPUB $KV.a.n %b %d %d\r\n%b+\r\n" % (reply, len(block), len(block) + 1, block)


def updated(conn: int, seq: int, *, stored: bool = True) -> list[Line]:
    """Return an update of what a sequence showed."""
    reply = b"%b.u%d%d" % (inbox(conn), seq, stored)
    answer = b'{"stream":"KV_a","seq":%d}' % (seq + 1)
    if not stored:
        answer = b'{"error":{"code":400,"err_code":10071,"description":"no"},"stream":"KV_a","seq":0}'
    return [
        (conn, ">", update(seq, reply)),
        (conn, "<", b"MSG %b 1 %d\r\n%b\r\n" % (reply, len(answer), answer)),
    ]


def counting() -> Play:
    """Two clients that count to 4; each loses once against the other."""
    lines = [*hello(1, "a"), *hello(2, "b")]
    lines += [(conn, ">", b"SUB %b.* 1\r\n" % inbox(conn)) for conn in (1, 2)]
    lines += [*updated(1, 0), *got(1, 1), *got(2, 1), *updated(1, 1), *updated(2, 1, stored=False)]
    lines += [
        *got(2, 2),
        *got(1, 2),
        *updated(2, 2),
        *updated(1, 2, stored=False),
        *got(1, 3),
        *updated(1, 3),
    ]
    play = Play(lines)
    for live, name in ((1, "a"), (2, "b")):
        play.open(live, name)
        play.send(live, b"SUB %b.* 1\r\n" % inbox(live + 4))
    return play


class Counter:
    """A client that counts as long as it finds a number that it shall count."""

    def __init__(self, play: Play, live: int) -> None:
        self.play, self.live, self.calls = play, live, 0

    def count(self) -> str:
        """Read and update; return the number and whether it was stored."""
        read = self._ask(ask, GET).split(b"\r\n")[-2]
        stored = b"error" not in self._ask(update, int(read))
        return f"{read.decode()} {'stored' if stored else 'lost'}"

    def first(self) -> None:
        self._ask(update, 0)

    def _ask(self, make: object, what: object) -> bytes:
        self.calls += 1
        reply = b"%b.c%d" % (inbox(self.live + 4), self.calls)
        return self.play.send(self.live, make(what, reply))  # type: ignore[operator]


def test_each_client_reads_its_own_next_answer_whoever_is_faster() -> None:
    for faster, slower in ((0, 1), (1, 0)):
        play = counting()
        clients = Counter(play, 1), Counter(play, 2)
        clients[0].first()
        found: dict[int, list[str]] = {}
        for one in (faster, slower):
            found[one] = [clients[one].count() for _ in range(3 - one)]
        assert found[0] == ["1 stored", "2 lost", "3 stored"]
        assert found[1] == ["1 lost", "2 stored"]
        assert play.machine.mismatches == []
        assert play.machine.done


def test_a_client_that_takes_a_lost_update_for_a_success_is_found_out() -> None:
    play = counting()
    first, second = Counter(play, 1), Counter(play, 2)
    first.first()
    assert second.count() == "1 lost"
    assert [first.count(), first.count()] == ["1 stored", "2 lost"]
    assert [one.frame.subject for one in play.machine.unused() if b"KV.a" in one.frame.subject[:6]]


def test_tasks_of_one_client_read_for_their_updates_in_the_recorded_order() -> None:
    """One of them is ahead: it has updated before the other one reads."""
    lines: list[Line] = [*hello(1, "a"), (1, ">", b"SUB %b.* 1\r\n" % inbox(1)), *updated(1, 0)]
    lines += [line for n in (1, 2) for line in got(1, 1, b"task%d" % n)]
    lines += [*updated(1, 1), *updated(1, 1, stored=False), *got(1, 2), *updated(1, 2)]
    play = Play(lines)
    play.open(1, "a")
    play.send(1, b"SUB %b.* 1\r\n" % inbox(5))
    client = Counter(play, 1)
    client.first()
    assert [client.count() for _ in range(3)] == ["1 stored", "1 lost", "2 stored"]
    assert play.machine.mismatches == []
    assert play.machine.done


def test_a_client_that_has_made_its_own_change_gets_its_next_answer() -> None:
    """What it reads is no key: nothing tells whose changes the answer shows."""
    info = b"$JS.API.STREAM.INFO.S"
    lines = [*hello(1, "a"), *hello(2, "b")]
    lines += [(conn, ">", b"SUB %b.* 1\r\n" % inbox(conn)) for conn in (1, 2)]
    for conn, answer in ((1, 0), (2, 0), (1, 2), (2, 3)):
        reply = b"%b.i%d" % (inbox(conn), answer)
        lines += [(conn, ">", ask(info, reply)), (conn, "<", b"MSG %b 1 1\r\n%d\r\n" % (reply, answer))]
        lines += [(conn, ">", b"PUB s.%d 0\r\n\r\n" % conn)]
    play = Play(lines)
    for live, name in ((1, "a"), (2, "b")):
        play.open(live, name)
        play.send(live, b"SUB %b.* 1\r\n" % inbox(live + 4))
    for live, answers in ((2, (0, 3)), (1, (0, 2))):
        for answer in answers:
            reply = b"%b.j%d" % (inbox(live + 4), answer)
            assert play.send(live, ask(info, reply)) == b"MSG %b 1 1\r\n%d\r\n" % (reply, answer)
            play.send(live, b"PUB s.%d 0\r\n\r\n" % live)
    assert play.machine.done


def test_a_client_that_only_waits_does_not_look_into_the_future() -> None:
    """Here the second one asks until it sees the number of the first one."""
    lines = [*hello(1, "a"), *hello(2, "b")]
    lines += [(conn, ">", b"SUB %b.* 1\r\n" % inbox(conn)) for conn in (1, 2)]
    lines += [*updated(1, 0), *got(2, 1), *updated(1, 1), *got(2, 2)]
    play = Play(lines)
    for live, name in ((1, "a"), (2, "b")):
        play.open(live, name)
        play.send(live, b"SUB %b.* 1\r\n" % inbox(live + 4))
    first, second = Counter(play, 1), Counter(play, 2)
    first.first()
    values = [second._ask(ask, GET).split(b"\r\n")[-2] for _ in range(3)]
    first._ask(update, 1)
    assert [*values, second._ask(ask, GET).split(b"\r\n")[-2]] == [b"1", b"1", b"1", b"2"]
    assert play.machine.done


# -- one consumer

NEXT = b"$JS.API.CONSUMER.MSG.NEXT.S.C"


def pull(name: bytes) -> bytes:
    return ask(NEXT, name, b'{"batch":1,"expires":50000000}')


def message(n: int, sid: bytes = b"1") -> bytes:
    return b"MSG s %b $JS.ACK.S.C.1.%d.%d.99.0 1\r\n%d\r\n" % (sid, n, n, n)


def result(n: int) -> bytes:
    return b"PUB done 1\r\n%d\r\nPUB $JS.ACK.S.C.1.%d.%d.99.0 4\r\n+ACK\r\n" % (n, n, n)


def _jobs(*jobs: int) -> list[Line]:
    """Record two workers of unlike names; jobs: the worker who got the first, second, ... job."""
    lines: list[Line] = [*hello(1, "quick"), *hello(2, "slow")]
    lines += [(conn, ">", b"SUB in%d 1\r\n" % conn) for conn in (1, 2)]
    for n, conn in enumerate(jobs, 1):
        lines += [(conn, ">", pull(b"in%d" % conn)), (conn, "<", message(n)), (conn, ">", result(n))]
    return lines


def workers(*jobs: int) -> Play:
    """Let both workers come."""
    play = Play(_jobs(*jobs))
    for live, name in ((1, "quick"), (2, "slow")):
        play.open(live, name)
        play.send(live, b"SUB in%d 1\r\n" % live)
    return play


def test_workers_of_unlike_speed_get_their_own_jobs() -> None:
    play = workers(1, 2, 1, 1, 2)
    for n in (1, 3, 4):
        assert play.send(1, pull(b"in1")) == message(n)
        play.send(1, result(n))
    assert play.send(1, pull(b"in1")) == b""
    for n in (2, 5):
        assert play.send(2, pull(b"in2")) == message(n)
        play.send(2, result(n))
    assert play.machine.mismatches == []
    assert play.machine.done


def test_a_pull_waits_for_its_clients_own_changes_alone() -> None:
    play = workers(1, 2, 1)
    assert play.send(1, pull(b"in1")) == message(1)
    assert play.send(1, pull(b"in1")) == b""
    assert play.send(1, result(1)) == message(3)


def test_the_jobs_of_a_worker_that_left_go_to_whoever_asks() -> None:
    for waits in (False, True):
        play = workers(1, 2, 1, 2)
        assert play.send(1, pull(b"in1")) == message(1)
        play.send(1, result(1))
        assert play.send(2, pull(b"in2")) == message(2)
        play.send(2, result(2))
        if waits:
            play.send(2, pull(b"in2"))
            play.send(2, result(4) + pull(b"in2"))
        play.leave(1)
        rest = play.got[2] if waits else play.send(2, pull(b"in2")) + play.send(2, pull(b"in2"))
        assert message(3) in rest
        play.send(2, result(3))
        assert play.machine.mismatches == []
        assert play.machine.handed_over == [
            "1 messages of consumer C of S, recorded for client 'quick' (recorded connection 1), "
            "went to client 'slow' (recorded connection 2)"
        ]


def test_what_a_worker_does_not_ask_for_goes_to_one_that_does_after_a_while() -> None:
    for comes in (True, False):
        lines = _jobs(1, 2, 1, 2)
        play = Play(lines)
        play.open(1, "quick")
        play.send(1, b"SUB in1 1\r\n")
        if comes:
            play.open(2, "slow")
            play.send(2, b"SUB in2 1\r\n")
        for n in (1, 3):
            assert play.send(1, pull(b"in1")) == message(n)
            play.send(1, result(n))
        assert play.send(1, pull(b"in1")) == b""
        play.wait(PATIENCE - 1)
        if comes:  # it was heard just now
            assert play.send(2, pull(b"in2")) == message(2)
        play.wait(1)
        assert play.send(1, pull(b"in1")) == (b"" if comes else message(2))
        if comes:
            play.send(2, result(2))
            play.wait(PATIENCE)
            assert message(4) in play.got[1]
            assert len(play.machine.handed_over) == 1
        assert play.machine.mismatches == []


def test_a_message_that_nobody_acknowledges_is_missed() -> None:
    play = workers(1, 2)
    for live, n in ((1, 1), (2, 2)):
        play.send(live, pull(b"in%d" % live))
        play.send(live, result(n).partition(b"PUB $JS")[0])
    assert [one.frame.subject[:8] for one in play.machine.unused()] == [b"$JS.ACK."] * 2


def test_tasks_of_one_client_get_their_own_jobs() -> None:
    """Both ask before there is a job; the first one is for the task that asked last."""
    lines: list[Line] = [
        *hello(1, "a"),
        (1, ">", b"SUB ina 1\r\nSUB inb 2\r\n" + pull(b"ina") + pull(b"inb")),
    ]
    for n, sid in ((1, b"2"), (2, b"1")):
        lines += [(1, ">", b"PUB s 1\r\n%d\r\n" % n), (1, "<", message(n, sid))]
    play = Play(lines)
    play.open(1, "a")
    play.send(1, b"SUB ina 1\r\nSUB inb 2\r\n" + pull(b"ina") + pull(b"inb"))
    assert play.send(1, b"PUB s 1\r\n1\r\n") == message(1, b"2")
    assert play.send(1, b"PUB s 1\r\n2\r\n") == message(2)


# -- one queue group


def test_the_messages_of_a_subscriber_that_left_go_to_the_others_of_its_group() -> None:
    lines: list[Line] = [*hello(1, "one"), *hello(2, "two"), *hello(3, "asker")]
    lines += [(conn, ">", b"SUB work crew 1\r\n") for conn in (1, 2)]
    for n, conn in ((1, 1), (2, 2), (3, 1), (4, 1)):
        lines += [(3, ">", b"PUB work 1\r\n%d\r\n" % n), (conn, "<", b"MSG work 1 1\r\n%d\r\n" % n)]
        lines += [(conn, ">", b"PUB done 1\r\n%d\r\n" % n)]
    for ends in (b"UNSUB 1\r\n", b""):
        play = Play(lines)
        for live, name in ((1, "one"), (2, "two"), (3, "asker")):
            play.open(live, name)
        for live in (1, 2):
            play.send(live, b"SUB work crew 1\r\n")
        play.send(3, b"PUB work 1\r\n1\r\n")
        play.send(1, b"PUB done 1\r\n1\r\n" + ends)
        if not ends:
            play.leave(1)
        for n in (2, 3, 4):
            play.send(3, b"PUB work 1\r\n%d\r\n" % n)
            play.send(2, b"PUB done 1\r\n%d\r\n" % n)
        assert play.got[1].count(b"MSG work") == 1
        assert play.got[2].count(b"MSG work") == 3
        assert play.machine.mismatches == []
        assert play.machine.done
        (line,) = play.machine.handed_over
        assert line.startswith("2 messages of queue group crew of work, recorded for client 'one'")


def test_the_messages_of_a_member_that_never_comes_go_to_the_others_of_its_group() -> None:
    lines: list[Line] = [*hello(1, "one"), *hello(2, "two"), *hello(3, "asker")]
    lines += [(conn, ">", b"SUB work crew 1\r\n") for conn in (1, 2)]
    lines += [(3, ">", b"PUB work 1\r\n1\r\n"), (1, "<", b"MSG work 1 1\r\n1\r\n")]
    play = Play(lines)
    for live, name in ((2, "two"), (3, "asker")):
        play.open(live, name)
    play.send(2, b"SUB work crew 1\r\n")
    play.send(3, b"PUB work 1\r\n1\r\n")
    play.wait(PATIENCE - 1)
    assert play.got[2].count(b"MSG") == 0
    play.wait(1)
    assert play.got[2].count(b"MSG") == 1
    assert play.machine.handed_over[0].startswith("1 messages of queue group crew of work")


def test_the_other_group_on_a_subject_gets_nothing_more() -> None:
    lines: list[Line] = [*hello(1, "one"), *hello(2, "two"), *hello(3, "asker")]
    lines += [(1, ">", b"SUB work crew 1\r\n"), (2, ">", b"SUB work staff 1\r\n")]
    lines += [(3, ">", b"PUB work 1\r\n1\r\n"), (1, "<", b"MSG work 1 1\r\n1\r\n")]
    play = Play(lines)
    for live, name in ((1, "one"), (2, "two"), (3, "asker")):
        play.open(live, name)
    play.send(1, b"SUB work crew 1\r\n")
    play.send(2, b"SUB work staff 1\r\n")
    play.leave(1)
    play.send(3, b"PUB work 1\r\n1\r\n")
    assert b"MSG" not in play.got[2]


# -- clients that are alike until they change something


def test_clients_that_only_asked_so_far_change_places() -> None:
    """What each one gets later is its own, whichever of them came first."""
    lines: list[Line] = [*hello(1, "w"), *hello(2, "w")]
    lines += [(conn, ">", b"SUB %b.* 1\r\n" % inbox(conn)) for conn in (1, 2)]
    for conn in (1, 2):
        lines += got(conn, 1)
    for conn in (1, 2):
        reply = b"%b.d%d" % (inbox(conn), conn)
        lines += [(conn, ">", ask(b"I.am.%d" % conn, reply)), (conn, "<", b"MSG %b 1 2\r\nok\r\n" % reply)]
        lines += got(conn, 4 + conn)
    for who in ((1, 2), (2, 1)):
        play = Play(lines)
        for live in (1, 2):
            reply = b"%b.x" % inbox(live + 4)
            play.open(live, "w")
            play.send(live, b"SUB %b.* 1\r\n" % inbox(live + 4))
            assert play.send(live, ask(GET, reply)).endswith(b"\r\n1\r\n")
        for live, name in enumerate(who, 1):
            reply = b"%b.y" % inbox(live + 4)
            assert play.send(live, ask(b"I.am.%d" % name, reply)) == b"MSG %b 1 2\r\nok\r\n" % reply
        for live, name in enumerate(who, 1):
            assert play.send(live, ask(GET, b"%b.z" % inbox(live + 4))).endswith(b"\r\n%d\r\n" % (4 + name))
        assert play.machine.mismatches == []
        assert play.machine.done
        assert play.machine.unused() == []
