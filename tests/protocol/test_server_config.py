"""nats-server's configuration language: each form of a value, mistakes, and the server's own opinion."""

from __future__ import annotations

from typing import Any

import pytest

from natsproxy.errors import ConfigError, NatsproxyError
from natsproxy.protocol.server_config import parse_server_config
from natsproxy.testing import NatsServer

ROWS: list[tuple[str, dict[str, Any]]] = [
    ("", {}),
    ("a: b\nc = d\ne f", {"a": "b", "c": "d", "e": "f"}),
    ("a: 1, b: -2; c: 1k", {"a": 1, "b": -2, "c": "1k"}),
    ("a: true\nb: off", {"a": True, "b": False}),
    ("a {b {c: 1}}", {"a": {"b": {"c": 1}}}),
    ("a: [b, c\n d # e\n]", {"a": ["b", "c", "d"]}),
    ("a: [{b: 1}, {b: 2}]", {"a": [{"b": 1}, {"b": 2}]}),
    ("# x\n// y\na: nats://h:1 // z", {"a": "nats://h:1"}),
    ("a: \"b # c\"\n'd': 'e \"f\"'", {"a": "b # c", "d": 'e "f"'}),
    (r'a: "\x41\t\"\\"', {"a": 'A\t"\\'}),
    ("a: (\nb\nc\n)\nd: 1", {"a": "b\nc", "d": 1}),
    ("X: [a.>]\nb: {c: $X}", {"X": ["a.>"], "b": {"c": ["a.>"]}}),
    ("a: {X: 1, b: {c: $X}}\nd: $X", {"a": {"X": 1, "b": {"c": 1}}, "d": "$X"}),
    ("a: [_INBOX.>, *.b.*]", {"a": ["_INBOX.>", "*.b.*"]}),
    ("a{b:c}", {"a": {"b": "c"}}),
]


@pytest.mark.parametrize(("text", "found"), ROWS, ids=[text for text, _ in ROWS])
def test_a_form(text: str, found: dict[str, Any]) -> None:
    assert parse_server_config(text) == found


WRONG = [
    ("a: {b: 1", "line 1: no '}'"),
    ("a: 1\nb: [1", "line 2: no ']'"),
    ("a: 1\n}", "line 2: no key"),
    ("a:", "line 1: no value"),
    ("include x", "line 1: a file that cannot be included: 'x'"),
    ("a: " + "{a: " * 99, "line 1: maps in more than 50 others"),
]


@pytest.mark.parametrize(("text", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_mistake_has_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_server_config(text)
    assert str(error.value) == message


def test_an_include_is_read_in_its_place() -> None:
    files = {"users.conf": "users: [$ONE]"}
    text = "ONE: ann\nauthorization { include 'users.conf' }"
    assert parse_server_config(text, files.__getitem__)["authorization"] == {"users": ["ann"]}


SERVED = """
DEFAULT = { publish = ["a.>", 'b.*'], subscribe: { allow: _INBOX.>, deny: "x y" } }  # of all
authorization: {
  // two users
  default_permissions: $DEFAULT
  users = [
    {user: ann, password: "a\\x62"}, {user: "bob", password: 'b"c',
      permissions: { pub: c.d, allow_responses: { max: 2, expires: "1m" } } }
  ]
}
max_payload: 1MB; debug: off
"""


@pytest.mark.server
def test_the_server_reads_the_same_text() -> None:
    with NatsServer(SERVED):
        users = parse_server_config(SERVED)["authorization"]["users"]
    assert [(one["user"], one["password"]) for one in users] == [("ann", "ab"), ("bob", 'b"c')]
    with pytest.raises(NatsproxyError), NatsServer("authorization: { users = [ {user: ann "):
        pass
