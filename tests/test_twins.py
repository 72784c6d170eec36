"""What compiled code has never heard of means the same with and without it.

Each test adds something (an operation, a policy for payloads, a role, a kind of rule) and compares the twins.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from natsproxy.capture.filter import recording_filter
from natsproxy.capture.filter.recording_filter import PayloadPolicy, RecordingFilter, Selection
from natsproxy.capture.format.records import Frames
from natsproxy.capture.write import _builder_py
from natsproxy.capture.write.builder import BlockBuilder
from natsproxy.rules.file import parser
from natsproxy.rules.kinds import KINDS
from natsproxy.rules.model.counts import Count
from natsproxy.rules.model.gate import Gate
from natsproxy.rules.model.roles import PUBS, ROLES, Role
from natsproxy.rules.model.rule import Action, Hit, Kind
from natsproxy.rules.model.selector import MESSAGES
from natsproxy.rules.model.verdicts import Replace, Verdict
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame, Need
from natsproxy.wire.ops import C2S, S2C
from natsproxy.wire.scanner import COMPILED
from tests.capture.filter.test_selection import joined, record, written

if not COMPILED:
    pytest.skip(
        "this run has no compiled modules (NATSPROXY_PURE=1, or not built): nothing to compare",
        allow_module_level=True,
    )

from tests.net.test_planes import EVERYTHING, Conversation, Outcome, Piece, on_all

WITH_AN_OPERATION = Path(__file__).parent / "kit" / "added_operation.py"
REQUESTS = Conversation(
    [
        [Piece(C2S, b"SUB > 2\r\n", True)],
        *[[Piece(C2S, b"PUB a 5\r\nhello\r\nPUB b 5\r\nhello\r\n", True)]] * 3,
        *[[Piece(S2C, b"MSG a 2 5\r\nhello\r\nMSG b 2 5\r\nhello\r\n", True)]] * 3,
    ],
    "client",
    (b"", b""),
)


def alike(rules: str, selection: Selection = EVERYTHING) -> Outcome:
    """Play requests on all planes, and return the outcome."""
    twin, *natives = on_all(REQUESTS, rules, True, selection)
    for native in natives:
        assert native.matches == twin.matches
        assert (native.received, native.counts, native.frames) == (twin.received, twin.counts, twin.frames)
        assert sum(one.count for one in native.firings) == sum(one.count for one in twin.firings)
    return twin


def test_a_policy_for_payloads(monkeypatch: pytest.MonkeyPatch) -> None:
    first = recording_filter._Action(lambda frame, size: (frame.body[:1], {}))
    monkeypatch.setitem(recording_filter._ACTIONS, "first", first)
    selection = Selection(payloads=(PayloadPolicy.parse("a=first"), PayloadPolicy.parse("k=keep")))
    run = record(C2S, 1, [b"PUB a 5\r\nhello\r\n", b"PUB b 5\r\nhello\r\n", b"PUB k 5\r\nhello\r\n"], 0)
    kept = []
    for make in (BlockBuilder, _builder_py.BlockBuilder):
        items = joined(written(make(RecordingFilter(selection)), [run]))
        kept.append(
            [(bytes(item.data), item.flags, item.extra) for item in items if isinstance(item, Frames)]
        )
    assert kept[0] == kept[1]
    assert kept[0][0][0] == b"PUB a 5\r\nh"
    assert RecordingFilter(selection).in_python
    found = [row[4] for row in alike("", selection).frames[C2S]]
    assert found.count(b"PUB a 5\r\nh") == found.count(b"PUB b 5\r\nhello\r\n") == 3


def test_a_role(monkeypatch: pytest.MonkeyPatch) -> None:
    greets = Role(
        "greeting",
        "says hello",
        C2S,
        PUBS,
        (b"a",),
        Need.PAYLOAD,
        lambda frame: frame.body == b"hello",
        encode.pub(b"a", b"hello"),
    )
    monkeypatch.setitem(ROLES, "greeting", greets)
    outcome = alike('[[rules]]\nname = "r"\nkind = "drop"\nrole = "greeting"\n')
    assert outcome.received[C2S].count(b"PUB a") == 0
    assert outcome.received[C2S].count(b"PUB b") == 3


class OddOnes(Gate):
    """A gate with a condition that compiled code has never heard of."""

    def admits(self, count: Count, m: int, *rest: Any) -> bool:
        return m % 2 == 1 and super().admits(count, m, *rest)


def test_a_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser, "Gate", OddOnes)
    outcome = alike('[[rules]]\nname = "r"\nkind = "drop"\nsubject = "a"\nlimit = 9\n')
    for received in outcome.received.values():
        assert (received.count(b" a "), received.count(b" b ")) == (1, 3)


class Shouting(Action):
    label = "shout"
    need = Need.PAYLOAD

    def act(self, frame: Frame, hit: Hit) -> Verdict | None:
        return Replace(encode.with_payload(frame, body=frame.body.upper()))


def test_a_kind_of_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says nothing about what it does to all frames of a subject."""
    made = Kind("shout", "messages in capitals", lambda settings, selector: Shouting(), "", takes=MESSAGES)
    monkeypatch.setitem(KINDS, "shout", made)
    outcome = alike('[[rules]]\nname = "r"\nkind = "shout"\nsubject = "a"\n')
    for received in outcome.received.values():
        assert (received.count(b"HELLO"), received.count(b"hello")) == (3, 3)


def test_an_operation() -> None:
    """In an interpreter of its own, whose table of operations has one more."""
    done = subprocess.run(
        [sys.executable, WITH_AN_OPERATION], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
