"""Spans of conversations: where they begin and end, and which one is below which."""

from __future__ import annotations

from pathlib import Path

import pytest

from natsproxy import bounded
from natsproxy.capture.read.frames import Query
from natsproxy.protocol.traceparent import SpanContext
from natsproxy.traces import spans as traced
from natsproxy.units import MILLISECOND
from natsproxy.wire.ops import S2C
from tests.check.kit import HEAD
from tests.traces.kit import shown, spans

INBOX = "_INBOX.oMssyhzujTKOBAXWf1wuAX"
OPENED = "".join(
    f'{one} opened\n{one} > CONNECT {{"verbose":false,"headers":true,"no_responders":true,"name":"{name}"}}\n'
    for one, name in (("a", "asker"), ("b", "worker"))
)
ASK = f"a > SUB {INBOX}.* 1\nb > SUB quotes 1\na > PUB quotes {INBOX}.1\n  | acme\n"
STORED = (
    f"a > SUB {INBOX}.* 1\na > PUB s.new {INBOX}.1\n  | one\n@ +0.002s\n"
    f'a < MSG {INBOX}.1 1\n  json {{"stream":"S","seq":7}}\n'
)
ACK = "$JS.ACK.S.c.1.7.1.1795340332080752913.0"
DELIVERED = f"@ +0.001s\nb < MSG s.new 2 {ACK}\n  | one\n@ +0.005s\n"
THEIRS = SpanContext(b"\1" * 16, b"\2" * 8)
TRACED = f"  NATS/1.0\n  traceparent: {THEIRS.value.decode()}\n"
CASES = {
    "request and answer": (
        ASK + f"@ +0.001s\nb < MSG quotes 1 {INBOX}.1\n  | acme\n@ +0.003s\nb > PUB {INBOX}.1\n  | 42\n"
        f"@ +0.001s\na < MSG {INBOX}.1 1\n  | 42\n",
        ["worker consumer process quotes 3ms below 1", "asker client request quotes 5ms"],
    ),
    "two answers": (
        ASK + f"@ +0.001s\na < MSG {INBOX}.1 1\n  | 42\n@ +0.001s\na < MSG {INBOX}.1 1\n  | 43\n",
        ["asker client request quotes 1ms"],
    ),
    "nobody answers": (
        ASK + f"@ +0.001s\na < HMSG {INBOX}.1 1\n  NATS/1.0 503\n",
        ["asker client request quotes 1ms !no_responders"],
    ),
    "no answer": (ASK + "@ +6s\na closed client-closed\n", ["asker client request quotes 6000ms !timeout"]),
    "an answer may come still": (ASK + "@ +1s\nb > PING\n", []),
    "stored, delivered and acked": (
        STORED + DELIVERED + f"b > PUB {ACK}\n  | +ACK\n",
        ["asker producer publish s.new 2ms", "worker consumer process s.new 5ms below 0"],
    ),
    "work in progress is no end": (
        STORED + DELIVERED + f"b > PUB {ACK}\n  | +WPI\n@ +0.005s\nb > PUB {ACK}\n  | -NAK\n",
        ["asker producer publish s.new 2ms", "worker consumer process s.new 10ms below 0 !nak"],
    ),
    "delivered before the publish ack came": (
        f"a > SUB {INBOX}.* 1\na > PUB s.new {INBOX}.1\n  | one\n"
        + DELIVERED
        + f'a < MSG {INBOX}.1 1\n  json {{"stream":"S","seq":7}}\nb > PUB {ACK}\n  | +ACK\n',
        ["asker producer publish s.new 6ms", "worker consumer process s.new 5ms below 0"],
    ),
    "another message of the stream": (
        STORED.replace('"seq":7', '"seq":8') + DELIVERED + f"b > PUB {ACK}\n",
        ["asker producer publish s.new 2ms", "worker consumer process s.new 5ms"],
    ),
    "a stream that was made anew": (
        STORED + f"a > PUB $JS.API.STREAM.DELETE.S {INBOX}.2\na > PUB s.new\n  | two\n"
        f'a < MSG {INBOX}.2 1\n  json {{"success":true}}\n' + DELIVERED + f"b > PUB {ACK}\n",
        [
            "asker producer publish s.new 2ms",
            "asker producer publish s.new 0ms",
            "asker client request $JS.API.STREAM.DELETE.S 0ms",
            "worker consumer process s.new 5ms",
        ],
    ),
    "stored an hour before": (
        STORED + (DELIVERED + f"b > PUB {ACK}\n").replace("1795340332", "1795336732"),
        ["asker producer publish s.new 2ms", "worker consumer process s.new 5ms"],
    ),
    "an observer gets a copy of the answer": (
        ASK + f"b > SUB _INBOX.> 2\nb < MSG {INBOX}.1 2\n  | 42\n@ +0.005s\na < MSG {INBOX}.1 1\n  | 42\n",
        ["asker client request quotes 5ms"],
    ),
    "a stored message that looks like an error": (
        f"a > SUB {INBOX}.* 1\na > PUB $JS.API.DIRECT.GET.S.s.new {INBOX}.1\n@ +0.001s\n"
        f"a < HMSG {INBOX}.1 1\n  NATS/1.0\n  Nats-Stream: S\n"
        '  json {"error":{"code":404,"err_code":10059,"description":"mine"}}\n',
        ["asker client request $JS.API.DIRECT.GET.S.s.new 1ms"],
    ),
    "not stored": (
        STORED.replace(
            '"stream":"S","seq":7',
            '"error":{"code":400,"err_code":10071,"description":"wrong"},"stream":"S","seq":0',
        ),
        ["asker producer publish s.new 2ms !10071"],
    ),
    "never acked": (DELIVERED, ["worker consumer process s.new 0ms"]),
    "the API says no": (
        f"a > SUB {INBOX}.* 1\na > PUB $JS.API.STREAM.INFO.S {INBOX}.1\n@ +0.001s\na < MSG {INBOX}.1 1\n"
        '  json {"error":{"code":404,"err_code":10059,"description":"stream not found"}}\n',
        ["asker client request $JS.API.STREAM.INFO.S 1ms !10059"],
    ),
    "a pull": (
        f'b > SUB {INBOX} 1\nb > PUB $JS.API.CONSUMER.MSG.NEXT.S.c {INBOX}\n  json {{"batch":1}}\n'
        f"@ +0.001s\nb < HMSG {INBOX} 1\n  NATS/1.0 408 Request Timeout\n",
        [],
    ),
    "plain messages": (
        "b > SUB a.* 1\na > PUB a.new\n  | one\n@ +0.001s\nb < MSG a.new 1\n  | one\n",
        ["asker producer publish a.new 0ms", "worker consumer receive a.new 0ms"],
    ),
    "a trace of the program": (
        f"b > SUB a.* 1\na > HPUB a.new\n{TRACED}  | one\nb < HMSG a.new 1\n{TRACED}  | one\n",
        ["asker producer publish a.new 0ms below another", "worker consumer receive a.new 0ms below another"],
    ),
    "a request with a trace of the program": (
        f"a > SUB {INBOX}.* 1\na > HPUB quotes {INBOX}.1\n{TRACED}  | acme\n"
        f"b < HMSG quotes 1 {INBOX}.1\n{TRACED}  | acme\n"
        f"b > PUB {INBOX}.1\n  | 42\na < MSG {INBOX}.1 1\n  | 42\n",
        ["worker consumer process quotes 0ms below 1", "asker client request quotes 0ms below another"],
    ),
    "dropped": (
        "a > PUB a.new\n  * not passed\n  | one\na > PUB a.old\n  | two\n",
        ["asker producer publish a.old 0ms", "asker producer publish a.new 0ms !dropped"],
    ),
}


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "x.nats.txt"
    path.write_text(HEAD + "\n" + OPENED + text)
    return path


