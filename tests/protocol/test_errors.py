"""The -ERR catalogue: exact texts, Go quoting, and taking a text apart."""

from __future__ import annotations

import random
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.protocol import errors
from tests.kit.servers import NatsServer
from tests.protocol.live import Client

QUOTED = [
    (b"foo.bar", '"foo.bar"'),
    (b"", '""'),
    (b'a"b', '"a\\"b"'),
    (b"a\\b", '"a\\\\b"'),
    (b"\xff", '"\\xff"'),
    (b"a\xc3b", '"a\\xc3b"'),
    (b"\x00\x01\x7f", '"\\x00\\x01\\x7f"'),
    (b"\a\b\f\v", '"\\a\\b\\f\\v"'),
    ("привет".encode(), '"привет"'),
    ("é😀".encode(), '"é😀"'),
    ("\u00a0".encode(), '"\\u00a0"'),
    ("\u200b".encode(), '"\\u200b"'),
    ("\u0085".encode(), '"\\u0085"'),
    ("\U000e0001".encode(), '"\\U000e0001"'),
    (b"<>&'", '"<>&\'"'),
]


@pytest.mark.parametrize(("raw", "text"), QUOTED)
def test_quote_is_go_q(raw: bytes, text: str) -> None:
    """Quoting is that of Go's %q, for odd bytes too."""
    assert errors.quote(raw) == text
    assert errors.unquote(text[1:-1]) == raw


@given(st.binary(max_size=30))
def test_unquote_undoes_quote(raw: bytes) -> None:
    """Any subject comes back from the text that quotes it."""
    assert errors.unquote(errors.quote(raw)[1:-1]) == raw


TEXTS = [
    (errors.publish_denied(b"foo"), 'Permissions Violation for Publish to "foo"', errors.PUBLISH_DENIED),
    (
        errors.publish_reply_denied(b"$JS.ACK.x"),
        'Permissions Violation for Publish with Reply of "$JS.ACK.x"',
        errors.PUBLISH_REPLY_DENIED,
    ),
    (
        errors.subscribe_denied(b"foo.>"),
        'Permissions Violation for Subscription to "foo.>"',
        errors.SUBSCRIBE_DENIED,
    ),
    (
        errors.subscribe_denied(b"foo", b"q"),
        'Permissions Violation for Subscription to "foo" using queue "q"',
        errors.SUBSCRIBE_DENIED,
    ),
    (
        errors.too_many_tokens(b"a.b.c.d"),
        'Permissions Violation for Subscription to "a.b.c.d", too many tokens',
        errors.TOO_MANY_TOKENS,
    ),
    (
        errors.subscription_revoked(b"foo", b"1"),
        'Permissions Violation for Subscription to "foo" (sid "1")',
        errors.SUBSCRIPTION_REVOKED,
    ),
    (
        errors.subscription_revoked(b"foo", b"1", b"q"),
        'Permissions Violation for Subscription to "foo" using queue "q" (sid "1")',
        errors.SUBSCRIPTION_REVOKED,
    ),
]


@pytest.mark.parametrize(("made", "text", "kind"), TEXTS)
def test_permission_texts(made: str, text: str, kind: errors.ErrorKind) -> None:
    """Each constructor makes the server's text, which classifies as its own row."""
    assert made == text
    assert errors.classify(text).kind is kind


def test_a_played_capture_adds_a_reason() -> None:
    text = errors.publish_denied(b"a") + ": not in the capture: /n: 1 recorded"
    assert errors.classify(text) == errors.ServerError(errors.PUBLISH_DENIED, b"a")


@given(st.binary(max_size=12), st.binary(max_size=12), st.binary(max_size=4))
def test_classify_extracts_the_quoted_names(subject: bytes, queue: bytes, sid: bytes) -> None:
    """Subject, queue and sid come back whatever their bytes, over the wire form too."""
    text = errors.subscription_revoked(subject, sid, queue)
    args = errors.err_frame(text)[len(b"-ERR ") :]
    assert errors.err_text(args) == text
    assert errors.classify(text) == errors.ServerError(errors.SUBSCRIPTION_REVOKED, subject, queue, sid)


