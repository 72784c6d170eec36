"""One conversation by hand in which everything happens once, under rules that change, drop, hold and invent.

Connections: 1 asks, 2 and 3 answer, 4 works for JetStream, 5 was open before the recording.  Times in ms.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from natsproxy.capture.filter.redact import without_payload
from natsproxy.capture.format.records import (
    CloseRecord,
    FiringRecord,
    Flags,
    Frames,
    GapRecord,
    Item,
    OpenRecord,
    Preamble,
)
from natsproxy.wire.ops import C2S, S2C, Direction
from natsproxy.wire.parse import frames
from tests.kit.captures import MONO, write

MS = 1_000_000
ASKER, FIRST, SECOND, WORKER, OLD = 1, 2, 3, 4, 5


class Conversation:
    """Writes frames as the proxy records them, whatever its rules did; times in ms since the start."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self._arrived: dict[tuple[int, Direction], itertools.count[int]] = {}
        self._left: dict[tuple[int, Direction], itertools.count[int]] = {}

    def _put(
        self,
        conn: int,
        direction: Direction,
        raw: bytes,
        came: float | None,
        went: float | None,
        cause: str | None = None,
        of: int | None = None,
        flags: int = 0,
    ) -> int | None:
        key, sides = (conn, direction), (self._arrived, self._left)
        op = 0 if flags else 1 << next(frames(raw, direction)).op
        seen: list[tuple[int | None, int | None]] = [
            (None, None)
            if t is None
            else (next(side.setdefault(key, itertools.count())), MONO + round(t * MS))
            for t, side in zip((came, went), sides, strict=True)
        ]
        extra = None if of is None else {"of": of}
        self.items.append(Frames(conn, direction, raw, 1, op, *seen[0], *seen[1], cause, flags, extra))
        return seen[0][0]

    def send(self, t: float, conn: int, raw: bytes, *, delay: float = 0) -> None:
        """A client sends a frame; a rule may hold it."""
        self._put(conn, C2S, raw, t, t + delay)

    def withhold(self, t: float, conn: int, raw: bytes, kept: bytes = b"") -> None:
        """A client sends a message of whose payload only this is recorded."""
        self.send(t, conn, raw)
        record, (frame,) = self.items[-1], frames(raw, C2S)
        assert isinstance(record, Frames)
        self.items[-1] = without_payload(record, frame, "truncate", kept)

    def receive(self, t: float, conn: int, raw: bytes, *, delay: float = 0) -> None:
        """A client gets a frame of the server; a rule may hold it."""
        self._put(conn, S2C, raw, t, t + delay)

    def drop(self, t: float, conn: int, direction: Direction, raw: bytes, rule: str) -> int:
        """A rule drops a frame; return its ordinal."""
        ordinal = self._put(conn, direction, raw, t, None, rule)
        assert ordinal is not None
        return ordinal

    def change(
        self, t: float, conn: int, direction: Direction, raw: bytes, new: bytes, *, delay: float = 0
    ) -> int:
        """A rule changes a frame; return its ordinal."""
        ordinal = self._put(conn, direction, raw, t, None, "changes")
        assert ordinal is not None
        self._put(conn, direction, new, None, t + delay, "changes", ordinal)
        return ordinal

    def make(self, t: float, conn: int, direction: Direction, raw: bytes, cause: str = "rule") -> None:
        """The proxy makes a frame itself."""
        self._put(conn, direction, raw, None, t, cause)

    def cut(self, t: float, conn: int, direction: Direction, raw: bytes) -> None:
        """A frame that its sender never finished."""
        self._put(conn, direction, raw, t, t, flags=Flags.CUT)

    def fire(
        self, t: float, conn: int, rule: str, direction: str, ordinal: int | None, **more: object
    ) -> None:
        """A rule acts."""
        info = {"rule": rule, "kind": "x", "action": "x", "direction": direction, "ordinal": ordinal, "m": 1}
        self.items.append(FiringRecord(conn, MONO + round(t * MS), {**info, **more}))


