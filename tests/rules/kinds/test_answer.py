"""Answers go to the client's own subscription, in the place of the request."""

from __future__ import annotations

import pytest

from natsproxy.errors import ConfigError
from natsproxy.protocol.connect import Connect
from natsproxy.wire.ops import C2S
from tests.rules.kit import FakeView, Wire


def wire(*lines: str, verbose: bool = False, headers: bool = True) -> Wire:
    text = "\n".join(["[[rules]]", 'name = "r"', 'kind = "answer"', *lines, ""])
    found = Wire(text, view=FakeView(connect=Connect(verbose=verbose, headers=headers)))
    found.c2s("SUB _INBOX.x.* 7")
    return found


def test_nobody_listens() -> None:
    decision = wire("status_code = 503").decide(C2S, "PUB a.b _INBOX.x.1 0\n")
    assert decision is not None
    assert decision.out == ()
    assert decision.answer == b"HMSG _INBOX.x.1 7 35 35\r\nNATS/1.0 503\r\nNats-Subject: a.b\r\n\r\n\r\n"


def test_a_pull_request_is_answered_with_a_status() -> None:
    pull = "PUB $JS.API.CONSUMER.MSG.NEXT.S.C _INBOX.x.1 1\n1"
    decision = wire('role = "pull"', "status_code = 409").decide(C2S, pull)
    assert decision is not None
    assert decision.answer.startswith(b"HMSG _INBOX.x.1 7 33 33\r\nNATS/1.0 409 Consumer Deleted\r\n\r\n")


def test_a_jetstream_error_is_json() -> None:
    line = 'error = { code = 503, err_code = 10047, description = "full" }'
    decision = wire(line, headers=False).decide(C2S, "PUB a _INBOX.x.1 0\n")
    assert decision is not None
    body = b'{"error":{"code":503,"err_code":10047,"description":"full"}}'
    assert decision.answer == b"MSG _INBOX.x.1 7 %d\r\n%s\r\n" % (len(body), body)


def test_a_verbose_client_gets_its_ok_first() -> None:
    decision = wire('body = "hi"', verbose=True).decide(C2S, "PUB a _INBOX.x.1 0\n")
    assert decision is not None
    assert (decision.answer, decision.ok) == (b"+OK\r\nMSG _INBOX.x.1 7 2\r\nhi\r\n", False)


@pytest.mark.parametrize("request_", ["PUB a 0\n", "PUB a elsewhere 0\n"])
def test_without_a_listener_the_frame_passes(request_: str) -> None:
    found = wire("status_code = 503")
    assert found.decide(C2S, request_) is None


def test_a_client_without_headers_gets_no_status() -> None:
    decision = wire("status_code = 503", headers=False).decide(C2S, "PUB a _INBOX.x.1 0\n")
    assert decision is not None
    assert (decision.out, decision.answer) == ((), b"")


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ((), "it needs one of"),
        (("status_code = 503", 'body = "x"'), "it needs one of"),
        (("status_code = 70000",), "status_code must be a status code of three digits"),
        (("error = { code = 3 }",), "error must have 'code'"),
        (('body = "x"', 'headers = { "a:b" = "c" }'), "headers is wrong"),
    ],
)
def test_nonsense_is_refused(lines: tuple[str, ...], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        wire(*lines)
