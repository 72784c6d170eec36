"""Rules in memory: a fake connection, a chain from TOML, frames from text."""

from __future__ import annotations

from dataclasses import dataclass, field

from natsproxy.protocol.connect import Connect
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.engine.rule_engine import RuleEngine
from natsproxy.rules.engine.trial import TrialView, ask
from natsproxy.rules.file.parser import load
from natsproxy.rules.interface import Decision
from natsproxy.rules.kinds import KINDS
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, S2C, Direction
from natsproxy.wire.parse import frames

MS = 1_000_000
S = 1_000_000_000


@dataclass
class FakeView(TrialView):
    """A connection without a session.  sids: those whose deliveries are counted."""

    conn: int = 1
    ordinal: int = 1
    address: str = "127.0.0.1:50000"
    key: str = "app"
    connect: Connect = field(default_factory=lambda: Connect(verbose=False, pedantic=False, name="app"))
    sids: set[bytes] = field(default_factory=set)

    def count_sid(self, sid: bytes) -> None:
        self.sids.add(sid)

    def unwatch_subject(self, direction: Direction, subject: bytes) -> None:
        del self.watched[direction, subject]


class Wire:
    """A connection under rules: `c2s` and `s2c` return the frames that go on in the place of one."""

    def __init__(self, text: str, *, seed: int = 1, view: FakeView | None = None, now: int = 0) -> None:
        self.view = view or FakeView()
        self.chain = RuleChain(load(text, KINDS), seed=seed)
        self.rules: RuleEngine = self.chain.bind(self.view, None, now)
        self.now = now

    def rebind(self, text: str | None = None) -> None:
        if text is not None:
            self.chain = RuleChain(load(text, KINDS), seed=self.chain.seed, previous=self.chain)
        self.rules = self.chain.bind(self.view, self.rules, self.now)

    def decide(self, direction: Direction, raw: bytes | str) -> Decision | None:
        return ask(self.rules, self.view, direction, parse(direction, raw), self.now)

    def c2s(self, raw: bytes | str) -> bytes:
        return self._out(C2S, raw)

    def s2c(self, raw: bytes | str) -> bytes:
        return self._out(S2C, raw)

    def _out(self, direction: Direction, raw: bytes | str) -> bytes:
        decision = self.decide(direction, raw)
        data = parse(direction, raw).raw
        if decision is None:
            return data
        out = data if decision.out is None else b"".join(decision.out)
        return decision.before + out + decision.after

    def fired(self, direction: Direction, raw: bytes | str) -> bool:
        decision = self.decide(direction, raw)
        return decision is not None and bool(decision.firings)


def parse(direction: Direction, raw: bytes | str) -> Frame:
    """Return the one frame of a text; `\\n` stands for CRLF, and a last one may be missing."""
    if isinstance(raw, str):
        raw = raw.encode().replace(b"\n", b"\r\n") + b"\r\n"
    (frame,) = frames(raw, direction)
    return frame
