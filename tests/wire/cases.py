"""The one table of the wire: bytes of one direction and what they are.

`good`: frames, each with its fields.  `bad`: how a stream ends that cannot be framed.  The examples of the
protocol documents are all here, the wrong ones with what nats-server (or a client) really does.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from natsproxy.wire.frames import FramingFault
from natsproxy.wire.ops import C2S, S2C, Direction, Op


class Good(NamedTuple):
    """One frame: its bytes and the fields that differ from the defaults."""

    name: str
    direction: Direction
    raw: bytes
    op: Op
    fields: dict[str, Any]


class Bad(NamedTuple):
    """A stream that cannot be framed: end is how many bytes it takes to find out."""

    name: str
    raw: bytes
    fault: FramingFault
    end: int


def _f(**fields: Any) -> dict[str, Any]:
    return fields


_HEADERS = b"NATS/1.0\r\nBREAKFAST: donut\r\nLUNCH: burger\r\n\r\n"
_VEGETABLE = b"NATS/1.0\r\nFoodGroup: vegetable\r\n\r\n"
_CONNECT = b'{"verbose":false,"pedantic":false,"tls_required":false,"name":"","lang":"go","version":"1.2.2","protocol":1}'
_TIMEOUT = b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 1\r\nNats-Pending-Bytes: 0\r\n\r\n"

GOOD = [
    # the documents' examples
    Good("connect", C2S, b"CONNECT " + _CONNECT + b"\r\n", Op.CONNECT, _f(args=_CONNECT)),
    Good("pub", C2S, b"PUB FOO 11\r\nHello NATS!\r\n", Op.PUB, _f(subject=b"FOO", size=11)),
    Good(
        "pub with reply",
        C2S,
        b"PUB FRONT.DOOR JOKE.22 11\r\nKnock Knock\r\n",
        Op.PUB,
        _f(subject=b"FRONT.DOOR", reply=b"JOKE.22", size=11),
    ),
    Good("empty pub", C2S, b"PUB NOTIFY 0\r\n\r\n", Op.PUB, _f(subject=b"NOTIFY")),
    Good(
        "hpub",
        C2S,
        b"HPUB FOO 22 33\r\nNATS/1.0\r\nBar: Baz\r\n\r\nHello NATS!\r\n",
        Op.HPUB,
        _f(subject=b"FOO", header_size=22, size=33),
    ),
    Good(
        "hpub with reply",
        C2S,
        b"HPUB FRONT.DOOR JOKE.22 45 56\r\n" + _HEADERS + b"Knock Knock\r\n",
        Op.HPUB,
        _f(subject=b"FRONT.DOOR", reply=b"JOKE.22", header_size=45, size=56),
    ),
    Good(
        "hpub without body",
        C2S,
        b"HPUB NOTIFY 22 22\r\nNATS/1.0\r\nBar: Baz\r\n\r\n\r\n",
        Op.HPUB,
        _f(subject=b"NOTIFY", header_size=22, size=22),
    ),
    Good(
        "hpub with two values",
        C2S,
        b"HPUB MORNING.MENU 47 51\r\nNATS/1.0\r\nBREAKFAST: donut\r\nBREAKFAST: eggs\r\n\r\nYum!\r\n",
        Op.HPUB,
        _f(subject=b"MORNING.MENU", header_size=47, size=51),
    ),
    Good("sub", C2S, b"SUB FOO 1\r\n", Op.SUB, _f(subject=b"FOO", sid=b"1")),
    Good("sub in lower case", C2S, b"sub foo 1\r\n", Op.SUB, _f(subject=b"foo", sid=b"1")),
    Good("sub with queue", C2S, b"SUB BAR G1 44\r\n", Op.SUB, _f(subject=b"BAR", queue=b"G1", sid=b"44")),
    Good("unsub", C2S, b"UNSUB 1\r\n", Op.UNSUB, _f(sid=b"1")),
    Good("unsub with max", C2S, b"UNSUB 1 5\r\n", Op.UNSUB, _f(sid=b"1", args=b"5")),
    Good("ping", C2S, b"PING\r\n", Op.PING, {}),
    Good("pong", C2S, b"PONG\r\n", Op.PONG, {}),
    Good(
        "msg", S2C, b"MSG FOO.BAR 9 11\r\nHello World\r\n", Op.MSG, _f(subject=b"FOO.BAR", sid=b"9", size=11)
    ),
    Good(
        "msg with reply",
        S2C,
        b"MSG FOO.BAR 9 GREETING.34 11\r\nHello World\r\n",
        Op.MSG,
        _f(subject=b"FOO.BAR", sid=b"9", reply=b"GREETING.34", size=11),
    ),
    Good(
        "hmsg as it should have been",
        S2C,
        b"HMSG FOO.BAR 9 34 45\r\n" + _VEGETABLE + b"Hello World\r\n",
        Op.HMSG,
        _f(subject=b"FOO.BAR", sid=b"9", header_size=34, size=45),
    ),
    Good(
        "hmsg with reply",
        S2C,
        b"HMSG FOO.BAR 9 BAZ.69 34 45\r\n" + _VEGETABLE + b"Hello World\r\n",
        Op.HMSG,
        _f(subject=b"FOO.BAR", sid=b"9", reply=b"BAZ.69", header_size=34, size=45),
    ),
    Good(
        "request timeout",
        S2C,
        b"HMSG inbox.3 1 81 81\r\n" + _TIMEOUT + b"\r\n",
        Op.HMSG,
        _f(subject=b"inbox.3", sid=b"1", header_size=81, size=81),
    ),
    Good("ok", S2C, b"+OK\r\n", Op.OK, {}),
    Good(
        "err", S2C, b"-ERR 'Unknown Protocol Operation'\r\n", Op.ERR, _f(args=b"'Unknown Protocol Operation'")
    ),
    Good("info", S2C, b'INFO {"server_id":"x"} \r\n', Op.INFO, _f(args=b'{"server_id":"x"}')),
    # what real peers send
    Good("two blanks, no queue", C2S, b"SUB foo  1\r\n", Op.SUB, _f(subject=b"foo", sid=b"1")),
    Good("trailing blank", C2S, b"UNSUB 3 \r\n", Op.UNSUB, _f(sid=b"3")),
    Good("leading zeros", C2S, b"PUB foo 000000002\r\nhi\r\n", Op.PUB, _f(subject=b"foo", size=2)),
    Good(
        "tabs and mixed case",
        C2S,
        b"pUb \t a\t\tb \t2 \t\r\nhi\r\n",
        Op.PUB,
        _f(subject=b"a", reply=b"b", size=2),
    ),
    Good("bare LF", C2S, b"PUB a 2\nhi\r\n", Op.PUB, _f(subject=b"a", size=2)),
    Good("ping with a tail", C2S, b"PINGxyz abc\r\n", Op.PING, {}),
    Good("connect without a blank", C2S, b"CONNECT{}\r\n", Op.CONNECT, _f(args=b"{}")),
    Good("odd bytes", C2S, b"PUB a\x00\xff\x0b 1\r\n\n\r\n", Op.PUB, _f(subject=b"a\x00\xff\x0b", size=1)),
    Good("hpub of no header bytes", C2S, b"HPUB h 0 2\r\nhi\r\n", Op.HPUB, _f(subject=b"h", size=2)),
    Good("unsub with a bad max", C2S, b"UNSUB 1 abc\r\n", Op.UNSUB, _f(sid=b"1", args=b"abc")),
    Good(
        "old server, two blanks",
        S2C,
        b"MSG inb.1 1  5\r\nhello\r\n",
        Op.MSG,
        _f(subject=b"inb.1", sid=b"1", size=5),
    ),
    Good("info with tab", S2C, b"info\t{}\r\n", Op.INFO, _f(args=b"{}")),
    Good(
        "line at the limit", C2S, b"SUB " + b"a" * 4094 + b" 1\r\n", Op.SUB, _f(subject=b"a" * 4094, sid=b"1")
    ),
]

BAD = [
    Bad("unknown op, at its first byte", b"XUB a 1\r\n", FramingFault.UNKNOWN_OP, 1),
    Bad("wrong second letter", b"PX", FramingFault.UNKNOWN_OP, 2),
    Bad("blank line", b"\r\n", FramingFault.UNKNOWN_OP, 1),
    Bad("leading blank", b" PING\r\n", FramingFault.UNKNOWN_OP, 1),
    Bad("MSG from a client", b"MSG a 1 1\r\nx\r\n", FramingFault.UNKNOWN_OP, 1),
    Bad("PUB without a delimiter", b"PUB\r\n", FramingFault.UNKNOWN_OP, 4),
    Bad("PUB with one argument", b"PUB a\r\n", FramingFault.SILENT, 7),
    Bad("the documents' FOO. BAR", b"SUB FOO. BAR x 1\r\n", FramingFault.SILENT, 18),
    Bad("PUB with four", b"PUB a b c 1\r\n", FramingFault.SILENT, 13),
    Bad("ten digits", b"PUB a 0000000001\r\n", FramingFault.SILENT, 18),
    Bad("a sign", b"PUB a -1\r\n", FramingFault.SILENT, 10),
    Bad("more header than total", b"HPUB a 5 2\r\n", FramingFault.SILENT, 12),
    Bad("wrong terminator", b"PUB a 2\r\nhiXX", FramingFault.TERMINATOR, 12),
    Bad("LF terminator", b"PUB a 2\r\nhi\n", FramingFault.TERMINATOR, 12),
    Bad("CR inside a line", b"SUB fo\ro 1\r\n", FramingFault.REFUSED, 8),
    Bad("HMSG from a client", b"HMSG a 1 0 0\r\n", FramingFault.REFUSED, 4),
    Bad("INFO from a client", b"INFO {}\r\n", FramingFault.REFUSED, 4),
    Bad("-ERR from a client", b"-ERR 'x'\r\n", FramingFault.REFUSED, 4),
    Bad("line beyond the limit", b"SUB " + b"a" * 4095 + b" 1\r\n", FramingFault.LINE_TOO_LONG, 0),
    Bad("unfinished line beyond the limit", b"PUB " + b"a" * 4097, FramingFault.LINE_TOO_LONG, 0),
    Bad("endless tail", b"PING" + b"x" * 4097, FramingFault.REFUSED, 0),
]
"""Client streams; end 0: where it is found out depends on how the bytes come."""
