"""Invariant: a secret is in no byte of a capture, a log or an export, however its conversation was cut.

A conversation is any mixture of frames with secrets in every field that is secret, spelt in any way that a
server understands, and of others.  It is cut into reads anywhere, ends at any byte in any way, and passes
rules that rename, delay, change and drop its frames.  A capture begins at any of them.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.capture.export.json_lines import jsonl
from natsproxy.capture.export.pcapng import pcapng
from natsproxy.capture.filter.recording_filter import PayloadPolicy, RecordingFilter, Selection
from natsproxy.capture.format.records import Frames, Item
from natsproxy.capture.read.frames import Query
from natsproxy.capture.read.reader import open_capture
from natsproxy.events import Event
from natsproxy.log import log_event
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import parse_rules
from natsproxy.rules.kinds import KINDS
from natsproxy.session.session import Session
from natsproxy.session.values import Action, Emit, Record, SessionSettings
from natsproxy.testing.frame_log import FrameFilter, FrameLog
from natsproxy.wire.ops import C2S, S2C, Direction
from tests.kit.captures import MONO, write

SECRET = b"ZQ5KFWVT3MLRYB7XHPDJ2CUE"
SEED = b"SUA" + (SECRET * 3)[:55]
GRAM = 7
"""So many bytes of a secret in a row are a leak: a secret is cut too."""
CALLOUT = b"$SYS.REQ.USER.AUTH"
Directed = tuple[Direction, bytes]

_OPS = st.sampled_from([str.upper, str.lower, str.title])
_BLANKS = st.sampled_from([b" ", b"  ", b"\t", b" \t "])
_ENDS = st.sampled_from([b"\r\n", b"\n", b" \r\n"])
_BAD_ENDS = st.sampled_from([b"\r", b"\r\n", b"\r\r\n", b"\n", b""])
_KEYS = st.sampled_from(["pass", "auth_token", "jwt", "sig", "proxy_sig", "PASS", "Jwt", "p\\u0061ss"])


def _control(name: str, op: Callable[[str], str], blank: bytes, args: bytes, end: bytes) -> bytes:
    return op(name).encode() + blank + args + end


@st.composite
def _json(draw: Callable[[st.SearchStrategy[Any]], Any]) -> bytes:
    """Return an object with secrets: valid, spread over lines, nested, twice the same, or not valid."""
    key = draw(_KEYS).encode()
    found: bytes = draw(
        st.sampled_from(
            [
                b'{"verbose":false,"%s":"%s"}' % (key, SECRET),
                b'{"%s":"x","name":"a", "%s" : "%s","user":"u"}' % (key, key, SECRET),
                b'{"name":"%s","%s":"%s"}' % (SEED, key, SECRET),
                b'{"a":{"%s":["%s",{"b":"%s"}]}}' % (key, SECRET, SECRET),
                b'{"user":"u",\n"%s":"%s"}' % (key, SECRET),
                b'{"user":"u",\r"%s":"%s"}' % (key, SECRET),
                b'{"%s":"%s"' % (key, SECRET),
                b'{"%s":"%s"} trailing %s' % (key, SECRET, SECRET),
                b"'%s'" % SECRET,
            ]
        )
    )
    return found


def _message(op: bytes, subject: bytes, sid: bytes, reply: bytes, body: bytes) -> bytes:
    block = b"NATS/1.0\r\n\r\n" if op[:1] == b"H" else b""
    sizes = b"%d %d" % (len(block), len(block) + len(body)) if block else b"%d" % len(body)
    words = [word for word in (op, subject, sid, reply, sizes) if word]
    return b" ".join(words) + b"\r\n" + block + body + b"\r\n"


_CONNECT = st.builds(_control, st.just("connect"), _OPS, _BLANKS, _json(), _ENDS)
_INFO = st.builds(
    _control,
    st.just("info"),
    _OPS,
    _BLANKS,
    st.just(b'{"server_id":"S","max_payload":1048576,"headers":true,"nonce":"%s"}' % SECRET),
    _ENDS,
)
_BARE = st.builds(
    _control, st.sampled_from(["ping", "pong", "+ok"]), _OPS, st.sampled_from([b" ", b""]), _json(), _ENDS
)
_PLAIN = st.sampled_from(
    [
        (C2S, b"PING\r\n"),
        (C2S, b"PUB a.b 2\r\nhi\r\n"),
        (C2S, b"SUB a.* 1\r\n"),
        (C2S, b"SUB > 7\r\n"),
        (C2S, b"HPUB a.b 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"),
        (C2S, b"UNSUB 1\r\n"),
        (S2C, b"PONG\r\n"),
        (S2C, b"+OK\r\n"),
        (S2C, b"MSG a.b 1 2\r\nhi\r\n"),
        (S2C, b"-ERR 'Authorization Violation'\r\n"),
    ]
)


@st.composite
def _callout(draw: Callable[[st.SearchStrategy[Any]], Any], subject: bytes) -> list[Directed]:
    """Return a request and its answer, the client's or the server's."""
    headers, reply = draw(st.booleans()), b"in.%d" % draw(st.integers(0, 3))
    pub, msg = (b"HPUB", b"HMSG") if headers else (b"PUB", b"MSG")
    if draw(st.booleans()):
        asks = (C2S, _message(pub, subject, b"", reply, SECRET))
        return [asks, (S2C, _message(msg, reply, b"7", b"", SECRET))]
    return [
        (C2S, b"SUB %s 7\r\n" % subject),
        (S2C, _message(msg, CALLOUT, b"7", reply, SECRET)),
        (C2S, _message(pub, reply, b"", b"", SECRET)),
    ]


_RENAMED = {"kind": "rewrite", "from": "ask", "to": CALLOUT.decode()}
_RULES: list[dict[str, Any]] = [
    {"kind": "latency", "delay": "1ms", "every": 2},
    {"kind": "drop", "subject": CALLOUT.decode(), "every": 2},
    {"kind": "duplicate", "subject": ">"},
    {"kind": "corrupt", "bytes": 2},
    {"kind": "truncate", "keep": 12},
    {"kind": "headers", "set": {"A": "b"}},
    {"kind": "reorder", "probability": 0.5},
]


@st.composite
def _conversation(
    draw: Callable[[st.SearchStrategy[Any]], Any],
) -> tuple[list[dict[str, Any]], list[Directed]]:
    rules = draw(st.lists(st.sampled_from(_RULES), max_size=2, unique_by=lambda rule: rule["kind"]))
    subjects = [CALLOUT]
    if draw(st.booleans()):
        rules.append(_RENAMED)
        subjects.append(b"ask")
    one = st.one_of(
        _PLAIN, st.tuples(st.just(C2S), _CONNECT | _BARE), st.tuples(st.just(S2C), _INFO | _BARE)
    ).map(lambda frames: [frames])
    callouts = st.sampled_from(subjects).flatmap(_callout)
    frames = [(S2C, draw(_INFO)), (C2S, b'CONNECT {"verbose":false,"headers":true,"pass":"%s"}\r\n' % SECRET)]
    for part in draw(st.lists(one | callouts, max_size=8)):
        frames += part
    frames.append((C2S, draw(st.builds(_control, st.just("connect"), _OPS, _BLANKS, _json(), _BAD_ENDS))))
    return [{**rule, "name": rule["kind"]} for rule in rules], frames


class _Log:
    """A logger that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __getattr__(self, level: str) -> Callable[..., None]:
        return lambda event, **facts: self.lines.append(f"{event} {facts}")


