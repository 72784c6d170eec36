"""Names for the values that differ from one recording to the next."""

from __future__ import annotations

import difflib
import io
import random
import string
import uuid
from pathlib import Path

import pytest

from natsproxy.capture.read.reader import open_capture
from natsproxy.capture.text import names
from natsproxy.capture.text.writer import write_text
from natsproxy.wire import encode
from natsproxy.wire.ops import C2S, S2C
from tests.capture.text.test_round_trip import one_by_one, parsed
from tests.kit.captures import Scribe, write

BASE62 = string.digits + string.ascii_letters


def conversation(path: Path, seed: int, *, more: bool = False, body: bytes = b"42") -> Path:
    """Write a conversation of requests; each seed has identifiers and times of its own."""
    rng = random.Random(seed)

    def nuid() -> bytes:
        return "".join(["a1B", *rng.choices(BASE62, k=19)]).encode()

    inbox, scribe, t = nuid(), Scribe(), 0
    scribe.frame(t, 1, C2S, b"SUB _INBOX.%b.* 1\r\n" % inbox)
    for subject in [b"quotes.acme", *([b"quotes.extra"] * more), b"quotes.acme", b"orders.new"]:
        reply, t = b"_INBOX.%b.%b" % (inbox, nuid()), t + rng.randrange(1, 10**6)
        scribe.frame(t, 1, C2S, b"PUB %b %b 0\r\n\r\n" % (subject, reply))
        answer = b'{"at":"2026-11-22T09:38:%d.%09dZ","n":%b}' % (
            rng.randrange(10, 60),
            rng.randrange(10**9),
            body,
        )
        scribe.frame(t, 1, S2C, b"MSG %b 1 %d\r\n%b\r\n" % (reply, len(answer), answer))
    order = uuid.UUID(int=rng.getrandbits(128), version=4)
    scribe.frame(t, 1, C2S, encode.pub(b"orders.%b.created" % str(order).encode()))
    ack = b"$JS.ACK.S.c.1.1.1.%d.0" % rng.randrange(1_795_000_000 * 10**9, 1_796_000_000 * 10**9)
    scribe.frame(t, 1, S2C, b"MSG orders.new 1 %b 0\r\n\r\n" % ack)
    scribe.frame(t, 1, C2S, b"PUB %b 4\r\n+ACK\r\n" % ack)
    return write(path, scribe.items)


def text_of(path: Path) -> list[str]:
    out = io.BytesIO()
    write_text(open_capture(path), out)
    return out.getvalue().decode().splitlines()


def changes(ours: list[str], theirs: list[str]) -> list[str]:
    """Return the lines in which two texts differ, below the names, without times."""
    left, right = ([line for line in one[one.index("") :] if line[:1] != "@"] for one in (ours, theirs))
    return [line for line in difflib.ndiff(left, right) if line[0] in "-+"]


def test_two_recordings_of_one_conversation_differ_in_names_only(tmp_path: Path) -> None:
    one, other = (text_of(conversation(tmp_path / f"{seed}.ncap", seed)) for seed in (1, 2))
    assert one != other
    assert changes(one, other) == []
    assert "conn-1 > PUB quotes.acme _INBOX.<inbox>.<quotes.acme-2>" in one
    assert "conn-1 > PUB orders.<orders.created-id>.created" in one
    assert "conn-1 > PUB $JS.ACK.S.c.1.1.1.<orders.new-time-2>.0" in one
    assert '  | {"at":"<quotes.acme-time>","n":42}' in one


def test_another_message_changes_the_names_of_no_others(tmp_path: Path) -> None:
    one = text_of(conversation(tmp_path / "1.ncap", 1))
    other = text_of(conversation(tmp_path / "2.ncap", 2, more=True))
    assert changes(one, other) == [
        "+ conn-1 > PUB quotes.extra _INBOX.<inbox>.<quotes.extra>",
        "+ conn-1 < MSG _INBOX.<inbox>.<quotes.extra> 1",
        '+   | {"at":"<quotes.extra-time>","n":42}',
    ]


def test_text_that_looks_like_a_name_is_itself(tmp_path: Path) -> None:
    """In a payload, in a subject, and where no value has that name."""
    for body in (b"<inbox>", b"<nobody> <orders.new-time>", b"\x00<inbox>\xff", b"<inbox>" * 40):
        path = conversation(tmp_path / f"{len(body)}{body[0]}.ncap", 1, body=body)
        reader = open_capture(path)
        assert list(parsed("\n".join(text_of(path)) + "\n")) == list(one_by_one(reader.items()))


def test_names_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = conversation(tmp_path / "1.ncap", 1)
    monkeypatch.setattr(names, "_MOST", 2)
    text = text_of(path)
    assert text[text.index("names") :].index("") == 3
    assert list(parsed("\n".join(text) + "\n")) == list(one_by_one(open_capture(path).items()))
