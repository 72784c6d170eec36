"""Identifiers: recognised by shape, mapped as whole tokens."""

from __future__ import annotations

import random
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.protocol.identifiers import (
    IdentifierMap,
    Inbox,
    find_inbox,
    is_generated_consumer,
    is_nuid,
)

NUID = b"Zd7xPq2LrT0bY9mKcV4sWe"
OTHER = b"aB3dE6gH9jK2mN5pQ8sT1v"
BASE62 = string.digits + string.ascii_letters


def test_almost_every_nuid_is_known() -> None:
    """Of random nuids one in fifty at most is missed."""
    dice = random.Random(1)
    made = ["".join(dice.choices(BASE62, k=22)).encode() for _ in range(2000)]
    assert sum(map(is_nuid, made)) > 1960


def test_nuids_without_small_letters_are_known() -> None:
    """The digits of nats.js 2 are 36."""
    dice = random.Random(1)
    made = ["".join(dice.choices(BASE62[:10] + string.ascii_uppercase, k=22)).encode() for _ in range(2000)]
    assert sum(map(is_nuid, made)) > 1960


@pytest.mark.parametrize(
    "token",
    [
        b"averyveryverylongtoken",
        b"OrderProcessorServiceX",
        b"ABCDEFGHIJKLMNOPQRSTUV",
        b"ORDER7PROCESSORSERVICE",
        b"0123456789012345678901",
        b"a" * 21 + b"1",
        b"*",
        b"",
        NUID + b"x",
    ],
)
def test_words_are_no_nuids(token: bytes) -> None:
    """A word of 22 letters is not taken for one."""
    assert not is_nuid(token)


@pytest.mark.parametrize(
    ("token", "generated"),
    [
        (b"kX3vQz9a", True),
        (b"aBcDeFgH", True),
        (b"q8Zt1LmN", True),
        (NUID, True),
        (NUID + b"_12", True),
        (b"oc_" + NUID + b"_12", True),
        (b"oc_orders_1", False),
        (b"ac_" + NUID + b"_12", False),
        (b"consumer", False),
        (b"Consumer", False),
        (b"worker12", False),
        (b"workerEU", False),
        (b"12345678", False),
        (b"my-dur-1", False),
        (b"C", False),
    ],
)
def test_generated_consumers(token: bytes, generated: bool) -> None:
    """Chosen names are told from generated ones."""
    assert is_generated_consumer(token) is generated


@pytest.mark.parametrize(
    ("subject", "inbox"),
    [
        (b"_INBOX." + NUID, Inbox(b"_INBOX", NUID)),
        (b"_INBOX." + NUID + b".*", Inbox(b"_INBOX", NUID, b"*")),
        (b"_INBOX.x.y.z", Inbox(b"_INBOX", b"x", b"y.z")),
        (b"my.inbox." + NUID + b".abc", Inbox(b"my.inbox", NUID, b"abc")),
        (b"_INBOX_u." + NUID, Inbox(b"_INBOX_u", NUID)),
        (b"_INBOX.", None),
        (b"$O.b.C." + NUID, None),
        (b"orders.eu", None),
        (NUID, None),
    ],
)
def test_find_inbox(subject: bytes, inbox: Inbox | None) -> None:
    """Known prefixes by name, others by the nuid behind them."""
    assert find_inbox(subject) == inbox


def test_only_whole_tokens_are_mapped() -> None:
    """A token that merely contains an identifier stays."""
    names = IdentifierMap()
    names.bind(b"abc", b"xyz")
    assert names.map(b"abc.abcd.ABC.abc") == b"xyz.abcd.ABC.xyz"
    assert names.unmap(b"xyz.xyzd") == b"abc.xyzd"
    assert names.map(b"other") == b"other"


def test_the_longest_sequence_wins() -> None:
    """A bound ack subject goes as a whole, its numbers mean nothing elsewhere."""
    names = IdentifierMap()
    names.bind(b"$JS.ACK.S.C.1.2.3.4.5", b"$JS.ACK.S.D.1.9.8.7.6")
    names.bind(b"C", b"D")
    assert names.map(b"$JS.ACK.S.C.1.2.3.4.5") == b"$JS.ACK.S.D.1.9.8.7.6"
    assert names.map(b"$JS.ACK.S.C.1.2.3.4.4") == b"$JS.ACK.S.D.1.2.3.4.4"
    assert names.unmap(b"$JS.ACK.S.D.1.9.8.7.6") == b"$JS.ACK.S.C.1.2.3.4.5"


def test_rebinding_and_bounds() -> None:
    """The last binding holds both ways, and the oldest goes when there are too many."""
    names = IdentifierMap(limit=2)
    names.bind(b"a", b"x")
    names.bind(b"b", b"x")
    assert (names.map(b"a"), names.map(b"b"), names.unmap(b"x")) == (b"a", b"x", b"b")
    names.bind(b"b", b"y")
    assert names.unmap(b"x") == b"x"
    names.bind(b"c", b"z")
    names.bind(b"d", b"w")
    assert len(names) == 2
    assert names.map(b"b") == b"b"


def test_learn_from_two_forms_of_a_subject() -> None:
    """What differs is bound when it is generated, and nothing when it is not."""
    names = IdentifierMap()
    assert names.learn(b"_INBOX." + NUID + b".t1", b"_INBOX." + OTHER + b".t2")
    assert names.map(b"_INBOX." + NUID + b".*") == b"_INBOX." + OTHER + b".*"
    assert names.map(b"t1") == b"t2"
    assert names.learn(b"$JS.API.CONSUMER.INFO.S.kX3vQz9a", b"$JS.API.CONSUMER.INFO.S.q8Zt1LmN")
    assert names.map(b"kX3vQz9a") == b"q8Zt1LmN"
    before = len(names)
    assert not names.learn(b"orders.eu", b"orders.us")
    assert not names.learn(b"orders.eu", b"orders")
    assert names.learn(b"same", b"same")
    assert len(names) == before


def test_json_strings_are_mapped_and_other_bytes_kept() -> None:
    """Identifiers in values change, keys and spacing do not."""
    names = IdentifierMap()
    names.bind(b"abc", b"x<z")
    body = b'{ "abc": "abc", "s": ["in.abc.*", "abcd"], "n": 1e2, "e":"\\u003e"}'
    mapped = b'{ "abc": "x\\u003cz", "s": ["in.x\\u003cz.*", "abcd"], "n": 1e2, "e":"\\u003e"}'
    assert names.map_json(body) == mapped
    assert names.map_json(mapped, back=True) == body
    assert names.map_json(b"abc") == b"abc"
    assert names.map_json(b'{"k":"v"}') == b'{"k":"v"}'


TOKENS = st.sampled_from([b"a", b"b", b"c", b"d"])


@given(st.dictionaries(TOKENS, TOKENS), st.lists(TOKENS, min_size=1).map(b".".join))
def test_both_ways_agree(pairs: dict[bytes, bytes], subject: bytes) -> None:
    """Going there and back over bound tokens is where one began."""
    names = IdentifierMap()
    for recorded in pairs:
        names.bind(recorded, b"live-" + recorded)
    assert names.unmap(names.map(subject)) == subject