class _Observer:
    """Everything that leaves a session: records, events, frames seen."""

    def __init__(
        self, rules: list[dict[str, Any]], settings: SessionSettings, *, record: bool = True
    ) -> None:
        self.items: list[Item] = []
        self.events: list[Event] = []
        self.seen = FrameLog()
        self.now = MONO
        chain = RuleChain(parse_rules(rules, KINDS), seed=1)
        self.session = Session(settings, chain, conn=1, ordinal=1, address="c:1", record=record, now=MONO)

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Record):
                item = action.item
                self.items.append(item._replace(data=bytes(item.data)) if isinstance(item, Frames) else item)
                self.seen.add(item)
            elif isinstance(action, Emit):
                self.events.append(action.event)

    def receive(self, direction: Direction, data: bytes, cuts: list[int]) -> None:
        """Take bytes in reads that end where `cuts` say."""
        places = sorted({0, len(data), *(place % (len(data) + 1) for place in cuts)})
        for start, end in pairwise(places):
            if not self.over:
                self.do(self.session.receive(direction, data[start:end], self.now))

    def wait(self) -> None:
        """Let time pass until held frames have gone: a peer answers no frame that has not reached it."""
        for _ in range(20):
            due = self.session.next_tick()
            if due is None or due > self.now + 1_000_000_000:
                return
            self.now = max(self.now, due)
            self.do(self.session.tick(self.now))

    @property
    def over(self) -> bool:
        """Whether a peer would not go on: its next frames would answer requests that were never made."""
        return self.session.over or any(pipe.ended or pipe.unframed for pipe in self.session.pipes)

    def end(self, ending: str) -> None:
        if ending == "rubbish":
            self.receive(C2S, b'"pass":"%s"}\r\nCONNECT {"pass":"%s"}\r\n' % (SECRET, SECRET), [])
        elif ending == "drained":
            self.session.drain(self.now)
            self.do(self.session.take_actions())
        elif ending != "gone" and not self.session.over:
            self.do(self.session.eof(S2C if ending == "server" else C2S, self.now))
            self.wait()
        self.do(self.session.closed(self.now))

    def everything(self, selection: Selection) -> Iterator[bytes]:
        """Yield the bytes that reach a disk, a log or a test."""
        recording_filter = RecordingFilter(selection)
        items = [
            kept
            for item in self.items
            for kept in ([item] if recording_filter.passes(item) else recording_filter.apply(item))
        ]
        with tempfile.TemporaryDirectory() as folder:
            path = write(Path(folder) / "x.ncap", items)
            yield path.read_bytes()
            for export in (jsonl, pcapng):
                out = io.BytesIO()
                export(open_capture(path), out, Query())
                yield out.getvalue()
        log = _Log()
        for event in self.events:
            log_event(log, event)
        yield "\n".join(log.lines).encode()
        yield repr(self.seen.frames(FrameFilter())).encode()