def status(reply: bytes, code: bytes) -> bytes:
    """Return an HMSG that is a status."""
    block = b"NATS/1.0 " + code + b"\r\n\r\n"
    return b"HMSG %s 9 %d %d\r\n%s\r\n" % (reply, len(block), len(block), block)


def pub(subject: bytes, body: bytes, headers: bytes = b"") -> bytes:
    """Return a PUB, or with headers an HPUB; subject: with the reply, where there is one."""
    if not headers:
        return b"PUB %s %d\r\n%s\r\n" % (subject, len(body), body)
    return b"HPUB %s %d %d\r\n%s%s\r\n" % (subject, len(headers), len(headers + body), headers, body)


def msg(subject: bytes, sid: bytes, body: bytes, reply: bytes = b"") -> bytes:
    """Return a MSG."""
    return b"MSG %s\r\n%s\r\n" % (b" ".join(filter(None, (subject, sid, reply, b"%d" % len(body)))), body)


def known_conversation() -> Conversation:
    """Return the whole conversation."""
    conversation = Conversation()
    parts = (
        _comings,
        _requests,
        _reused,
        _mixed,
        _tapped,
        _jetstream,
        _publishes,
        _deliveries,
        _fanout,
        _lines,
        _signs,
    )
    for part in parts:
        part(conversation)
    _goings(conversation)
    return conversation


def _comings(s: Conversation) -> None:
    for conn in (ASKER, FIRST, SECOND, WORKER):
        own = {} if conn == WORKER else {"upstream_local": f"10.1.0.0:{conn}"}  # format 1.0 has none
        s.items.append(OpenRecord(conn, MONO, {"client": f"10.0.0.{conn}:1", **own}))
    s.change(
        0, ASKER, S2C, b'INFO {"version":"2.15.1","connect_urls":["a"]}\r\n', b'INFO {"version":"2.15.1"}\r\n'
    )
    s.send(1, ASKER, b'CONNECT {"name":"asker","lang":"go","version":"1.53","user":"ann"}\r\n')
    greeting = {
        "connect": b'CONNECT {"name":"old","lang":"python3"}\r\n',
        "info": b'INFO {"version":"2.12.3"}\r\n',
    }
    subs = [["1", "past.>", "", 0, 0], ["2", "some.*", "team", 5, 3]]
    s.items.append(Preamble(OLD, MONO, {**greeting, "subs": subs, "open": {"client": "10.0.0.5:1"}}))


def _requests(s: Conversation) -> None:
    s.send(100, ASKER, pub(b"svc.plain r.plain", b"q"))
    s.receive(102, FIRST, msg(b"svc.plain", b"1", b"q", b"r.plain"))
    s.send(108, FIRST, pub(b"r.plain", b"a"))
    s.receive(110, ASKER, msg(b"r.plain", b"9", b"a"))
    s.send(120, ASKER, pub(b"svc.nobody r.nobody", b"q"))
    s.receive(121, ASKER, status(b"r.nobody", b"503"))
    ordinal = s.drop(130, ASKER, C2S, pub(b"svc.lost r.lost", b"q"), "loses")
    s.fire(130, ASKER, "loses", "c2s", ordinal, action="drop", subject="svc.lost")
    s.send(140, ASKER, pub(b"svc.held r.held", b"q"), delay=20)
    s.receive(161, FIRST, msg(b"svc.held", b"1", b"q", b"r.held"))
    s.send(162, FIRST, pub(b"r.held", b"a"))
    s.receive(163, ASKER, msg(b"r.held", b"9", b"a"), delay=30)
    ordinal = s.change(200, ASKER, C2S, pub(b"svc.old r.moved", b"q"), pub(b"svc.new r.moved", b"q"))
    s.fire(200, ASKER, "changes", "c2s", ordinal, action="rewrite", subject="svc.old")
    s.receive(202, FIRST, msg(b"svc.new", b"1", b"q", b"r.moved"))
    s.send(203, FIRST, pub(b"r.moved", b"a"))
    s.change(204, ASKER, S2C, msg(b"r.moved", b"9", b"a"), msg(b"r.moved", b"9", b"A!"), delay=1)
    s.drop(210, ASKER, C2S, pub(b"svc.invented r.invented", b"q"), "answers")
    s.make(211, ASKER, S2C, msg(b"r.invented", b"9", b"a"))
    s.send(220, ASKER, pub(b"svc.all r.all", b"q"))
    for place, conn in enumerate((FIRST, SECOND)):
        s.receive(221 + place, conn, msg(b"svc.all", b"1", b"q", b"r.all"))
        s.send(224 + place, conn, pub(b"r.all", b"a%d" % conn))
        s.receive(226 + 3 * place, ASKER, msg(b"r.all", b"9", b"a%d" % conn))
    s.send(240, ASKER, pub(b"svc.twice r.twice", b"q"))
    s.receive(241, ASKER, msg(b"r.twice", b"9", b"a"))
    s.make(241.5, ASKER, S2C, msg(b"r.twice", b"9", b"a"), "doubles")
    s.cut(250, ASKER, C2S, b"PUB svc.cut r.cut 100\r\nhalf")


