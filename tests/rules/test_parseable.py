"""Invariant: under any combination of frame rules both streams stay well-formed, and refused input stays out.

Frames, rules and seeds are drawn; what each side would get is parsed again.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from natsproxy.protocol.connect import Connect
from natsproxy.rules.seam import Decision
from natsproxy.wire.ops import C2S, S2C, Direction
from natsproxy.wire.parse import frames
from tests.rules.kit import FakeView, Wire, parse

BODIES = st.binary(max_size=40)
SUBJECTS = st.sampled_from(
    [b"a", b"a.b", b"a.b.c", b"x.1", b"_INBOX.q.1", b"$JS.ACK.S.C.1.2.3.4.5", b"a..b", b"*.x"]
)
BLOCKS = st.sampled_from(
    [b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\nA: b\r\nC:d\r\n\r\n", b"NATS/1.0 503\r\n\r\n", b"junk", b""]
)
RULES = st.lists(
    st.sampled_from(
        [
            'kind = "duplicate"\ncopies = 2',
            'kind = "corrupt"\nbytes = 3',
            'kind = "truncate"\nkeep = 2',
            'kind = "headers"\nset = { X = "y" }\nremove = ["A"]',
            'kind = "drop"\nprobability = 0.3',
            'kind = "latency"\ndelay = "5ms"',
            'kind = "reorder"\nby = 2',
            'kind = "answer"\nstatus_code = 503\nsubject = "a.>"',
            'kind = "error"\ntext = "Invalid Subject"\nop = ["PUB", "MSG"]\nprobability = 0.5',
            'kind = "deny"\nsubject = "a.b.*"',
            'kind = "permissions"\npublish = { deny = "x.*" }\nallow_responses = true',
            'kind = "rewrite"\nprefix = "t"\njetstream = true',
        ]
    ),
    max_size=6,
    unique=True,
)


@st.composite
def conversations(draw: st.DrawFn) -> list[tuple[Direction, bytes]]:
    found = []
    for _ in range(draw(st.integers(1, 8))):
        direction = draw(st.sampled_from([C2S, S2C]))
        subject, reply, body = (
            draw(SUBJECTS),
            draw(st.sampled_from([b"", b" _INBOX.q.1", b" a.r"])),
            draw(BODIES),
        )
        block = draw(BLOCKS) if draw(st.booleans()) else None
        sid = b" 1" if direction else b""
        sizes = b" %d" % len(body) if block is None else b" %d %d" % (len(block), len(block) + len(body))
        op = (b"MSG", b"PUB")[not direction] if block is None else (b"HMSG", b"HPUB")[not direction]
        found.append(
            (direction, op + b" " + subject + sid + reply + sizes + b"\r\n" + (block or b"") + body + b"\r\n")
        )
    return found


@given(RULES, conversations(), st.integers(0, 5), st.booleans())
def test_streams_stay_well_formed(
    kinds: list[str], talk: list[tuple[Direction, bytes]], seed: int, verbose: bool
) -> None:
    text = "".join(f'[[rules]]\nname = "r{n}"\n{kind}\n' for n, kind in enumerate(kinds))
    wire = Wire(
        text, seed=seed, view=FakeView(connect=Connect(verbose=verbose, pedantic=False, headers=True))
    )
    wire.c2s("SUB _INBOX.q.* 1")
    for direction, raw in talk:
        decision = wire.decide(direction, raw) or Decision()
        out = (parse(direction, raw).raw,) if decision.out is None else decision.out
        for data in (*out, decision.before, decision.after):
            sent = list(frames(data, direction))
            assert len(sent) == 1 or data not in out or not data
        list(frames(decision.answer, direction.opposite))
        assert all(firing.direction == direction.label for firing in decision.firings)