_SETTINGS = st.builds(
    SessionSettings,
    frame_hold_limit=st.sampled_from([0, 65536]),
    record_frame_max=st.sampled_from([60, 8 << 20]),
    rule_buffer=st.sampled_from([64, 8 << 20]),
    unparsed=st.just("close"),
    advertise=st.just("pass"),
)


@given(
    _conversation(),
    _SETTINGS,
    st.lists(st.integers(0, 300), max_size=3),
    st.integers(1, 30),
    st.integers(0, 120),
    st.sampled_from(["client", "server", "gone", "drained", "rubbish"]),
    st.sampled_from([(), (">=truncate:9",), ("in.>=hash",)]),
    st.integers(0, 30) | st.just(0),
)
def test_no_secret_gets_out(
    conversation: tuple[list[dict[str, Any]], list[Directed]],
    settings: SessionSettings,
    cuts: list[int],
    most: int,
    less: int,
    ending: str,
    policies: tuple[str, ...],
    recorded_from: int,
) -> None:
    """A conversation may hold any frames, be cut anywhere and end in any way."""
    rules, frames = conversation
    witness = _Observer(rules, settings, record=False)
    for number, (direction, data) in enumerate(frames[:most][:-1]):
        witness.session.record(number >= recorded_from)
        witness.receive(direction, data, cuts)
        witness.wait()
    witness.session.record(True)
    direction, data = frames[:most][-1]
    witness.receive(direction, data[: max(0, len(data) - less)], cuts)
    witness.end(ending)
    for written in witness.everything(Selection(payloads=tuple(map(PayloadPolicy.parse, policies)))):
        _refuse_secret(written)


def _refuse_secret(written: bytes) -> None:
    for start in range(len(SECRET) - GRAM + 1):
        gram = SECRET[start : start + GRAM]
        assert gram not in written
        assert gram.hex().encode() not in written


@pytest.mark.parametrize(
    "to", [CALLOUT.decode(), [{"to": CALLOUT.decode(), "weight": 50}]], ids=["sure", "chance"]
)
@pytest.mark.parametrize("less", [1, 2, 5, len(SECRET) - GRAM])
def test_a_cut_publish_that_a_rule_would_rename_to_a_callout(less: int, to: object) -> None:
    """No rule has seen it: rules decide on whole frames."""
    witness = _Observer(
        [{"name": "r", "kind": "rewrite", "from": "ask", "to": to, "two_way": False}], SessionSettings()
    )
    witness.receive(S2C, b'INFO {"server_id":"S","max_payload":1048576,"headers":true}\r\n', [])
    witness.receive(C2S, b'CONNECT {"verbose":false,"headers":true}\r\n', [])
    witness.receive(C2S, _message(b"PUB", b"ask", b"", b"in.0", SECRET)[:-less], [])
    witness.end("client")
    for written in witness.everything(Selection()):
        _refuse_secret(written)


_HELLO: list[Directed] = [
    (S2C, b'INFO {"headers":true,"max_payload":99999} \r\n'),
    (C2S, b"CONNECT {}\r\nPING\r\n"),
]