def _reused(s: Conversation) -> None:
    """One reply subject three times (the second is not answered), one in a row, and pulls on an inbox."""
    for t, answered in ((300, True), (310, False), (320, True)):
        s.send(t, ASKER, pub(b"svc.again r.again", b"q"))
        if answered:
            s.receive(t + 4, ASKER, msg(b"r.again", b"9", b"a"))
    for t in (360, 361, 362):
        s.send(t, ASKER, pub(b"svc.piped r.piped", b"q"))
    for t in (363, 364, 365):
        s.receive(t, FIRST, msg(b"svc.piped", b"1", b"q", b"r.piped"))
    for t in (366, 368, 370):
        s.send(t, FIRST, pub(b"r.piped", b"a"))
    for t in (371, 373, 375):
        s.receive(t, ASKER, msg(b"r.piped", b"9", b"a"))
    for t in (330, 340, 350):
        s.send(t, WORKER, pub(b"$JS.API.CONSUMER.MSG.NEXT.S.C r.pull", b"1"))
    s.receive(355, WORKER, status(b"r.pull", b"404 No Messages"))


def _mixed(s: Conversation) -> None:
    """Reply subjects with more or fewer replies than requests: the first three cannot be told apart."""
    for name, asked, answered in (
        (b"short", (720, 721, 722), (723, 724)),
        (b"window", (730, 731, 732, 734), (733, 735)),
        (b"before", (741,), (740, 743)),
        (b"scatter", (745, 748), (746, 747)),
        (b"retry", (750, 755), (757,)),
        (b"spread", (794, 795, 796), (799, 799.25, 799.5)),
    ):
        for t in asked:
            s.send(t, ASKER, pub(b"svc.mixed r." + name, b"q"))
        for came in answered:
            s.receive(came, ASKER, msg(b"r." + name, b"9", b"a"))
    for late in (797, 797.5):  # one of three went to a responder elsewhere
        s.receive(late, FIRST, msg(b"svc.mixed", b"1", b"q", b"r.spread"))
        s.send(late + 1, FIRST, pub(b"r.spread", b"a"))


