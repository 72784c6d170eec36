"""UNSUB max under rules that drop: the client gets its count, whenever it asks for it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from natsproxy.wire.ops import C2S, S2C
from natsproxy.wire.parse import frames
from tests.session.playbook import Playbook

LOSSY = """
[[rules]]
name = "lost"
kind = "drop"
direction = "s2c"
subject = "a.lost"

[[rules]]
name = "secret"
kind = "deny"
subject = "a.secret"
"""
NOBODY = b"HMSG a.x 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"
SUBJECTS = st.sampled_from([b"a.x", b"a.y", b"a.lost", b"a.secret"])
MESSAGES = st.lists(st.tuples(SUBJECTS, st.sampled_from([b"1", b"2"])), max_size=12)


def stream(messages: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join(b"MSG %s %s 0\r\n\r\n" % message for message in messages)


@given(MESSAGES, MESSAGES, st.integers(1, 8))
def test_a_late_limit_counts_what_the_client_got(
    early: list[tuple[bytes, bytes]], late: list[tuple[bytes, bytes]], limit: int
) -> None:
    play = Playbook(RuleChain(load(LOSSY, KINDS))).greeted()
    play.client(b"SUB a.> 1\r\nSUB a.> 2\r\n")
    play.server(NOBODY + stream(early))
    arrived = [frame.sid for frame in frames(play.to_client, S2C)][1:]
    assert arrived == [sid for subject, sid in early if subject in (b"a.x", b"a.y")]
    play.client(b"UNSUB 1 %d\r\n" % limit).server(b"PONG\r\n" + stream(late))
    arrived += [frame.sid for frame in frames(play.to_client, S2C)]
    due = [sid for subject, sid in early + late if subject in (b"a.x", b"a.y")]
    assert arrived.count(b"2") == due.count(b"2")
    already = [sid for subject, sid in early if subject in (b"a.x", b"a.y")].count(b"1")
    assert arrived.count(b"1") == max(already, min(limit, due.count(b"1")))
    assert (b"1" in play.session.subs) == (due.count(b"1") < limit)


def test_a_subscription_that_nothing_limits_is_passed_in_runs() -> None:
    play = Playbook(RuleChain(load(LOSSY, KINDS))).greeted()
    play.client(b"SUB a.> 1\r\n")
    play.server(stream([(b"a.x", b"1")] * 50))
    assert [record.frames for record in play.records[-1:]] == [50]
    play.server(stream([(b"a.x", b"1"), (b"a.lost", b"1"), (b"a.x", b"1")]))
    assert play.session.subscriptions.delivered(play.session.subs[b"1"]) == 52


def test_swallowed_messages_are_not_counted() -> None:
    swallow = (
        '[[rules]]\nname = "hole"\nkind = "swallow"\ndirection = "s2c"\nsubject = "a.lost"\nlasts = "1s"\n'
    )
    play = Playbook(RuleChain(load(LOSSY.replace("a.lost", "a.none") + swallow, KINDS))).greeted()
    play.client(b"SUB a.> 1\r\n")
    play.server(stream([(b"a.x", b"1"), (b"a.lost", b"1")]))
    play.server(stream([(b"a.x", b"1")] * 3))
    play.at(2_000_000_000)
    play.server(stream([(b"a.x", b"1")]))
    assert play.session.subscriptions.delivered(play.session.subs[b"1"]) == play.to_client.count(b"MSG") == 2


def test_a_refused_subscription_leaves_nothing_behind() -> None:
    play = Playbook(RuleChain(load(LOSSY, KINDS))).greeted()
    play.client(b"".join(b"SUB a.secret %d\r\n" % sid for sid in range(100)))
    scanner = play.session.pipes[S2C].scanner
    assert not play.session.subs
    assert not scanner.tallies
    assert not scanner.watch_sids


def test_frames_of_ours_never_go_into_a_frame_in_flight() -> None:
    """A limit is reached while the client is in the middle of a large publish: our UNSUB comes behind it."""
    play = Playbook(RuleChain(load(LOSSY, KINDS))).greeted()
    play.client(b"SUB a.> 1\r\nUNSUB 1 1\r\n").server(b"PONG\r\n")
    assert list(frames(play.to_server, C2S))
    big = b"PUB b 200000\r\n" + b"x" * 200_000 + b"\r\n"
    play.client(big[:100_000])
    play.server(stream([(b"a.x", b"1")]))
    play.client(big[100_000:] + b"PING\r\n").server(b"PONG\r\n" * 3)
    assert [frame.line for frame in frames(play.to_server, C2S)] == [
        b"PUB b 200000\r\n",
        b"PING\r\n",
        b"UNSUB 1\r\n",
        b"PING\r\n",
        b"PING\r\n",
    ]
    assert play.to_client == stream([(b"a.x", b"1")]) + b"PONG\r\n"
