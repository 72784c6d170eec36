"""Subscriptions by themselves: their limits, their end at the server, and their moves to another subject."""

from __future__ import annotations

from typing import Any

import pytest

from natsproxy.rules.interface import Decision, EmptyChain, Subscription, View
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import S2C, Direction
from tests.session.parts import Parts, frame

PING = b"PING\r\n"


def subscribed(*sids: bytes, verbose: bool = False) -> Parts:
    """Return the parts of a connection that has subscribed to the subject `a`."""
    parts = Parts()
    parts.subscriptions.verbose = verbose
    for sid in sids:
        sub = frame(parts.c2s, b"SUB a %b\r\n" % sid)
        parts.subscriptions.sub(sub)
        parts.subscriptions.decided(sub, True, None, 0)
    return parts


def delivered(parts: Parts, sid: bytes = b"1", count: int = 1, *, altered: bool = False) -> None:
    """Let messages go to the client."""
    for _ in range(count):
        parts.subscriptions.passed(frame(parts.s2c, b"MSG a %b 1\r\nx\r\n" % sid), 0, altered=altered)


def unsub(parts: Parts, args: bytes, *, altered: bool = False) -> bytes | None:
    """Let an UNSUB come; return the one that goes on in its place."""
    return parts.subscriptions.unsub(frame(parts.c2s, b"UNSUB %b\r\n" % args), 0, altered=altered)


def pong(parts: Parts) -> None:
    """Let the PONG of the next fence come."""
    fence = parts.fences.pong()
    assert fence is not None
    parts.fences.pass_(fence, 0)


def test_a_sub_that_the_rules_take_away_is_not_there() -> None:
    parts = Parts()
    sub = frame(parts.c2s, b"SUB a 1\r\n")
    parts.subscriptions.sub(sub)
    assert list(parts.session.subs) == [b"1"]  # rules that decide on it see it
    parts.subscriptions.decided(sub, False, None, 0)
    assert (list(parts.session.subs), parts.sent()) == ([], b"")


def test_a_sub_may_have_another_subject_for_the_server() -> None:
    parts = Parts()
    sub = frame(parts.c2s, b"SUB a 1\r\n")
    parts.subscriptions.sub(sub)
    parts.subscriptions.decided(sub, True, b"x.a", 0)
    one = parts.session.subs[b"1"]
    assert (one.subject, one.upstream) == (b"a", b"x.a")


def test_a_second_sub_of_a_live_sid_changes_nothing() -> None:
    parts = subscribed(b"1")
    delivered(parts, count=2)
    again = frame(parts.c2s, b"SUB b 1\r\n")
    parts.subscriptions.sub(again)
    parts.subscriptions.decided(again, False, None, 0)
    one = parts.session.subs[b"1"]
    assert (one.subject, one.delivered, parts.sent()) == (b"a", 2, b"")


def test_an_unsub_ends_a_subscription() -> None:
    parts = subscribed(b"1", b"2")
    assert unsub(parts, b"1") is None
    assert list(parts.session.subs) == [b"2"]


@pytest.mark.parametrize(("before", "behind"), [(0, 3), (2, 1), (3, 0), (5, 0)])
def test_a_subscription_ends_at_its_limit(before: int, behind: int) -> None:
    parts = subscribed(b"1")
    parts.subscriptions.count(b"1")  # the scanner counts from here on
    parts.s2c.scanner.tallies[b"1"] = parts.subscriptions.tallies[b"1"] = before
    assert unsub(parts, b"1 3") is None
    for _ in range(behind):
        assert b"1" in parts.session.subs
        delivered(parts)
    assert b"1" not in parts.session.subs
    assert parts.sent() == b""  # the server has counted too


def test_a_limit_is_ours_where_rules_take_messages_away() -> None:
    """The server would count what the client never gets: it has the subscription until we end it."""
    parts = subscribed(b"1")
    assert unsub(parts, b"1 2", altered=True) == b"UNSUB 1 999999999\r\n"
    assert parts.sent() == PING
    pong(parts)  # the limit is in force: earlier messages have come
    delivered(parts, count=2, altered=True)
    assert b"1" not in parts.session.subs
    assert parts.sent() == PING + b"UNSUB 1\r\n" + PING


def test_messages_under_way_come_behind_the_end_of_a_subscription() -> None:
    parts = subscribed(b"1", b"2")
    parts.subscriptions.forget(b"1")
    parts.subscriptions.close([b"1"], 0)
    assert parts.sent() == PING + b"UNSUB 1\r\n" + PING
    assert list(parts.subscriptions.closed) == [b"1"]
    pong(parts)
    assert list(parts.subscriptions.closed) == [b"1"]
    pong(parts)
    assert not parts.subscriptions.ended_or_moved
    assert not parts.subscriptions.watched


