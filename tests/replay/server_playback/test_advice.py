"""The option that a mismatch recommends accepts the frame, or there is none."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.replay.conversation.match_options import Given, MatchOptions, combine, read
from natsproxy.replay.server_playback.advice import Advice
from natsproxy.replay.server_playback.mismatch import Mismatch
from natsproxy.wire import encode
from tests.replay.scripted import hello
from tests.replay.server_playback.playing import Play

_subjects = st.sampled_from(
    ["orders.new", "/orders", "header:x", "token", "a.6f1c0f2e-5b1c-4e6e-9d52-0d3c5c1d8a11"]
)
_keys = st.sampled_from(["id", "a/b", "~", "*", "", "first name", " x ", "token", "0", "\u00fc"])
_leaves = st.one_of(
    st.integers(0, 20),
    st.floats(0, 1),
    st.booleans(),
    st.none(),
    st.sampled_from(["", "x", "2026-11-22T10:00:00Z", "6f1c0f2e-5b1c-4e6e-9d52-0d3c5c1d8a11", "oc_7_1"]),
)
_json = st.recursive(
    _leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=3),
    max_leaves=6,
)
_bodies = st.one_of(
    _json.map(lambda value: json.dumps(value).encode()), st.sampled_from([b"", b"x", b"\xff{"])
)
_names = st.sampled_from(["A", "X-Id", "traceparent", "Nats-Msg-Id", "a*b"])
_blocks = st.dictionaries(_names, st.sampled_from(["1", "2", "x y", "\u00fc"]), max_size=3).map(
    lambda pairs: b"NATS/1.0\r\n" + "".join(f"{k}: {v}\r\n" for k, v in pairs.items()).encode() + b"\r\n"
)
ORDER = b'PUB orders.new 9\r\n{"qty":3}\r\n'


def play(recorded: bytes, *live: bytes, options: Given | None = None, name: str = "a") -> list[Mismatch]:
    """Play a client, and another one of the same name that was recorded to send nothing."""
    lines = [*hello(1, "a"), *hello(2, name), (1, ">", recorded)]
    played = Play(lines, options=MatchOptions(**(options or {})))
    played.open(1, "a")
    played.open(2, name)
    for data in live:
        played.send(1, data)
    return played.machine.mismatches


def advice_on(recorded: bytes, *live: bytes, options: Given | None = None) -> Advice | None:
    (mismatch,) = play(recorded, *live, options=options)
    found = [one.accepted for one in mismatch.candidates if one.accepted is not None]
    assert ("accepted with" in str(mismatch)) == bool(found)
    return found[0] if found else None


@given(_subjects, st.tuples(_blocks, _bodies), st.tuples(_blocks, _bodies))
def test_the_option_accepts_the_frame(
    subject: str, recorded: tuple[bytes, bytes], live: tuple[bytes, bytes]
) -> None:
    ours, theirs = (encode.pub(subject.encode(), body, headers=block) for block, body in (recorded, live))
    if play(ours, theirs):
        advice = advice_on(ours, theirs)
        if advice is not None:
            assert not play(ours, theirs, options=read({advice.key: list(advice.values)}))


@pytest.mark.parametrize(
    ("subject", "body", "given_already", "expected"),
    [
        (b"orders.new", b'{"qty":4}', {}, ("like_json", "orders.new /qty")),
        (b"orders.new", b'{"qty":4}', {"like_headers": "X"}, ("like_json", "orders.new /qty")),
        (b"orders.new", b'{"qty":"?"}', {}, ("ignore_json", "orders.new /qty")),
        # The form that was given is the stricter one, wherever the other one is added.
        (b"orders.new", b'{"qty":""}', {"like_json": "orders.> /qty"}, None),
        (
            b"orders.new",
            b'{"qty":4,"ref":1}',
            {},
            ("ignore_json", ("orders.new /qty", "orders.new /ref")),
        ),
        (b"orders.new", b'{"qty":4,"a":1,"b":1,"c":1,"d":1}', {}, None),
        (b"orders.old", b'{"qty":3}', {}, ("like_subjects", "orders.*")),
        (b"orders.old", b'{"qty":4}', {}, None),  # two options
        (b"orders.new.eu", b'{"qty":3}', {}, None),
        (b"other.new", b'{"qty":3}', {}, None),
        (b"orders.new", b"hey", {}, ("ignore_bodies", "orders.new")),
    ],
)
def test_the_narrowest_option_that_works(
    subject: bytes, body: bytes, given_already: dict[str, str], expected: object
) -> None:
    assert advice_on(ORDER, encode.pub(subject, body), options=read(given_already)) == expected


def test_a_frame_that_was_used_may_be_repeated() -> None:
    assert advice_on(ORDER, ORDER, ORDER) == ("repeat", "orders.new")
    again = read({"repeat": "orders.new"})
    assert not play(ORDER, ORDER, ORDER, options=again)
    assert advice_on(ORDER, ORDER, ORDER, options=read({"allow_repeats": False})) is None
    assert advice_on(b"SUB orders 1\r\n", b"SUB orders 1\r\n", b"SUB orders 2\r\n") is None


def test_an_option_does_not_bring_an_exchange_back() -> None:
    """The one that comes nearest was used: the form of its member helps nothing."""
    other = b'PUB orders.new 9\r\n{"qty":4}\r\n'
    assert advice_on(ORDER, ORDER, other) is None
    assert advice_on(ORDER, ORDER, b'PUB orders.old 9\r\n{"qty":3}\r\n') is None


def test_a_frame_of_another_client_is_accepted_from_one_of_its_name_alone() -> None:
    def advice(name: str) -> Advice | None:
        lines = [*hello(1, "a"), *hello(2, name), (1, ">", ORDER), (2, ">", b"PUB x 0\r\n\r\n")]
        played = Play(lines)
        played.open(2, name)
        played.send(2, b"PUB x 0\r\n\r\n")
        played.send(2, ORDER)
        (mismatch,) = played.machine.mismatches
        return mismatch.candidates[0].accepted

    assert advice("a") == ("match_on", "subject,headers,body")
    assert advice("b") is None


def test_a_frame_before_its_turn_is_accepted_without_the_order() -> None:
    first, second = b"PUB x 1\r\n1\r\n", b"PUB x 1\r\n2\r\n"
    strict = read({"match_on": "subject,body,client,order"})
    advice = advice_on(first + second, second, options=strict)
    assert advice == ("match_on", "subject,body,client")
    free = combine(strict, read({"match_on": "subject,body,client"}))
    assert not play(first + second, second, options=free)


@pytest.mark.parametrize(
    ("recorded", "live"),
    [
        (b"PUB $JS.API.STREAM.INFO.A _INBOX.1 0\r\n\r\n", b"PUB $JS.API.STREAM.INFO.B _INBOX.1 0\r\n\r\n"),
        (
            b'PUB $JS.API.STREAM.CREATE.A _INBOX.1 12\r\n{"name":"A"}\r\n',
            b'PUB $JS.API.STREAM.CREATE.A _INBOX.1 12\r\n{"name":"B"}\r\n',
        ),
        (b"PUB $JS.ACK.S.C.1.1.1.1.0 4\r\n+ACK\r\n", b"PUB $JS.ACK.S.C.1.1.1.1.0 4\r\n-NAK\r\n"),
        (b"PUB _INBOX.a.1 1\r\n1\r\n", b"PUB _INBOX.a.1 1\r\n2\r\n"),
    ],
)
def test_no_option_is_for_what_belongs_to_nats(recorded: bytes, live: bytes) -> None:
    assert advice_on(recorded, live) is None
