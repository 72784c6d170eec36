"""Identifiers are recognised by their shape."""

from __future__ import annotations

import random
import string

import pytest

from natsproxy.protocol.identifiers import (
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
    rng = random.Random(1)
    made = ["".join(rng.choices(BASE62, k=22)).encode() for _ in range(2000)]
    assert sum(map(is_nuid, made)) > 1960


def test_nuids_without_small_letters_are_known() -> None:
    """The digits of nats.js 2 are 36."""
    rng = random.Random(1)
    made = ["".join(rng.choices(BASE62[:10] + string.ascii_uppercase, k=22)).encode() for _ in range(2000)]
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
