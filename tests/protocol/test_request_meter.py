"""The meters of requests: what they count, what they have no room for, and that both twins agree."""

from __future__ import annotations

import random
from typing import Any

import pytest

from natsproxy.protocol import _request_meter_py as pure
from natsproxy.protocol.jetstream import API_VERBS
from natsproxy.protocol.request_meter import BOUNDS, IDLE, LONGEST, ROOM, Bucket, RequestMeter, Series
from natsproxy.protocol.template import template
from natsproxy.units import MICROSECOND, MILLISECOND, SECOND

METERS: dict[str, Any] = {"pure": pure.RequestMeter}
if RequestMeter is not pure.RequestMeter:
    METERS["compiled"] = RequestMeter
meters = pytest.mark.parametrize("meter", METERS)


def ask(client: Any, subject: bytes, at: int, took: int | None, *, no_responders: bool = False) -> int:
    """Make a request, and answer it after `took` ns; return its ticket."""
    client.now = at
    ticket: int = client.requested(subject)
    if took is not None:
        client.now = at + took
        client.answered(ticket, no_responders=no_responders)
    return ticket


def by_key(series: list[Series]) -> dict[bytes | None, Series]:
    return {one.key: one for one in series if one.requests}


@meters
def test_requests_are_told_apart_by_template_and_by_client(meter: str) -> None:
    made = METERS[meter]()
    ann, bob = made.client(1), made.client(2)
    assert ask(ann, b"orders.16.get", 0, None) == 0  # nobody has identified it
    ann.identify("A", "ann")
    bob.identify("", "")
    ask(ann, b"orders.17.get", SECOND, 3 * MILLISECOND)
    ask(ann, b"orders.18.get", 2 * SECOND, 200 * MICROSECOND)
    ask(bob, b"orders.19.get", 3 * SECOND, None)
    ask(bob, b"nobody", 4 * SECOND, MILLISECOND, no_responders=True)
    subjects = by_key(made.subjects())
    assert set(subjects) == {b"orders.*.get", b"nobody"}
    orders = subjects[b"orders.*.get"]
    assert (orders.requests, orders.no_responders, orders.total) == (3, 0, 3200 * MICROSECOND)
    found = {bound: one for bound, one in zip(BOUNDS, orders.buckets, strict=False) if one.requests}
    assert found == {  # a bound is in its bucket
        5 * MILLISECOND: Bucket(1, 1, 3 * MILLISECOND, SECOND + 3 * MILLISECOND),
        200 * MICROSECOND: Bucket(1, 1, 200 * MICROSECOND, 2 * SECOND + 200 * MICROSECOND),
    }
    assert (subjects[b"nobody"].no_responders, sum(one.requests for one in subjects[b"nobody"].buckets)) == (
        1,
        0,
    )
    clients = by_key(made.clients())
    assert {key: one.requests for key, one in clients.items()} == {b"A\0ann": 2, b"\0": 2}


@meters
def test_only_listed_subjects_count_under_the_first_pattern(meter: str) -> None:
    made = METERS[meter]((b"a.*", b"a.b", b"a.>"))
    client = made.client(1)
    client.identify("A", "ann")
    tickets = [ask(client, subject, 0, 1) for subject in (b"a.b", b"a.b.c", b"a", b"b.a")]
    assert [bool(ticket) for ticket in tickets] == [True, True, False, False]
    assert {key: one.requests for key, one in by_key(made.subjects()).items()} == {b"a.*": 1, b"a.>": 1}
    assert sum(one.requests for one in made.clients()) == 2
    with pytest.raises(ValueError, match="at most"):
        METERS[meter](tuple(b"s%d" % number for number in range(ROOM + 1)))