@pytest.mark.parametrize("verbose", [False, True])
def test_the_ok_of_an_unsub_of_ours_is_not_the_clients(verbose: bool) -> None:
    """It comes between the PONGs of the two fences round the UNSUBs."""
    parts = subscribed(b"1", b"2", verbose=verbose)
    parts.subscriptions.close([b"1", b"2"], 0)
    assert not parts.subscriptions.take_our_ok()
    pong(parts)
    assert [parts.subscriptions.take_our_ok() for _ in range(3)] == [verbose, verbose, False]
    pong(parts)
    assert not parts.subscriptions.take_our_ok()


def test_a_sub_that_the_server_refuses_is_forgotten() -> None:
    parts = subscribed(b"1", b"2")
    parts.subscriptions.refused(b"a", b"")
    assert list(parts.session.subs) == [b"1"]  # the latest


class Asked(EmptyChain):
    """Rules that note under which subject the server has a subscription as they decide."""

    def __init__(self) -> None:
        super().__init__()
        self.upstream: list[bytes] = []

    def rules(self, view: View) -> Any:
        """Return the rules of a connection."""
        rules = self.bind(view, None, 0)

        def decide(direction: Direction, frame: Frame, now: int) -> Decision | None:
            self.upstream.append(view.subs[frame.sid].upstream)
            return None

        rules.decide = decide  # type: ignore[method-assign]
        return rules


def test_a_subscription_moves_to_another_subject() -> None:
    """Messages that come before the server has moved it are decided on as they were sent."""
    parts, old = subscribed(b"1"), Asked()
    message = frame(parts.s2c, b"MSG a 1 1\r\nx\r\n")
    parts.subscriptions.resubscribe([(b"1", b"x.a")], old.rules(parts.session), 0)
    assert parts.sent() == b"UNSUB 1\r\n" + PING + b"SUB x.a 1\r\n"
    assert parts.subscriptions.is_moving(b"1")
    parts.subscriptions.decide(message, 0)
    pong(parts)
    assert not parts.subscriptions.is_moving(b"1")
    assert old.upstream == [b"a"]
    assert parts.session.subs[b"1"].upstream == b"x.a"


def test_moves_that_follow_closely_queue_up() -> None:
    parts, old = subscribed(b"1"), Asked()
    message = frame(parts.s2c, b"MSG a 1 1\r\nx\r\n")
    for subject in (b"x.a", b"y.a"):
        parts.subscriptions.resubscribe([(b"1", subject)], old.rules(parts.session), 0)
    assert parts.sent() == b"".join(
        b"UNSUB 1\r\n" + PING + b"SUB %b 1\r\n" % subject for subject in (b"x.a", b"y.a")
    )
    for _ in range(2):
        parts.subscriptions.decide(message, 0)
        pong(parts)
    assert old.upstream == [b"a", b"x.a"]
    assert not parts.subscriptions.is_moving(b"1")


@pytest.mark.parametrize("verbose", [False, True])
def test_the_oks_of_a_move_are_not_the_clients(verbose: bool) -> None:
    parts = subscribed(b"1", verbose=verbose)
    parts.subscriptions.resubscribe([(b"1", b"x.a")], Asked().rules(parts.session), 0)
    oks = 0
    while (fence := parts.fences.pong()) is not None:
        parts.fences.pass_(fence, 0)
        oks += parts.subscriptions.take_our_ok()
    assert oks == (2 if verbose else 0)  # of the UNSUB and the SUB
    assert not parts.subscriptions.take_our_ok()


def test_what_was_delivered_is_known_however_it_was_counted() -> None:
    parts = subscribed(b"1", b"2", b"3")
    delivered(parts, b"1", 2)
    parts.subscriptions.count(b"2")
    parts.subscriptions.tallies[b"2"] = 7
    counted: list[Subscription] = [*parts.session.subs.values()]
    assert [parts.subscriptions.delivered(sub) for sub in counted] == [2, 7, 0]
    came = frame(parts.s2c, b"MSG a 2 1\r\nx\r\n")
    assert parts.subscriptions.delivered(counted[1]) == 8  # the scanner counts it as it comes
    parts.subscriptions.dropped(came)
    assert parts.subscriptions.delivered(counted[1]) == 7


def test_a_refused_sub_is_not_counted() -> None:
    """Else they would pile up."""
    parts = subscribed(b"1")
    parts.subscriptions.count(b"9")
    assert b"9" not in parts.subscriptions.tallies


def test_s2c_is_the_only_direction_with_watches() -> None:
    parts = subscribed(b"1")
    parts.subscriptions.close([b"1"], 0)
    assert parts.s2c.direction == S2C
    assert list(parts.s2c.scanner.watch_sids) == [b"1"]
    assert not parts.c2s.scanner.watch_sids
