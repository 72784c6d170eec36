"""Invariant: no rule fails, whatever both sides send: odd subjects, headers, bodies, sids, CONNECT, INFO.

The examples of all kinds and some rules more are mixed, swapped in the middle of things, and fed with frames
that are valid on the wire and odd in everything else.
"""

from __future__ import annotations

import random
import tomllib
from typing import Any

import pytest

from natsproxy import close_reasons
from natsproxy.capture.format import records
from natsproxy.capture.write.builder import BlockBuilder
from natsproxy.errors import ConfigError
from natsproxy.events import Firing
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import parse_rules
from natsproxy.rules.kinds import KINDS
from natsproxy.wire.ops import C2S, S2C, Direction
from tests.session.playbook import Playbook

MORE: list[dict[str, Any]] = [
    {"kind": "drop", "role": "publish-ack", "probability": 0.3},
    {
        "kind": "latency",
        "role": "api-reply",
        "delay": {"distribution": "pareto", "scale": "1ms", "shape": 0.5},
    },
    {"kind": "corrupt", "bytes": 5},
    {"kind": "headers", "set": {"A": "b"}, "remove": ["X"]},
    {"kind": "rewrite", "prefix": "t", "jetstream": True},
    {
        "kind": "permissions",
        "publish": {"allow": [">"], "deny": ["a.*"]},
        "subscribe": {"deny": ["a.b", "*.c q"]},
        "allow_responses": {"max": 2, "expires": "1s"},
    },
    {"kind": "drop", "role": "redelivery"},
    {"kind": "drop", "role": "heartbeat"},
    {"kind": "drop", "queue": "q.*", "every": 2},
    {"kind": "drop", "side": "server", "subject": "t.a", "op": "MSG"},
]
ENDING = ("reset", "close", "refuse", "error")  # of these a connection ends as it should
TABLES = [
    table
    for table in [*(one for kind in KINDS.values() for one in tomllib.loads(kind.example)["rules"]), *MORE]
    if table["kind"] not in ENDING
]
SUBJECTS = (
    b"a",
    b"a.b",
    b".",
    b"..",
    b">",
    b"*",
    b"a.>",
    b"a.*.b",
    b"t.a",
    b"t.",
    b"$1.b",
    b"{{wildcard(1)}}",
    b"\xff\xfe",
    b"\x00",
    b"a" * 300,
    b"$JS.API.CONSUMER.CREATE.S.C.a.b",
    b"$JS.API.STREAM.CREATE.S",
    b"$JS.ACK.S.C.2.2.3.4.5",
    b"$JS.ACK.x",
    b"$JS.FC.x",
    b"$JS.API.DIRECT.GET.S.a.b",
    b"$JS.API.CONSUMER.MSG.NEXT.S.C",
    b"_INBOX.a.b",
    b"_R_.x",
    b"orders.eu.1",
    b"pay.1",
    b"admin.x",
    b"billing.q",
    b"tenant-a.x",
)
BLOCKS = (
    b"NATS/1.0\r\n\r\n",
    b"NATS/1.0 503\r\n\r\n",
    b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 1\r\n\r\n",
    b"junk",
    b"",
    b"\r\n\r\n",
    b"NATS/1.0 \xff\xff\r\n:\r\n\r\n",
    b"NATS/1.0\r\nNats-Trace-Dest: a.b\r\n\r\n",
    b"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence-Subject: a.*.>\r\n\r\n",
    b"NATS/1.0\r\nNats-Subject:\r\n\r\n",
)
BODIES = (
    b"",
    b"x",
    b"+ACK",
    b"-NAK {",
    b"+NXT",
    b'{"stream":"S","seq":1}',
    b'{"error":{}}',
    b"{" * 50,
    b"[" * 5000,
    b'{"config":{"subjects":["a.b",1,null],"filter_subject":"a.>","deliver_subject":5}}',
    b'{"config":null}',
    b'{"config":{"sources":[{"filter_subject":"\xff"}]}}',
    b'{"stream":"\\ud800","seq":1}',
    b"x" * 3000,
)
SIDS = (b"1", b"2", b"\xff", b"abc", b"9" * 50)
FRAMES_BY_DIRECTION = {
    C2S: (
        b"PING\r\n",
        b"PONG\r\n",
        b'CONNECT {"name":"a-x","user":"\\ud800","headers":true}\r\n',
        b"CONNECT null\r\n",
        b'CONNECT {"verbose":true}\r\n',
        b'CONNECT {"name":"billing","lang":"\xff","headers":true,"verbose":false}\r\n',
    ),
    S2C: (
        b"PONG\r\n",
        b"PONG\r\n",
        b"+OK\r\n",
        b"-ERR\r\n",
        b"-ERR 'x\r\n",
        b"-ERR 'Permissions Violation for Subscription to \"t.a\"'\r\n",
        b"-ERR 'Permissions Violation for Publish to \"\\xff\\\"'\r\n",
        b'-ERR \'Permissions Violation for Subscription to "t.a" (sid "1")\'\r\n',
        b'INFO {"ldm":true,"version":"2.15.1"}\r\n',
        b'INFO {"version":"x","headers":true,"connect_urls":[null,"\\ud800"]}\r\n',
        b'INFO {"remote_account":"\\udcff","version":"2.12.1","headers":true}\r\n',
    ),
}


