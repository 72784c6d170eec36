"""Subjects inside JetStream API bodies and API subjects."""

from __future__ import annotations

import json

import pytest

from natsproxy.rules.rewriting.jetstream_api import translate_api_subject, translate_body


def mark(subject: bytes) -> bytes:
    return b"t." + subject


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        (b"$JS.API.CONSUMER.CREATE.S.C.a.>", b"$JS.API.CONSUMER.CREATE.S.C.t.a.>"),
        (b"$JS.hub.API.CONSUMER.CREATE.S.C.a", b"$JS.hub.API.CONSUMER.CREATE.S.C.t.a"),
        (b"$JS.API.CONSUMER.CREATE.S.C", b"$JS.API.CONSUMER.CREATE.S.C"),
        (b"$JS.API.CONSUMER.DURABLE.CREATE.S.C", b"$JS.API.CONSUMER.DURABLE.CREATE.S.C"),
        (b"$JS.API.DIRECT.GET.S.a.b", b"$JS.API.DIRECT.GET.S.t.a.b"),
        (b"$JS.API.DIRECT.GET.S", b"$JS.API.DIRECT.GET.S"),
        (b"$JS.API.STREAM.INFO.S", b"$JS.API.STREAM.INFO.S"),
        (b"other.a", b"other.a"),
    ],
)
def test_the_tail_of_some_api_subjects_is_a_subject(subject: bytes, expected: bytes) -> None:
    assert translate_api_subject(subject, mark) == expected


def test_configurations_are_translated_at_any_depth() -> None:
    body = {
        "config": {
            "name": "S",
            "subjects": ["a"],
            "republish": {"src": "a", "dest": "b"},
            "deliver_subject": "d",
            "sources": [{"name": "X", "filter_subject": "f"}],
            "description": "subject a",
        },
        "state": {"subjects": {"a": 1}},
    }
    found = json.loads(translate_body(json.dumps(body).encode(), mark))
    assert found["config"]["republish"] == {"src": "t.a", "dest": "t.b"}
    assert found["config"]["sources"] == [{"name": "X", "filter_subject": "t.f"}]
    assert (found["config"]["deliver_subject"], found["config"]["description"]) == ("t.d", "subject a")
    assert found["state"]["subjects"] == {"t.a": 1}


@pytest.mark.parametrize(
    "body", [b"", b"[1]", b"{broken", b'{"name":"S"}', b'{"filter_subject":""}', b"{" * 9000]
)
def test_a_body_without_a_subject_keeps_its_bytes(body: bytes) -> None:
    assert translate_body(body, mark) == body