@pytest.mark.parametrize(("text", "expected"), CASES.values(), ids=CASES)
def test_a_conversation(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert shown(spans(written(tmp_path, text))) == expected


def test_one_reply_subject_for_many_messages_tells_no_sender(tmp_path: Path) -> None:
    again = "a > PUB quotes replies\n  | acme\n" * 2 + "b < MSG quotes 1 replies\n  | acme\n"
    assert "below" not in "".join(shown(spans(written(tmp_path, again))))
    once = again.replace("a > PUB quotes replies\n  | acme\n", "", 1)
    assert "below 0" in "".join(shown(spans(written(tmp_path, once))))


def test_more_deliveries_than_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of consumers that never ack: each has its span."""
    for module in (bounded, traced):
        monkeypatch.setattr(module, "LIMIT", 4)
    text = "".join(DELIVERED.replace(".1.7.1.", f".1.{seq}.{seq}.") for seq in range(1, 10))
    found = [span.attributes["nats.stream_sequence"] for span in spans(written(tmp_path, text))]
    assert found == list(range(1, 10))


def test_open_for_too_long(tmp_path: Path) -> None:
    """It is over when the recording goes on for minutes, not at its end."""
    text = ASK + DELIVERED + "@ +301s\na > PUB a.new\n"
    assert shown(spans(written(tmp_path, text)))[:2] == [
        "worker consumer process s.new 0ms",
        "asker client request quotes 301006ms !timeout",
    ]


def test_ids_are_those_of_another_export(tmp_path: Path) -> None:
    path = written(tmp_path, STORED + DELIVERED)
    first, second = ([(span.context, span.parent) for span in spans(path)] for _ in range(2))
    assert first == second
    assert len({context.span for context, _ in first}) == len(first) == 2


def test_ids_of_two_texts_differ(tmp_path: Path) -> None:
    """Texts have no recorder, so all have the same one."""
    path = written(tmp_path, STORED)
    (first,) = spans(path)
    path.write_text(path.read_text().replace("2026-11-22", "2026-11-23", 1))
    (second,) = spans(path)
    assert first.context.trace != second.context.trace


def test_a_choice_of_spans(tmp_path: Path) -> None:
    """Those that are left out still tell who sent a message."""
    path = written(tmp_path, STORED + DELIVERED)
    (process,) = spans(path, Query(direction=S2C))
    assert process.parent == spans(path)[0].context
    assert spans(path, Query(subjects=(b"other.>",))) == []


def test_facts_of_a_message(tmp_path: Path) -> None:
    """And nothing of its payload."""
    publish, process = spans(written(tmp_path, STORED + DELIVERED))
    assert publish.attributes["messaging.message.body.size"] == 3
    assert process.attributes["nats.stream_sequence"] == publish.attributes["nats.stream_sequence"] == 7
    assert process.start - publish.start == 3 * MILLISECOND
    assert "one" not in str(publish.attributes) + str(process.attributes)
