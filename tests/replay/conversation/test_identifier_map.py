"""Recorded and live values: identifiers are one to one, times are not, and what is known is put in."""

from __future__ import annotations

import base64
import hashlib
import random
import string

import pytest

from natsproxy.replay.conversation.identifier_map import IdentifierMap, LearnedPairs, masked

R1, R2, L1, L2 = (f"{letter * 20}{n}x".encode() for letter, n in (("A", 1), ("B", 2), ("C", 3), ("D", 4)))
UUID1, UUID2, UUID3 = (b"%c23e4567-e89b-12d3-a456-42661417400%c" % (n, n) for n in b"123")
ULID1, ULID2 = b"01ARZ3NDEKTSV4RRFFQ69G5FAV", b"01HX5Z7M3Q9A8B6C4D2E0F1G3H"
HEX1, HEX2 = b"4bf92f3577b34da6", b"00f067aa0ba902b7"
DIGEST1, DIGEST2 = (base64.urlsafe_b64encode(hashlib.sha256(one).digest()) for one in (b"1", b"2"))
NANO1, NANO2 = b"V1StGXR8_Z5jdHi6B-myT", b"3kTMd6xq-uVJ0_bWnP1aY"


def known(recorded: bytes = b"", live: bytes = b"") -> IdentifierMap:
    """Return a map, which knows that pair if there is one."""
    made = IdentifierMap()
    if recorded:
        assert unify(made, recorded, live)
    return made


def unify(identifiers: IdentifierMap, recorded: bytes, live: bytes) -> bool:
    """Compare two texts, and learn from them if they agree."""
    new = LearnedPairs()
    agree = identifiers.unify(recorded, live, new, "here")
    if agree:
        identifiers.learn(new)
    return agree


def subjects(identifiers: IdentifierMap, recorded: bytes, live: bytes, *, reply: bool = False) -> int:
    """Do the same with subjects."""
    new = LearnedPairs()
    token = identifiers.unify_subject(recorded, live, new, reply=reply)
    if not token:
        identifiers.learn(new)
    return token


@pytest.mark.parametrize(
    ("recorded", "live"),
    [
        (R1, L1),
        (UUID1, UUID2),
        (ULID1, ULID2),
        (HEX1, HEX2),
        (NANO1, NANO2),
        (b"KFPMWPTH81WACRTLJTNDE5", b"ABIGH851NPMJRJMQLHUEJO"),
        (b"175928847299117063", b"981015603606036999"),
        (b"order-%b" % UUID1, b"order-%b" % UUID2),
        (b"oc_%b_1" % R1, b"oc_%b_1" % L1),
        (b"00-%b%b-%b-01" % (HEX1, HEX1, HEX1), b"00-%b%b-%b-01" % (HEX2, HEX2, HEX2)),
        (b"job %b of %b" % (UUID1, R1), b"job %b of %b" % (UUID2, L1)),
        (b"14695981039346656037", b"1099511628211147319"),
        (b"SHA-256=" + DIGEST1, b"SHA-256=" + DIGEST2),
        (base64.urlsafe_b64encode(b"report " + UUID1), base64.urlsafe_b64encode(b"report " + UUID2)),
    ],
)
def test_generated_identifiers_are_learned_and_put_in(recorded: bytes, live: bytes) -> None:
    identifiers = known(recorded, live)
    assert identifiers.to_live(b'{"text": "id %b."}' % recorded) == b'{"text": "id %b."}' % live
    assert identifiers.to_live(b"https://host/x/%b/y" % recorded) == b"https://host/x/%b/y" % live
    assert identifiers.to_recorded(b"a.%b.b" % live) == b"a.%b.b" % recorded
    assert unify(identifiers, recorded, live)


@pytest.mark.parametrize(
    ("recorded", "live"),
    [
        (b"2026-01-01T00:00:00Z", b"2026-11-22T12:34:56Z"),
        (b"2026-01-01T00:00:00.5+00:00", b"2026-11-22T12:34:56.123456+00:00"),
        (b"2026-01-01 00:00:00.123", b"2026-11-22 12:34:56.456"),
        (b"1790000000.25", b"1791234567.1234567"),
        (b"20260101120000123", b"20261122010203999"),
        (b"1790000000123", b"1791234567123"),
        (b"1790000000123456789", b"1791234567123456789"),
        (b"Sun, 22 Nov 2026 12:00:00 GMT", b"Mon, 23 Nov 2026 01:02:03 GMT"),
    ],
)
def test_times_are_no_pairs(recorded: bytes, live: bytes) -> None:
    identifiers = known(b"at %b" % recorded, b"at %b" % live)
    if b" " not in recorded:
        assert identifiers.to_live(b"seen " + recorded) == b"seen " + live
    assert unify(identifiers, recorded, recorded)
    assert unify(identifiers, live, recorded)


