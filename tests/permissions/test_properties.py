"""Random traffic: all of it is allowed, no verb more than was used, and order and parts do not matter."""

from __future__ import annotations

from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from hypothesis import example, given, settings
from hypothesis import strategies as st

from natsproxy.permissions.formats import FORMATS
from natsproxy.permissions.needs import needs_of
from natsproxy.permissions.uses import By, Verb, clients, opened, uses
from natsproxy.protocol.jetstream import api_verb, parse_api
from natsproxy.protocol.permissions import Permissions, ResponsePermissions, parse_permissions
from tests.permissions.kit import NUID, UUID, Sent, connect, items, msg, pub, segments, sub

TOKENS = st.sampled_from([b"a", b"b", b"1", b"22", b"333", b"id-7", b"id-8", b"id-9", NUID, UUID])
PLAIN = st.lists(TOKENS, min_size=1, max_size=4).map(b".".join)
STREAMS = st.sampled_from([b"S", b"T", b"S100", b"S200", b"S300"])
VERBS = st.sampled_from([b"STREAM.INFO", b"STREAM.DELETE", b"STREAM.PURGE", b"STREAM.MSG.GET"])
CONSUMER_VERBS = st.sampled_from([b"CONSUMER.INFO", b"CONSUMER.DELETE", b"CONSUMER.MSG.NEXT"])
SUBJECTS = st.one_of(
    PLAIN,
    st.builds(b"$JS.API.%b.%b".__mod__, st.tuples(VERBS, STREAMS)),
    st.builds(b"$JS.hub.API.%b.%b".__mod__, st.tuples(VERBS, STREAMS)),
    st.builds(b"$JS.API.%b.%b.%b".__mod__, st.tuples(CONSUMER_VERBS, STREAMS, TOKENS)),
    st.builds(b"$JS.API.CONSUMER.CREATE.%b.%b.%b".__mod__, st.tuples(STREAMS, TOKENS, PLAIN)),
    st.builds(b"$JS.API.DIRECT.GET.%b.%b".__mod__, st.tuples(STREAMS, PLAIN)),
    st.builds(b"$JS.ACK.%b.%b.1.2.3.4.5".__mod__, st.tuples(STREAMS, TOKENS)),
    st.builds(b"$KV.%b.%b".__mod__, st.tuples(STREAMS, PLAIN)),
)
FRAMES = st.one_of(
    SUBJECTS.map(pub),
    st.builds(sub, SUBJECTS, st.sampled_from([b"", b"q", b"crew"])),
    st.builds(msg, PLAIN, st.sampled_from([b"", b"r.1", b"r.2", b"_INBOX.%b" % NUID])),
    st.sampled_from([pub(b"r.1"), pub(b"r.2"), pub(b"_INBOX.%b" % NUID)]),
)
TRAFFIC = st.lists(st.tuples(st.integers(1, 3), FRAMES), max_size=60)
NAMES = {1: connect("ann"), 2: connect("bob"), 3: connect("ann")}
WORDS = 3


def _frames(traffic: list[tuple[int, Sent]]) -> list[tuple[int, Sent]]:
    return [*NAMES.items(), *traffic]


@settings(max_examples=150, deadline=None)
@given(TRAFFIC)
@example([(1, msg(b"a", b"r.1")), (1, msg(b"b", b"r.1")), (1, pub(b"r.1"))])  # by two subscriptions
def test_all_that_was_recorded_is_allowed(traffic: list[tuple[int, Sent]]) -> None:
    with TemporaryDirectory() as folder:
        frames = _frames(traffic)
        paths = segments(Path(folder), items(frames), 999)
        maps = {
            one.label: parse_permissions(one.permissions()) for one in needs_of(paths, By.NAME, words=WORDS)
        }
        known = clients(opened(paths))
        for use in uses(opened(paths), known):
            permissions = maps[use.client.name]
            if use.verb == Verb.SUBSCRIBE:
                assert permissions.can_subscribe(use.subject, use.queue), use
            elif use.response is None:
                assert permissions.can_publish(use.subject), use
    _check_responses(frames, maps)


def _check_responses(frames: list[tuple[int, Sent]], maps: dict[str, Permissions]) -> None:
    """As a server would: the state of `allow_responses` by connection."""
    states = {
        conn: ResponsePermissions(maps[name])
        for conn, name in ((1, "ann"), (2, "bob"), (3, "ann"))
        if name in maps
    }
    for at, (conn, (sender, raw)) in enumerate(frames):
        fields = raw.split(b"\r\n")[0].split(b" ")
        now = at * 10_000_000
        if sender == "<" and len(fields) == 5 and fields[3]:
            states[conn].delivered(fields[3], now)
        elif fields[0] == b"PUB" and sender == ">":
            assert states[conn].can_publish(fields[1], now), (conn, fields[1])


@settings(max_examples=150, deadline=None)
@given(TRAFFIC)
def test_no_line_allows_a_verb_or_a_stream_that_was_not_used(traffic: list[tuple[int, Sent]]) -> None:
    with TemporaryDirectory() as folder:
        paths = segments(Path(folder), items(_frames(traffic)), 999)
        used: dict[str, set[tuple[bytes, bytes, bytes]]] = {}
        for use in uses(opened(paths), clients(opened(paths))):
            used.setdefault(use.client.name, set()).add(_call(use.subject))
        for one in needs_of(paths, By.NAME, words=WORDS):
            for place in one.lines:
                if place.subject.startswith(b"$JS"):
                    assert _call(place.subject) in used[one.label], place


def _call(subject: bytes) -> tuple[bytes, bytes, bytes]:
    call = parse_api(subject)
    if call is not None:
        return api_verb(subject), call.stream, call.domain
    tokens = subject.split(b".")
    return b".".join(tokens[:2]), tokens[2] if tokens[:2] == [b"$JS", b"ACK"] else b"", b""


@settings(max_examples=60, deadline=None)
@given(TRAFFIC, st.integers(1, 20), st.randoms())
def test_parts_in_any_order_give_the_same(traffic: list[tuple[int, Sent]], size: int, random: Random) -> None:
    with TemporaryDirectory() as folder:
        found = items(_frames(traffic))
        whole = segments(Path(folder) / "whole", found, 999)
        parts = segments(Path(folder) / "parts", found, size)
        random.shuffle(parts)
        for write in FORMATS.values():
            assert write(needs_of(parts, By.NAME), By.NAME, None) == write(
                needs_of(whole, By.NAME), By.NAME, None
            )
