"""Headers of a megabyte under many rules: decided on in slices, read once, and as if at once."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from natsproxy.protocol.headers import HeaderBlock
from natsproxy.rules.engine import rule_engine
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.engine.rule_engine import RuleEngine
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from natsproxy.rules.model import selector
from natsproxy.session.session import LONG
from natsproxy.session.values import WorkLimit
from natsproxy.wire.ops import C2S, S2C
from tests.session.playbook import Playbook


class OneStep(WorkLimit):
    """A slice that is over as soon as anybody asks."""

    def reached(self) -> bool:
        return True


def hpub(line: bytes, size: int = 2 * LONG) -> bytes:
    block = b"NATS/1.0\r\n" + line * (size // len(line)) + b"\r\n"
    return b"HPUB h.x %d %d\r\n%s\r\n" % (len(block), len(block), block)


def rules(count: int, *lines: str) -> RuleChain:
    text = "\n".join(f'[[rules]]\nname = "r{n}"\n' + "\n".join(lines).format(n) for n in range(count))
    return RuleChain(load(text, KINDS), seed=1)


HEADERS = rules(5, 'kind = "headers"\nsubject = "h.>"', 'set = {{ A{0} = "b" }}\n')
SELECTOR = rules(20, 'kind = "duplicate"\nsubject = "h.>"', 'header = {{ A = "c{0}" }}\n')
DENY = rules(20, 'kind = "deny"', 'subject = ["no.{0}", "h.x.{0}"]\n')


def through(chain: RuleChain, raw: bytes) -> tuple[bytes, int]:
    """Return what goes on of a frame that is dealt with in slices, and how many they were."""
    play = Playbook(chain).greeted()
    now = play.now
    play.do(play.session.receive(C2S, raw, now, OneStep()))
    slices = 1
    while play.session.pipes[C2S].pending:
        play.do(play.session.receive(C2S, b"", now, OneStep()))
        slices += 1
    return play.to_server, slices


@pytest.mark.parametrize("chain", [HEADERS, SELECTOR, DENY], ids=["headers", "selector", "deny"])
@pytest.mark.parametrize("line", [b"A: c3\r\n", b"k:v\r\n", b"Nats-Trace-Dest:ok\r\n"])
def test_slices_make_no_difference(chain: RuleChain, line: bytes) -> None:
    raw = hpub(line) + b"PUB a 1\r\nx\r\n" + hpub(line)
    at_once = Playbook(chain).greeted().client(raw).to_server
    assert at_once.count(b"PUB a 1") == 1
    found, slices = through(chain, raw)
    assert found == at_once
    assert slices > 2 or chain is DENY


def test_headers_are_read_once_for_all_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class Counted(HeaderBlock):
        def __init__(self, block: bytes, names: Collection[bytes]) -> None:
            made.append(block)
            super().__init__(block, names)

    monkeypatch.setattr(rule_engine, "HeaderBlock", Counted)
    monkeypatch.setattr(selector, "HeaderBlock", Counted)
    play = Playbook(SELECTOR).greeted().client(hpub(b"A: c19\r\n"))
    assert play.to_server.count(b"HPUB") == 2
    assert len(made) == 1


def test_a_rule_that_fails_in_a_step_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(RuleEngine, "_run_rule", fails)
    play = Playbook(HEADERS).greeted().client(hpub(b"A: c\r\n"))
    assert play.end is not None
    assert "a rule failed on HPUB" in play.end.detail


def test_other_rules_wait_for_a_decision_and_the_other_direction_does_not() -> None:
    play = Playbook(HEADERS).greeted()
    play.client(b"SUB a 1\r\n")
    play.do(play.session.receive(C2S, hpub(b"A0: c\r\n"), play.now, OneStep()))
    assert play.session.pipes[C2S].pending
    new = rules(1, 'kind = "drop"', 'subject = "h.x"\n')
    play.do(play.session.swap(new, play.now))
    assert play.session.chain is HEADERS
    play.server(b"MSG a 1 1\r\nx\r\n")
    assert play.to_client == b"MSG a 1 1\r\nx\r\n"
    while play.session.pipes[C2S].pending:
        play.do(play.session.receive(C2S, b"", play.now, OneStep()))
    assert b"A4: b\r\n" in play.to_server
    play.do(play.session.swap(new, play.now))
    assert play.session.chain is new


def test_a_frame_that_is_being_decided_on_at_the_end_is_recorded() -> None:
    play = Playbook(HEADERS).greeted()
    raw = hpub(b"A0: c\r\n")
    play.do(play.session.receive(C2S, raw, play.now, OneStep()))
    ordinals = play.session.snapshot()["ordinals"]
    assert ordinals["c2s_in"] == ordinals["c2s_out"]
    play.session.stop()
    play.records.clear()
    play.do(play.session.closed(play.now))
    (record,) = [item for item in play.records if getattr(item, "direction", None) == C2S]
    assert (bytes(record.data), record.cause, record.out_first) == (raw, "unsent", None)
    assert not play.session.pipes[S2C].pending