@pytest.mark.parametrize(
    ("recorded", "live"),
    [
        (b"3", b"4"),
        (b"1000000001", b"1000000002"),
        (b"4111111111111111", b"4242424242424242"),
        (b"OrderProcessorServiceX", b"OrderProcessorServiceY"),
        (b"OrderProcessorService1", b"OrderProcessorService2"),
        (b"customer-created-events", b"customer-deleted-events"),
        (b"2026-01-01", b"2026-01-02"),
        (b"SGVsbG8gd29ybGQgMTIz", b"QW5vdGhlciB0ZXh0IDQ1"),
        (b"order-%b" % UUID1, b"order_%b" % UUID2),
        (b"order-%b" % UUID1, b"other-%b" % UUID2),
        (b"customer-9f8E7d6C5b4A3z2Y1xWv0U", b"supplier-1q2W3e4R5t6Y7u8I9o0PaS"),
        (b"cus-9f8E7d6C5b4A3z2Y1xWv0U", b"sup-1q2W3e4R5t6Y7u8I9o0PaS"),
        (b"cus-3f2504e0-4f89-41d3-9a0c-0305e82c3301", b"sup-9ac1b2d3-0000-4abc-8def-112233445566"),
        (b"cus_3f2504e0-4f89-41d3-9a0c-0305e82c3301", b"cus-9ac1b2d3-0000-4abc-8def-112233445566"),
        (UUID1, R1),
        (UUID1, UUID2.replace(b"-", b"")),
        (UUID1, b"2026-01-01T00:00:00Z"),
    ],
)
def test_data_is_not_learned(recorded: bytes, live: bytes) -> None:
    assert not unify(known(), recorded, live)


def test_identifiers_are_one_to_one() -> None:
    identifiers = known(UUID1, UUID2)
    assert not unify(identifiers, UUID1, UUID3)
    assert not unify(identifiers, UUID3, UUID2)
    assert not identifiers.unify(b"%b %b" % (R1, R2), b"%b %b" % (L1, L1), LearnedPairs(), "here")
    assert not identifiers.unify(b"%b %b" % (R1, R1), b"%b %b" % (L1, L2), LearnedPairs(), "here")


def test_an_identifier_that_did_not_change_stands_for_itself() -> None:
    identifiers = known(b"id %b" % UUID1, b"id %b" % UUID1)
    assert not unify(identifiers, UUID2, UUID1)
    assert not unify(identifiers, UUID1, UUID2)


def test_a_conflict_is_explained() -> None:
    identifiers = known(UUID1, UUID2)
    assert (
        identifiers.conflict(UUID1, UUID3)
        == "123e4567... was recorded before, where this run sent 223e4567..."
    )
    assert identifiers.conflict(UUID3, UUID2) == "223e4567... was sent before, where 123e4567... was recorded"
    assert identifiers.conflict(UUID3, R1) == ""


def test_a_lesson_counts_when_it_is_learned() -> None:
    identifiers, new = IdentifierMap(), LearnedPairs()
    assert identifiers.unify(UUID1, UUID2, new, "/id")
    assert identifiers.to_live(UUID1) == UUID1
    assert new.places == [("/id", UUID1, UUID2)]
    identifiers.learn(new)
    assert identifiers.to_live(UUID1) == UUID2
    identifiers.forget(new)
    assert identifiers.to_live(UUID1) == UUID1


def test_what_may_not_be_learned_has_to_be_equal_or_known() -> None:
    identifiers = known(UUID1, UUID2)
    assert identifiers.unify(UUID1, UUID2, LearnedPairs(), "here", learn=False)
    assert not identifiers.unify(R1, L1, LearnedPairs(), "here", learn=False)


def test_masked_subjects_are_equal_where_they_can_agree() -> None:
    assert masked(b"_INBOX." + R1 + b".abc") == masked(b"_INBOX." + L1 + b".xyz") == b"_INBOX.*.*"
    assert masked(b"svc." + R1) == b"svc.*"
    assert masked(b"a.order-%b.b" % UUID1) == masked(b"a.order-%b.b" % UUID2)
    assert masked(b"a." + NANO1) == masked(b"a." + NANO2)
    assert masked(b"$JS.API.CONSUMER.CREATE.S.vRhLd0vB") == masked(b"$JS.API.CONSUMER.CREATE.S.aB3dE6gH")
    assert masked(b"orders.new.paid") == b"orders.new.paid"