@meters
def test_what_there_is_no_room_for_is_counted_together_until_a_series_is_idle(meter: str) -> None:
    made = METERS[meter]()
    client = made.client(1)
    client.identify("A", "ann")

    words = [bytes([97 + number // 26, 97 + number % 26]) for number in range(ROOM + 2)]
    for number, word in enumerate(words):
        ask(client, word, number, 1)
    assert by_key(made.subjects())[None].requests == 2
    late = ask(client, words[0], SECOND, None)
    for word in words[1:ROOM]:  # all but one are in use
        ask(client, word, SECOND + IDLE, 1)
    ask(client, b"new", 2 * SECOND + IDLE, 1)
    found = by_key(made.subjects())
    assert found[b"new"].requests == 1
    assert words[0] not in found
    assert len(found) == ROOM + 1
    client.now = 3 * SECOND + IDLE
    client.answered(late, no_responders=False)  # its series is another's by now
    assert by_key(made.subjects())[b"new"].requests == 1
    assert sum(one.requests for one in by_key(made.subjects())[b"new"].buckets) == 1
    assert by_key(made.subjects())[None].buckets[-1].latency > IDLE
    ask(client, b"newer", 4 * SECOND + IDLE, 1)
    assert b"newer" not in by_key(made.subjects())


@meters
def test_long_and_odd_names_have_no_series(meter: str) -> None:
    made = METERS[meter]()
    client = made.client(1)
    client.identify("A", "u" * LONGEST)
    for subject in (b"s" * LONGEST, b"s" * (LONGEST + 1), b"\xc3\xa4"):
        ask(client, subject, 0, 1)
    assert {key: one.requests for key, one in by_key(made.subjects()).items()} == {b"s" * LONGEST: 1, None: 2}
    assert {key: one.requests for key, one in by_key(made.clients()).items()} == {None: 3}
    client.identify("A", "\ud800")  # JSON may have half a character
    ask(client, b"s", 0, 1)
    assert b"A\0?" in by_key(made.clients())


@pytest.mark.skipif(len(METERS) < 2, reason="not compiled")
def test_both_meters_make_the_same_of_the_same_requests() -> None:
    rng = random.Random(44)
    for patterns in (None, (b"a.>", b"*.b", b">")):
        made = [meter(patterns) for meter in METERS.values()]
        clients = [[each.client(conn) for conn in range(40)] for each in made]
        now, tickets = 0, list[tuple[int, list[int]]]()
        for _ in range(5_000):
            now += rng.choice((0, 7, SECOND, 2**34))
            conn, subject = rng.randrange(40), _subject(rng)
            who = f"u{rng.randrange(150)}"
            if rng.random() < 0.3 and tickets:
                conn, given = tickets.pop(rng.randrange(len(tickets)))
                lost = rng.random() < 0.1
                for each, ticket in zip(clients, given, strict=True):
                    each[conn].now = now
                    each[conn].answered(ticket, no_responders=lost)
                continue
            given = []
            for each in clients:
                each[conn].now = now
                each[conn].identify("A", who)
                given.append(each[conn].requested(subject))
            assert given[0] == given[1]
            tickets.append((conn, given))
        assert made[0].subjects() == made[1].subjects()
        assert made[0].clients() == made[1].clients()


_TOKENS = (
    *("a", "b", "API", "$JS", "ACK", "FC", "EVENT", "ORDERS", "ORDERS2024", "", "*", ">", "7", "AbCdEfGh"),
    *(
        "4a1b2c3d",
        "550e8400-e29b-41d4-a716-446655440000",
        "_INBOX",
        "NUIDnuid12345678901234",
        "v1",
        "device-17",
    ),
)


def _subject(rng: random.Random) -> bytes:
    some = [rng.choice(_TOKENS) for _ in range(rng.randrange(1, 7))]
    sort = rng.random()
    if sort < 0.4:
        domain = [rng.choice(_TOKENS)] if rng.random() < 0.4 else []
        some = ["$JS", *domain, "API", rng.choice(API_VERBS), *some[1:]]
    elif sort < 0.6:
        some = ["$JS", rng.choice(("ACK", "FC", "EVENT")), *some, *rng.choices(_TOKENS, k=rng.randrange(6))]
    elif sort < 0.7:
        some.insert(0, "_INBOX")
    return ".".join(some).encode()


def test_the_compiled_templates_are_those_of_the_module() -> None:
    template_of = pytest.importorskip("natsproxy.protocol._template").template_of
    rng = random.Random(44)
    for subject in {
        b"$JS.4a1b2c3d.API.ACCOUNT.STREAM.MOVE..AbCdEfGh",
        b"$JS.API.ACCOUNT.STREAM.MOVE.ORDERS2024.ORDERS2024",
        *(_subject(rng) for _ in range(20_000)),
    }:
        assert template_of(subject) == template(subject), subject