def _tapped(s: Conversation) -> None:
    """The worker gets copies of requests and replies that are not for it."""

    def passes(t: float, reply: bytes, *times: float) -> None:
        request, answer = msg(b"svc.tapped", b"1", b"q", reply), msg(reply, b"9", b"a")
        steps = [(s.send, ASKER, pub(b"svc.tapped " + reply, b"q"))]
        steps += [(s.receive, WORKER, request), (s.receive, FIRST, request)]
        steps += [(s.send, FIRST, pub(reply, b"a")), (s.receive, WORKER, answer), (s.receive, ASKER, answer)]
        for at, (passing, conn, raw) in zip((t, *times), steps, strict=False):
            passing(at, conn, raw)

    passes(760, b"r.tapped", 761, 762, 765, 766, 769)
    passes(770, b"r.untold", 771, 772)
    passes(773, b"r.overheard", 774)
    for t, reply, conns in ((775, b"r.read", (WORKER, ASKER)), (775.5, b"r.elsewhere", (WORKER, FIRST))):
        s.send(t, ASKER, pub(b"svc.tapped " + reply, b"q"))
        for place, conn in enumerate(conns, 1):
            s.receive(t + place * 0.125, conn, msg(reply, b"9", b"a"))
    for t in (
        776,
        778,
        780,
    ):  # asked before the last reply has come
        passes(t, b"r.copied", t + 1.75, t + 1.5, t + 1.75, t + 2.25, t + 2.5)


def _jetstream(s: Conversation) -> None:
    calls = (
        (b"$JS.API.INFO", b'{"type":"x","memory":0}'),
        (
            b"$JS.API.STREAM.CREATE.S",
            b'{"type":"x","error":{"code":400,"err_code":10058,"description":"in \\"use\\""}}',
        ),
        (b"$JS.hub.API.CONSUMER.DURABLE.CREATE.S.C", b'{"type":"x"}'),
        (b"$JS.API.DIRECT.GET.S.some.where", b"the message"),
    )
    for number, (subject, answer) in enumerate(calls):
        reply = b"r.api.%d" % number
        s.send(400 + number * 10, ASKER, pub(subject + b" " + reply, b""))
        s.receive(405 + number * 10, ASKER, msg(reply, b"9", answer))
    s.send(450, ASKER, pub(b"$JS.API.STREAM.INFO.S r.api.late", b""))


def _publishes(s: Conversation) -> None:
    marked = b"NATS/1.0\r\nNats-Msg-Id: m\r\n\r\n"
    for name, headers, answer in (
        (b"one", b"", b'{"stream":"S","seq":1}'),
        (b"again", marked, b'{"stream":"S", "seq": 1, "duplicate": true}'),
        (
            b"wrong",
            marked,
            b'{"error":{"code":400,"err_code":10071,"description":"wrong last"},"stream":"S","seq":0}',
        ),
        (b"batch", b"", b'{"stream":"S","seq":9,"batch":"b","count":4}'),
        (b"interim", b"", b""),
        (b"silent", b"", None),
    ):
        s.send(500, ASKER, pub(b"stored r.pub." + name, b"x", headers))
        if answer is not None:
            s.receive(503, ASKER, msg(b"r.pub." + name, b"9", answer))
    s.send(510, ASKER, pub(b"stored r.pub.none", b"x"))
    s.receive(511, ASKER, status(b"r.pub.none", b"503"))
    for t in (540, 541, 542):
        s.send(t, ASKER, pub(b"stored r.pub.row", b"x"))
    for t in (543, 544):
        s.receive(t, ASKER, msg(b"r.pub.row", b"9", b'{"stream":"S","seq":%d}' % t))
    s.send(520, ASKER, pub(b"elsewhere r.pub.marked", b"x", marked))