def test_a_pair_of_inboxes_is_learned_once_and_holds() -> None:
    identifiers = IdentifierMap()
    assert not subjects(identifiers, b"_INBOX." + R1 + b".t1", b"_INBOX." + L1 + b".u1")
    assert not subjects(identifiers, b"_INBOX." + R1, b"_INBOX." + L1)
    assert subjects(identifiers, b"_INBOX." + R1, b"_INBOX." + L2) == 2
    assert subjects(identifiers, b"_INBOX." + R2, b"_INBOX." + L1) == 2
    assert subjects(identifiers, b"_INBOX." + R1 + b".t1", b"_INBOX." + L1 + b".u2") == 3
    assert identifiers.to_live(b"_INBOX." + R1 + b".t1") == b"_INBOX." + L1 + b".u1"
    assert identifiers.to_live(b"$JS.ACK.stream.t1.1") == b"$JS.ACK.stream.t1.1"


def test_short_tokens_behind_an_identifier_of_a_reply_are_generated() -> None:
    identifiers = IdentifierMap()
    assert subjects(identifiers, b"mine." + R1 + b".abc", b"mine." + L1 + b".xyz") == 3
    assert not subjects(identifiers, b"mine." + R1 + b".abc", b"mine." + L1 + b".xyz", reply=True)
    assert not subjects(identifiers, b"mine." + R1 + b".abc", b"mine." + L1 + b".xyz")


def test_names_of_consumers_are_learned_in_the_api() -> None:
    identifiers = IdentifierMap()
    ours, theirs = b"$JS.API.CONSUMER.CREATE.ORDERS.vRhLd0vB", b"$JS.API.CONSUMER.CREATE.ORDERS.aB3dE6gH"
    assert not subjects(identifiers, ours, theirs)
    assert identifiers.to_live(b'"name":"vRhLd0vB"') == b'"name":"aB3dE6gH"'
    assert (
        subjects(identifiers, b"$JS.API.CONSUMER.INFO.S.payments", b"$JS.API.CONSUMER.INFO.S.invoices") == 6
    )


def test_a_recorded_identifier_may_come_back_literally() -> None:
    identifiers = known(R1, L1)
    assert not subjects(identifiers, b"$O.b.C." + R1, b"$O.b.C." + R1)


def test_identifiers_that_a_client_was_sent_stand_for_themselves() -> None:
    identifiers = IdentifierMap()
    identifiers.keep_literal(b"_INBOX." + R1 + b".t1")
    identifiers.keep_literal(b'{"id":"%b"}' % UUID1)
    assert subjects(identifiers, b"_INBOX." + R1 + b".t1", b"_INBOX." + R1 + b".t2") == 3
    assert not unify(identifiers, UUID1, UUID2)
    assert not unify(identifiers, UUID2, UUID1)


def test_wildcards_and_ordinary_tokens_agree_with_themselves_only() -> None:
    identifiers = IdentifierMap()
    assert subjects(identifiers, b"_INBOX.a.*", b"_INBOX.b.c") == 3
    assert subjects(identifiers, b"a.b", b"a.c") == 2
    assert subjects(identifiers, b"a.b", b"a.b.c") == 3


def test_text_is_mapped_in_whole_words() -> None:
    identifiers = known(R1, L1)
    text = b'{"deliver_subject":"_INBOX.%b","other":"x%b"}'
    assert identifiers.to_live(text % (R1, R1)) == text % (L1, R1)


def test_the_map_is_bounded_and_forgets_unused_pairs() -> None:
    identifiers = IdentifierMap(limit=10)
    assert unify(identifiers, UUID1, UUID2)
    for n in range(50):
        assert unify(identifiers, b"%08x" % n + UUID1[8:], b"%08x" % (n + 1000) + UUID1[8:])
        assert unify(identifiers, UUID1, UUID2)
    assert len(identifiers) == 10


HEX, UPPER, LOWER = string.hexdigits[:16], string.ascii_uppercase, string.ascii_lowercase
BASE62 = string.digits + UPPER + LOWER


@pytest.mark.parametrize(
    ("letters", "length", "around"),
    [
        (BASE62, 22, "order-%s"),
        (string.digits + UPPER, 22, "oc_%s_1"),
        ("0123456789ABCDEFGHJKMNPQRSTVWXYZ", 24, "order-01%s"),
        (BASE62, 26, "2%s"),
        (BASE62, 23, "ch_3%s"),
        (BASE62 + "-_", 21, "%s"),
        (BASE62 + "-_", 43, "%s"),
        (BASE62 + "+/", 22, "%s=="),
        (HEX, 16, "job.%s"),
        (HEX, 22, "67%s"),
        ("0123456789abcdefghijklmnopqrstuv", 19, "c%s"),
        (LOWER + string.digits, 24, "c%s"),
        (string.digits, 17, "91%s"),
    ],
    ids=str,
)
def test_the_identifiers_of_many_runs_are_all_learned(letters: str, length: int, around: str) -> None:
    """About one in a thousand is missed, and none of these."""
    dice = random.Random(11)
    for _ in range(200):
        recorded, live = ((around % "".join(dice.choices(letters, k=length))).encode() for _ in range(2))
        text = b'{"id":"%b","n":1}'
        assert known(recorded, live).to_live(text % recorded) == text % live