@pytest.mark.parametrize(
    ("rules", "frames", "kept"),
    [
        ([], [(C2S, b'PING {"pass":"%s"}\r\n' % SECRET), (C2S, b"+OK%s\r\nPUB a 1\r\n!\r\n" % SECRET)], b"!"),
        ([], [(C2S, b"PUB a 1\r\n!\r\n" + _message(b"HPUB", CALLOUT, b"", b"", SECRET))], b"!"),
        (
            [_RENAMED],
            [
                (C2S, _message(b"PUB", b"ask", b"", b"in.1", SECRET)),
                (S2C, b"MSG in.1 7 24\r\n%s\r\n" % SECRET),
            ],
            CALLOUT,
        ),
        (
            [_RENAMED],
            [
                (C2S, b"SUB ask 7\r\n"),
                (S2C, _message(b"MSG", CALLOUT, b"7", b"in.1", SECRET)),
                (C2S, _message(b"PUB", b"in.1", b"", b"", SECRET)),
            ],
            b"MSG ask 7",
        ),
        ([_RENAMED], [(C2S, b"PUB ask 99999\r\n" + SECRET * 10)], CALLOUT),
    ],
)
def test_frames_that_look_harmless_are_looked_at(
    rules: list[dict[str, Any]], frames: list[Directed], kept: bytes
) -> None:
    """A tail, a callout, and one that a rule renames: whole ones, and one that never ends."""
    witness = _Observer([{**rule, "name": "r"} for rule in rules], SessionSettings(frame_hold_limit=0))
    for direction, data in [*_HELLO, *frames]:
        witness.receive(direction, data, [])
    witness.end("gone")
    written = b"".join(witness.everything(Selection()))
    assert kept in written
    assert SECRET not in written


_ASKED: Directed = (S2C, _message(b"MSG", CALLOUT, b"7", b"_R_.abc", SECRET))
_ANSWERED: Directed = (C2S, _message(b"PUB", b"_R_.abc", b"", b"", SECRET))


@pytest.mark.parametrize(
    ("rules", "before", "after"),
    [
        ([], [(C2S, b"SUB > 7\r\n"), _ASKED], [_ANSWERED]),
        ([], [_ASKED, (C2S, _ANSWERED[1][:-9])], [(C2S, _ANSWERED[1][-9:])]),
        ([], [(S2C, _ASKED[1][:-9])], [(S2C, _ASKED[1][-9:]), _ANSWERED]),
        ([], [(S2C, b"MSG a 7 1\r\n!\r\n" + _ASKED[1]), (C2S, b"PUB a 1\r\n!\r\n")], [_ANSWERED]),
        (
            [{"kind": "latency", "delay": "1ms", "subject": "$SYS.>"}],
            [(S2C, _message(b"MSG", CALLOUT, b"7", b"in.1", SECRET) + _ASKED[1])],
            [_ANSWERED],
        ),
        (
            [_RENAMED],
            [(C2S, _message(b"PUB", b"ask", b"", b"_R_.abc", SECRET) * 3)],
            [(S2C, _message(b"MSG", b"_R_.abc", b"7", b"", SECRET))],
        ),
        (
            [{"kind": "latency", "delay": "1h", "subject": "_R_.>"}],
            [_ASKED, _ANSWERED],
            [],
        ),
    ],
    ids=[
        "between the two",
        "in the answer",
        "in the request",
        "in a run",
        "beside another",
        "renamed",
        "while it is held",
    ],
)
def test_a_capture_that_begins_between_a_callout_and_its_answer(
    rules: list[dict[str, Any]], before: list[Directed], after: list[Directed]
) -> None:
    witness = _Observer([{**rule, "name": "r"} for rule in rules], SessionSettings(), record=False)
    for direction, data in [*_HELLO, *before]:
        witness.receive(direction, data, [])
    witness.session.record(True)
    for direction, data in [*after, (C2S, b"PUB a 1\r\n!\r\n")]:
        witness.receive(direction, data, [])
    witness.end("gone")
    written = b"".join(witness.everything(Selection()))
    assert b"PUB a 1" in written
    assert SECRET not in written


@pytest.mark.parametrize("record", [True, False])
def test_more_callouts_than_can_be_known(record: bool) -> None:
    """Then no payload is recorded: each may be the answer that was forgotten."""
    witness = _Observer([], SessionSettings(), record=record)
    for direction, data in _HELLO:
        witness.receive(direction, data, [])
    for number in range(5_000):
        witness.receive(S2C, _message(b"MSG", CALLOUT, b"7", b"in.%d" % number, b""), [])
    witness.session.record(True)
    witness.receive(C2S, b"".join(_message(b"PUB", b"in.%d" % n, b"", b"", SECRET) for n in range(5_000)), [])
    witness.receive(C2S, _message(b"PUB", b"a", b"", b"", SECRET), [])
    written = repr(witness.items).encode()
    assert b"PUB a 24" in written
    assert SECRET not in written


def test_a_callout_that_was_received_and_never_scanned() -> None:
    witness = _Observer([], SessionSettings())
    for direction, data in _HELLO:
        witness.receive(direction, data, [])
    rest = b"PUB a 1\r\n!\r\n" + _message(b"PUB", CALLOUT, b"", b"in.1", SECRET)
    witness.session.pipes[C2S].records.left(rest, 2, MONO)
    witness.end("gone")
    written = repr(witness.items).encode()
    assert CALLOUT in written
    assert SECRET not in written