def _deliveries(s: Conversation) -> None:
    """Each stream sequence is one direction to settle; 2 is delivered twice, 8 and 9 over a domain."""
    settled: dict[int, tuple[bytes, ...]] = {
        1: (b"+ACK",),
        2: (b"-NAK",),
        3: (b"+TERM because",),
        4: (b"+WPI", b"+WPI", b""),
        5: (b"+WPI",),
        6: (),
        7: (b"+NXT 1",),
        8: (b"what?",),
        9: (b"+ACKnowledged",),
    }
    tails = {8: b"hub.acc.S.C.1.8.8.1.0", 9: b"_.acc.S.C.1.9.9.1.0.rnd"}
    for seq, answers in settled.items():
        t, ack = 600 + seq * 10, b"$JS.ACK." + tails.get(seq, b"S.C.1.%d.%d.1.7" % (seq, seq))
        s.receive(t, WORKER, msg(b"stored", b"3", b"x", ack))
        for place, answer in enumerate(answers, 1):
            s.send(t + place, WORKER, pub(ack, answer))
    made = b'{"type":"io.nats.jetstream.api.v1.consumer_create_response","stream_name":"KV_x","name":"made",'
    for name, asked, told in (
        (b".watch", b'{"stream_name": "KV_x", "config": {"ack_policy": "none"}}', b"{}"),
        (b"", b"{}", made + b'"config":{"ack_policy":"none"}}'),
        (b".work", b'{"config": {"ack_policy": "explicit"}}', b"{}"),
        (b".all", b'{"config": {"ack_policy": "all"}}', b"{}"),
        (b".part", b'{"config": {"ack_policy": "all"}}', b"{}"),
    ):
        reply = b"r.consumer" + name
        s.send(550, WORKER, pub(b"$JS.API.CONSUMER.CREATE.KV_x" + name + b" " + reply, asked))
        s.receive(551, WORKER, msg(reply, b"9", told))
    for name in (b"watch", b"made", b"work", b"older"):
        s.receive(560, WORKER, msg(b"kv.a", b"3", b"x", b"$JS.ACK.KV_x." + name + b".1.1.1.1.0"))
    for t, seq, answer in ((570, 1, b""), (571, 2, b"-NAK"), (572, 3, b""), (573, 4, b"+ACK"), (574, 5, b"")):
        ack = b"$JS.ACK.KV_x.all.1.%d.%d.1.0" % (seq, seq)
        s.receive(t, WORKER, msg(b"kv.b", b"3", b"x", ack))
        if answer:
            s.send(t + 10, WORKER, pub(ack, answer))
    for t, tail in ((590, b"2.6"), (591, b"3.7"), (596, b"2.8")):  # it was made again, with an ack, and again
        s.receive(t, WORKER, msg(b"kv.b", b"3", b"x", b"$JS.ACK.KV_x.all.1.%s.1.0" % tail))
    s.send(595, WORKER, pub(b"$JS.ACK.KV_x.all.1.3.7.1.0", b"+ACK"))
    for seq, answer, kept in (
        (1, b"+ACK", b""),
        (2, b"-NAK 9", b"-NAK"),
        (3, b"+ACKnowledged", b"+ACK"),
        (4, b"+WPI later", b"+WPI"),
        (5, b"", b""),
        (6, b"+ACK", b"+ACK"),
    ):
        ack = b"$JS.ACK.W.C.1.%d.%d.1.0" % (seq, seq)
        s.receive(650 + seq, WORKER, msg(b"w", b"3", b"x", ack))
        s.withhold(660 + seq, WORKER, pub(ack, answer), kept)
    for seq in (1, 2, 3):
        s.receive(670 + seq, WORKER, msg(b"kv.b", b"3", b"x", b"$JS.ACK.KV_x.part.1.%d.%d.1.0" % (seq, seq)))
    s.withhold(675, WORKER, pub(b"$JS.ACK.KV_x.part.1.2.2.1.0", b"+ACK"))
    s.send(789, ASKER, pub(b"log.line", b"x"))  # no ack tells of its stream, only the delivery
    s.receive(790, WORKER, msg(b"log.line", b"3", b"x", b"$JS.ACK.L.D.1.1.1.1.0"))
    s.send(792, WORKER, pub(b"$JS.ACK.L.D.1.1.1.1.0 r.next", b"+NXT"))
    for conn in (FIRST, WORKER):  # a subscriber to > gets a copy
        s.receive(680, conn, msg(b"stored", b"3", b"x", b"$JS.ACK.TAPPED.C.1.1.1.1.0"))
    s.send(681, FIRST, pub(b"$JS.ACK.TAPPED.C.1.1.1.1.0", b"+ACK"))
    s.receive(700, WORKER, msg(b"stored", b"3", b"x", b"$JS.ACK.S.C.2.2.10.1.0"), delay=5)
    s.drop(710, WORKER, C2S, pub(b"$JS.ACK.S.C.2.2.10.1.0", b"+ACK"), "loses")


