"""Subject templates: what is variable goes, what is a word stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.protocol.subjects import matches
from natsproxy.protocol.template import name_template, template

NUID = "Zd7xPq2LrT0bY9mKcV4sWe"

CASES = [
    ("orders.eu", "orders.eu"),
    ("Orders.EU.New", "Orders.EU.New"),
    ("orders.eu.1234", "orders.eu.*"),
    ("orders.-5.+7", "orders.*.*"),
    ("v1.orders.x2", "v1.orders.x2"),
    ("user.123e4567-e89b-12d3-a456-426614174000.login", "user.*.login"),
    ("user.123E4567-E89B-12D3-A456-426614174000", "user.*"),
    ("commit.deadbeef", "commit.deadbeef"),
    ("commit.deadbee7", "commit.*"),
    ("commit.DEADBEE7", "commit.*"),
    ("commit.d41d8cd98f00b204e9800998ecf8427e", "commit.*"),
    ("commit.abc12", "commit.abc12"),
    ("device-17.up", "*.up"),
    ("user_42", "*"),
    ("orders.O-10023.paid", "orders.*.paid"),
    ("pods.pod-7f9c4d.ready", "pods.*.ready"),
    ("pods.web-7d4b9c-x7k2p", "pods.*"),
    ("pods.POD-7F9C", "pods.*"),
    ("order12345.sha256.x", "*.*.x"),
    ("20240102T0930.a", "*.a"),
    ("user:42.user=7", "*.*"),
    ("a.b-.1-c", "a.b-.1-c"),
    ("v1.s3.http2.md5.e2e", "v1.s3.http2.md5.e2e"),
    ("orders-v2.test-e2e.view-3d", "orders-v2.test-e2e.view-3d"),
    ("user-feed.dead-beef.pod-7F9c", "user-feed.dead-beef.pod-7F9c"),
    (f"_INBOX.{NUID}", "_INBOX.*"),
    (f"_INBOX.{NUID}.aBcD1234", "_INBOX.*.*"),
    ("_INBOX.any.thing", "_INBOX.*.*"),
    (f"my.box.{NUID}.tok", "my.box.*.*"),
    (f"$O.bucket.C.{NUID}", "$O.bucket.C.*"),
    ("$KV.bucket.key.name", "$KV.bucket.key.name"),
    ("averyveryverylongtoken.x", "averyveryverylongtoken.x"),
    ("$JS.ACK.S.C.1.5.6.1700000000000000000.7", "$JS.ACK.S.C.*.*.*.*.*"),
    ("$JS.ACK.S.kX3vQz9a.1.5.6.17.7", "$JS.ACK.S.*.*.*.*.*.*"),
    ("$JS.ACK.hub.szMpdrwD.S.C.1.5.6.17.7", "$JS.ACK.hub.*.S.C.*.*.*.*.*"),
    ("$JS.FC.S.C.a1B2", "$JS.FC.S.C.*"),
    ("$JS.API.CONSUMER.INFO.S.kX3vQz9a", "$JS.API.CONSUMER.INFO.S.*"),
    ("$JS.API.CONSUMER.INFO.S.consumer", "$JS.API.CONSUMER.INFO.S.consumer"),
    ("$JS.API.CONSUMER.CREATE.S.kX3vQz9a.orders.17", "$JS.API.CONSUMER.CREATE.S.*.orders.*"),
    (f"$JS.API.CONSUMER.MSG.NEXT.S.{NUID}_3", "$JS.API.CONSUMER.MSG.NEXT.S.*"),
    (f"$JS.API.CONSUMER.CREATE.S.oc_{NUID}_3.$KV.b.>", "$JS.API.CONSUMER.CREATE.S.*.$KV.b.>"),
    (f"orders.oc_{NUID}_3.new", "orders.*.*"),
    ("$JS.API.STREAM.INFO.orders", "$JS.API.STREAM.INFO.orders"),
    ("$JS.API.STREAM.INFO.orders-2024", "$JS.API.STREAM.INFO.orders-2024"),
    ("$JS.ACK.orders-2024.worker-3.1.5.6.17.7", "$JS.ACK.orders-2024.*.*.*.*.*.*"),
    ("$JS.API.DIRECT.GET.KV_B.$KV.B.7", "$JS.API.DIRECT.GET.KV_B.$KV.B.*"),
    ("$JS.EVENT.ADVISORY.CONSUMER.CREATED.S.kX3vQz9a", "$JS.EVENT.ADVISORY.CONSUMER.CREATED.S.*"),
    ("a.*.>", "a.*.>"),
    ("a.\u00e9.7", "a.\u00e9.*"),
    ("", ""),
    ("..1", "..*"),
]


@pytest.mark.parametrize(("subject", "expected"), CASES)
def test_template(subject: str, expected: str) -> None:
    """Each part of the rule, by example; and a template is its own template."""
    made = template(subject.encode())
    assert made == expected.encode()
    assert template(made) == made


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        ("$JS.API.CONSUMER.CREATE.LOG.readers.log.readers", "$JS.API.CONSUMER.CREATE.LOG.*.log.readers"),
        ("$JS.API.STREAM.INFO.JOBS", "$JS.API.STREAM.INFO.*"),
        ("$JS.ACK.JOBS.readers.1.5.6.17.7", "$JS.ACK.*.*.*.*.*.*.*"),
        ("$JS.FC.LOG.readers.a1B2", "$JS.FC.LOG.*.*"),
        ("$JS.EVENT.ADVISORY.CONSUMER.CREATED.LOG.readers", "$JS.EVENT.ADVISORY.CONSUMER.CREATED.LOG.*"),
        ("JOBS.readers", "JOBS.readers"),
    ],
)
def test_names_of_streams_and_consumers_that_are_known_to_be_generated(subject: str, expected: str) -> None:
    assert template(subject.encode(), {b"readers", b"JOBS"}) == expected.encode()


TOKENS = st.sampled_from(
    [
        b"$JS",
        b"ACK",
        b"FC",
        b"API",
        b"CONSUMER",
        b"CREATE",
        b"EVENT",
        b"7",
        NUID.encode(),
        b"*",
        b">",
        b"kX3vQz9a",
        b"_INBOX",
        b"w",
        b"orders-17",
    ]
)
PART = st.text("0123456789abcdefgABCDEFGz", max_size=10)


def is_number_or_id(part: str, least: int) -> bool:
    """The written rule, word by word: digits, or hexadecimal of one letter case with digits and letters."""
    letters = set(part) - set("0123456789")
    if not letters:
        return part != ""
    one_case = letters <= set("abcdef") or letters <= set("ABCDEF")
    return one_case and letters != set(part) and len(part) >= least


@given(st.lists(PART, min_size=1, max_size=4), st.sampled_from("-_:+=/*"))
def test_variable_tokens_become_stars(parts: list[str], separator: str) -> None:
    """Three digits in a row, a number or a longer id alone, a number or an id behind a separator."""
    token = separator.join(parts)
    in_a_row = any(token[at : at + 3].isdigit() for at in range(len(token) - 2))
    alone = len(parts) == 1 and is_number_or_id(token, 8)
    variable = in_a_row or alone or any(is_number_or_id(part, 4) for part in parts[1:])
    assert template(f"a.{token}".encode()) == (b"a.*" if variable else f"a.{token}".encode())


@given(st.lists(TOKENS, min_size=1, max_size=12).map(b".".join) | st.binary(max_size=40))
def test_idempotent_and_covering(subject: bytes) -> None:
    """Any subject: its template is stable, keeps the tokens' number, and matches it where it can."""
    made = template(subject)
    assert template(made) == made
    assert made.count(b".") == subject.count(b".")
    if matches(b">", subject) and b">" not in subject.split(b"."):
        assert matches(made, subject)


def test_words_come_back_as_they_are() -> None:
    """A subject without anything variable is not even copied."""
    subject = b"orders.eu.created"
    assert template(subject) is subject


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("worker", "worker"),
        ("", ""),
        ("worker-6f1c2a34-9d0e-4a11-bbcd-abcdefabcdef", "worker-*"),
        ("worker-12", "worker-*"),
        ("4711", "*"),
        ("host.example.org:8080 (pid 77)", "host.example.org:* (pid *)"),
        ("orders_7f9c4d_v2", "orders_*_v2"),
        ("billing order12345", "billing *"),
        ("v1 s3 http2 Test-E2E", "v1 s3 http2 Test-E2E"),
        ("Zähler-3", "Zähler-*"),
        ("a-" + "QxL5xkBpbrYsp0ZLSlZTiT", "a-*"),
    ],
)
def test_template_of_a_client_s_name(name: str, expected: str) -> None:
    """The generated parts go, the words stay; and a template is its own template."""
    assert name_template(name) == expected
    assert name_template(expected) == expected
