"""Identifiers unify one to one, as whole tokens."""

from __future__ import annotations

import pytest

from natsproxy.replay.conversation.identifier_map import IdentifierMap, is_identifier, masked

R1, R2, L1, L2 = (f"{letter * 20}{n}x".encode() for letter, n in (("A", 1), ("B", 2), ("C", 3), ("D", 4)))


@pytest.mark.parametrize(
    ("token", "generated"),
    [
        (b"ABCDEFGHIJKLMNOPQRSTU1", True),
        (b"ABCDEFGHIJKLMNOPQRSTU1beef", True),
        (b"ABCDEFGHIJKLMNOPQRSTU1_12", True),
        (b"oc_ABCDEFGHIJKLMNOPQRSTU1_12", True),
        (b"123e4567-e89b-12d3-a456-426614174000", True),
        (b"orders", False),
        (b"ABCDEFGHIJKLMNOPQRSTU", False),
    ],
)
def test_generated_tokens_are_known_by_their_shape(token: bytes, generated: bool) -> None:
    assert is_identifier(token) is generated


def test_masked_subjects_are_equal_where_they_can_be_unified() -> None:
    assert masked(b"_INBOX." + R1 + b".abc") == masked(b"_INBOX." + L1 + b".xyz") == b"_INBOX.*.*"
    assert masked(b"svc." + R1) == b"svc.*"
    assert masked(b"orders.new") == b"orders.new"


def test_a_pair_is_learned_once_and_holds() -> None:
    known = IdentifierMap()
    new: dict[bytes, bytes] = {}
    assert known.unify(b"_INBOX." + R1 + b".t1", b"_INBOX." + L1 + b".u1", new)
    known.learn(new)
    assert known.unify(b"_INBOX." + R1, b"_INBOX." + L1, {})
    assert not known.unify(b"_INBOX." + R1, b"_INBOX." + L2, {})
    assert not known.unify(b"_INBOX." + R2, b"_INBOX." + L1, {})
    assert known.to_live(b"_INBOX." + R1 + b".t1") == b"_INBOX." + L1 + b".u1"


def test_a_recorded_identifier_may_come_back_literally() -> None:
    known = IdentifierMap()
    known.learn({R1: L1})
    assert known.unify(b"$O.b.C." + R1, b"$O.b.C." + R1, {})


def test_literal_identifiers_stand_for_themselves() -> None:
    known = IdentifierMap()
    known.keep_literal(b"_INBOX." + R1 + b".t1")
    assert not known.unify(b"_INBOX." + R1 + b".t1", b"_INBOX." + R1 + b".t2", {})


def test_strict_learns_nothing() -> None:
    new: dict[bytes, bytes] = {}
    assert not IdentifierMap().unify(b"x." + R1, b"x." + L1, new, strict=True)
    assert new == {}


def test_wildcards_and_ordinary_tokens_unify_with_themselves_only() -> None:
    known = IdentifierMap()
    assert not known.unify(b"_INBOX.a.*", b"_INBOX.b.c", {})
    assert not known.unify(b"a.b", b"a.c", {})
    assert not known.unify(b"a.b", b"a.b.c", {})


def test_json_text_is_mapped_in_whole_words() -> None:
    known = IdentifierMap()
    known.learn({R1: L1})
    text = b'{"deliver_subject":"_INBOX.%b","other":"x%b"}' % (R1, R1)
    assert known.text_to_live(text) == b'{"deliver_subject":"_INBOX.%b","other":"x%b"}' % (L1, R1)


def test_json_text_maps_names_that_are_built_of_an_identifier() -> None:
    known = IdentifierMap()
    recorded, live = b"oc_%b_1" % R1, b"oc_%b_1" % L1
    known.learn({recorded: live})
    assert known.text_to_live(b'{"name":"%b"}' % recorded) == b'{"name":"%b"}' % live
    assert known.text_to_recorded(b'{"name":"%b"}' % live) == b'{"name":"%b"}' % recorded


def test_the_map_is_bounded_and_forgets_unused_pairs() -> None:
    known = IdentifierMap(limit=10)
    known.learn({b"keep": b"kept"})
    for n in range(50):
        known.learn({b"r%d" % n: b"l%d" % n})
        assert known.to_live(b"_INBOX.keep") == b"_INBOX.kept"
    assert len(known) == 10