def _fanout(s: Conversation) -> None:
    s.send(800, ASKER, pub(b"news.one", b"same"), delay=2)
    for t, conn in ((803, FIRST), (806, SECOND)):
        s.receive(t, conn, msg(b"news.one", b"2", b"same"), delay=50)
    for _ in range(2):
        s.send(810, ASKER, pub(b"news.equal", b"same"))
        s.receive(811, FIRST, msg(b"news.equal", b"2", b"same"))
    s.drop(820, ASKER, C2S, pub(b"news.lost", b"x"), "loses")
    s.change(830, ASKER, C2S, pub(b"news.before", b"x"), pub(b"news.after", b"x"))
    s.change(831, FIRST, S2C, msg(b"news.after", b"2", b"x"), msg(b"news.before", b"2", b"x"))
    s.make(840, SECOND, S2C, msg(b"news.invented", b"2", b"x"))


BLOCKS = (
    b"NATS/1.0\r\nA: 1\r\nA:2\r\nB: \t spaced \t\r\n\r\n",
    b"NATS/1.0 404 No Messages\r\n\r\n",
    b"NATS/1.0\nOnly-LF: x\n\n",
    b"No-Version: 1\r\nTwo:2\r\n\r\n",
    b"NATS/1.0\r\nno colon here\r\nC:a:b\r\n\r\nAfter: blank\r\n",
    b"NATS/1.0  503\r\nEmpty:\r\n",
    b"NATS/1.0\r\n\r\n",
)


def _lines(s: Conversation) -> None:
    for number, block in enumerate(BLOCKS):
        s.send(900 + number, ASKER, pub(b"headed.%d" % number, b"x", block))