@pytest.mark.parametrize(
    "kind", [kind for kind in errors.CATALOGUE if not kind.text.startswith("Permissions")]
)
def test_fixed_texts_classify_in_any_case(kind: errors.ErrorKind) -> None:
    """A fixed text is found whatever its letter case."""
    assert errors.classify(kind.text) == (kind, b"", b"", b"")
    assert errors.classify(kind.text.upper()).kind is kind


@pytest.mark.parametrize(
    "text", ["Parser Error", "", "Permissions Violation", 'Permissions Violation for Publish to "']
)
def test_an_unknown_text_is_other(text: str) -> None:
    """A text outside the catalogue is `other`, and fatal to both clients."""
    assert errors.classify(text).kind is errors.OTHER
    assert errors.OTHER.go is errors.OTHER.py is errors.Reaction.CLOSE


def test_names_are_unique() -> None:
    """Each row has a name of its own."""
    assert len({kind.name for kind in errors.CATALOGUE}) == len(errors.CATALOGUE)


@pytest.mark.parametrize(
    ("kind", "go", "py"),
    [
        (errors.STALE, "RECONNECT", "RECONNECT"),
        (errors.MAX_CONNECTIONS, "RECONNECT", "CLOSE"),
        (errors.MAX_SUBSCRIPTIONS, "REPORT", "CLOSE"),
        (errors.PUBLISH_DENIED, "REPORT", "REPORT"),
        (errors.AUTHORIZATION, "AUTH", "CLOSE"),
        (errors.INVALID_SUBJECT, "CLOSE", "CLOSE"),
    ],
)
def test_client_reactions(kind: errors.ErrorKind, go: str, py: str) -> None:
    """The rows say what the official clients do."""
    assert (kind.go.name, kind.py.name) == (go, py)


def test_frame() -> None:
    """The frame has single quotes and CRLF; a text without quotes reads the same."""
    assert errors.err_frame("Stale Connection") == b"-ERR 'Stale Connection'\r\n"
    assert (
        errors.err_text(b"Stale Connection") == errors.err_text(b" 'Stale Connection' ") == "Stale Connection"
    )


@pytest.mark.server
def test_quoting_equals_a_real_servers() -> None:
    """Denied publishes of odd subjects get the very text that `publish_denied` makes."""
    rng = random.Random(3)
    odd = [bytes(rng.choices(range(256), k=rng.randint(1, 12))) for _ in range(300)]
    known = [char for char in map(chr, range(0x80, 0xD800)) if unicodedata.category(char) != "Cn"]
    odd += [char.encode() for char in rng.sample(known, 300)]
    odd += [raw for raw, _ in QUOTED] + [b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xef\xbf\xbd", b"\xc0\x80"]
    subjects = [raw for raw in odd if raw and not set(raw) & set(b" \t\r\n")]
    config = 'authorization { users: [{user: u, password: x, permissions: {publish: {deny: ">"}}}] }'
    with NatsServer(config) as server, Client(server.port, user="u", **{"pass": "x"}) as client:
        for subject in (raw for raw in subjects if raw.replace(b".", b"") and not raw.startswith(b".")):
            answer = client.exchange(b"PUB %s 0\r\n\r\n" % subject)
            if answer:
                assert answer == errors.err_frame(errors.publish_denied(subject))
        assert client.exchange(b'PUB a"\xff 0\r\n\r\n') == errors.err_frame(errors.publish_denied(b'a"\xff'))


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        ('Permissions Violation for Publish to "a\\"b"', b'a"b'),
        ('Permissions Violation for Subscription to "a.>" using queue "q"', b"a.>"),
        ('we are closed: "orders" and "more"', b"orders"),
        ("Stale Connection", b""),
        ("we are closed", b""),
    ],
)
def test_the_subject_of_any_text(text: str, subject: bytes) -> None:
    """Also of one that a rule made up."""
    assert errors.subject_of(text) == subject