def frame(seeded: random.Random) -> tuple[Direction, bytes]:
    way, draws = seeded.choice((C2S, S2C)), seeded.random()
    subject, body, block = seeded.choice(SUBJECTS), seeded.choice(BODIES), seeded.choice(BLOCKS)
    reply, sid = seeded.choice((b"", b"", b" " + seeded.choice(SUBJECTS))), seeded.choice(SIDS)
    head = subject + (b" " + sid if way else b"") + reply
    if draws < 0.3:
        return way, (b"PUB", b"MSG")[way] + b" %s %d\r\n%s\r\n" % (head, len(body), body)
    if draws < 0.6:
        sizes = b"%d %d" % (len(block), len(block) + len(body))
        return way, (b"HPUB", b"HMSG")[way] + b" %s %s\r\n%s%s\r\n" % (head, sizes, block, body)
    if draws < 0.9 and way == C2S:
        queue = seeded.choice((b"", b" q", b" q.x", b" >"))
        limit = seeded.choice((b"", b" 1", b" 3", b" x", b" 0"))
        return way, seeded.choice(
            (b"SUB %s%s %s\r\n" % (subject, queue, sid), b"UNSUB %s%s\r\n" % (sid, limit))
        )
    return way, seeded.choice(FRAMES_BY_DIRECTION[way])


def chain(tables: list[dict[str, Any]], seed: int, previous: RuleChain | None = None) -> RuleChain | None:
    try:
        return RuleChain(parse_rules(tables, KINDS), seed=seed, previous=previous)
    except ConfigError:  # two that cannot stand together
        return None


def run(seed: int) -> Playbook | None:
    """Let two hostile peers talk through some rules."""
    seeded = random.Random(seed)
    tables = [
        {**table, "name": str(n)} for n, table in enumerate(seeded.sample(TABLES, seeded.randint(1, 8)))
    ]
    for table in tables:
        if seeded.random() < 0.5 and table["kind"] != "permissions":
            table.pop("client", None)
    rules = chain(tables, seed)
    if rules is None:
        return None
    play = Playbook(rules, rule_buffer=2000)
    play.server(b'INFO {"version":"2.15.1","headers":true,"max_payload":100000}\r\n')
    for _ in range(seeded.randint(5, 60)):
        way, raw = frame(seeded)
        if seeded.random() < 0.1 and (other := chain(tables[: seeded.randint(0, len(tables))], seed, rules)):
            play.do(play.session.swap(other, play.now))
        at = seeded.randint(0, len(raw))
        for piece in (raw[:at], raw[at:]):
            if piece:
                (play.server if way else play.client)(piece)
        play.at(play.now + seeded.choice((0, 1_000_000, 3_000_000_000)))
        if play.end:
            break
    return play


def check(seeds: range) -> None:
    fired = 0
    for seed in seeds:
        play = run(seed)
        if play is None:
            continue
        assert play.end is None or play.end.cause != close_reasons.RULE_FAILED, (seed, play.end)
        builder = BlockBuilder()
        builder.begin(0, 0)
        for event in play.events:
            if isinstance(event, Firing):
                info = {name: getattr(event, name) for name in event.__slots__}
                builder.add(records.FiringRecord(event.conn, event.t, info))
                fired += 1
    assert fired > len(seeds)


def test_no_rule_fails() -> None:
    check(range(60))


@pytest.mark.long
def test_no_rule_fails_for_longer() -> None:
    check(range(60, 1_500))