def _signs(s: Conversation) -> None:
    """Subscriptions, signs of life, refusals."""
    s.send(1000, FIRST, b"SUB live.a 21\r\n")
    s.send(1001, FIRST, b"SUB live.b team 22\r\n")
    s.drop(1002, FIRST, C2S, b"SUB live.denied 23\r\n", "denies")
    s.make(1003, FIRST, S2C, b"-ERR 'Permissions Violation for Subscription to \"live.denied\"'\r\n")
    s.send(1004, FIRST, b"SUB live.c 24\r\n")
    for t in (1005, 1006):
        s.receive(t, FIRST, msg(b"live.a", b"21", b"four"))
    s.send(1007, FIRST, b"UNSUB 21\r\n")
    s.send(1008, FIRST, b"UNSUB 22 2\r\n")
    for t in (1009, 1010):
        s.receive(t, FIRST, msg(b"live.b", b"22", b"x"))
    s.send(1011, FIRST, b"SUB live.z 21\r\n")
    s.receive(1012, FIRST, msg(b"live.z", b"21", b"x"))
    s.drop(1013, FIRST, S2C, msg(b"live.z", b"21", b"x"), "loses")
    denial = b"-ERR 'Permissions Violation for Subscription to \"%s\"'\r\n"
    for t, sid in ((1016, 31), (1017, 32)):
        s.send(t, WORKER, b"SUB no.twice %d\r\n" % sid)
    for t in (1018, 1019):
        s.receive(t, WORKER, denial % b"no.twice")
    for t, sid in ((1022, 33), (1023, 34)):
        s.send(t, WORKER, b"SUB no.more team %d\r\n" % sid)
    s.receive(1024, WORKER, denial.replace(b"'\r", b' using queue "team"\'\r') % b"no.more")
    for t, line in (
        (1025, b"SUB no.queue workers 35"),
        (1026, b"SUB no.queue 36"),
        (1031, b"SUB taken.x 37"),
    ):
        s.send(t, WORKER, line + b"\r\n")
    s.receive(1027, WORKER, denial.replace(b"'\r", b' using queue "workers"\'\r') % b"no.queue")
    for t in (1028, 1029):
        s.receive(t, WORKER, msg(b"no.queue", b"36", b"x"))
    s.send(1032, WORKER, b"SUB a.b.c.d team 38\r\n")
    s.receive(1033, WORKER, denial.replace(b"'\r", b", too many tokens'\r") % b"a.b.c.d")
    s.receive(1034, WORKER, msg(b"taken.x", b"37", b"x"))
    s.send(1035, WORKER, b"SUB taken.x 39\r\n")
    s.receive(1036, WORKER, denial.replace(b"'\r", b' (sid "37")\'\r') % b"taken.x")
    s.send(1037, WORKER, b"SUB dev.device-7.cmd 40\r\n")
    s.receive(1038, WORKER, denial % b"dev.device-7.cmd")
    for t in (1014, 1015):
        s.receive(t, OLD, msg(b"some.thing", b"2", b"x"))
    s.fire(1018, ASKER, "informs", "s2c", None, action="info")
    for t in (1019, 1019, 1041):
        s.fire(t, ASKER, "errs", "c2s", None, action="error", subject="asked")
    s.receive(1020, ASKER, b"-ERR 'Unknown Protocol Operation'\r\n")
    s.receive(1043, ASKER, b"-ERR 'Permissions Violation for Publish with Reply of \"r.not\"'\r\n")
    s.fire(1044, WORKER, "deaf", "c2s", None, action="drop", subject="")
    s.fire(1045, WORKER, "loses", "c2s", None, action="drop", subject="svc.lost")
    s.receive(1048, WORKER, b"-ERR 'Stale Connection'\r\n")
    s.change(1021, ASKER, S2C, b"-ERR 'Invalid \"x\"'\r\n", b"-ERR 'Invalid \"y\"'\r\n")
    for t, late in ((1030, 1), (1040, 3)):
        s.send(t, SECOND, b"PING\r\n")
        s.receive(t + late, SECOND, b"PONG\r\n")
    s.make(1050, SECOND, C2S, b"PING\r\n", "proxy")
    s.drop(1051, SECOND, S2C, b"PONG\r\n", "proxy")
    s.receive(3550, SECOND, b"PING\r\n")
    s.send(3552, SECOND, b"PONG\r\n")


def _goings(s: Conversation) -> None:
    ordinal = s.drop(3990, FIRST, C2S, pub(b"quiet", b"x"), "drops")
    s.fire(3990, FIRST, "drops", "c2s", ordinal, kind="drop", action="drop", subject="quiet")
    ordinal = s.drop(4000, FIRST, C2S, pub(b"secret", b"x"), "denies")
    s.fire(4000, FIRST, "denies", "c2s", ordinal, kind="deny", action="deny", subject="secret")
    s.make(4002, FIRST, S2C, b"-ERR 'Permissions Violation for Publish to \"secret\"'\r\n")
    s.fire(4003, FIRST, "shuts", "s2c", None, action="close", count=3)
    s.items.append(GapRecord(None, MONO + 4500 * MS, {"reason": "the disk", "frames": 3, "bytes": 99}))
    s.items.append(GapRecord(FIRST, MONO + 4600 * MS, {"reason": "full"}))
    end = {"c2s_bytes": 10, "s2c_bytes": 20, "c2s_frames": 1, "s2c_frames": 2, "detail": "by rule"}
    s.items.append(CloseRecord(FIRST, MONO + 5000 * MS, "rule", end))


def write_known_conversation(path: Path) -> Path:
    """Write the conversation as a capture of small blocks."""
    return write(path, known_conversation().items, per_block=17)
