"""The op table: one row per operation of the NATS client protocol.

Parser, encoder, session, captures, page and Spark read this table, so a new op is a member of `Op`, a row of
`OPS`, a row in `recordings/FORMAT.md` and a case in `tests/wire/cases.py`.  Only the fast paths in C have op
numbers of their own, for all ops but -ERR (`_line.pxd`); a test compares them with the table.  Any other op
takes the general path there.

The facts are nats-server's (`server/parser.go`).  The server tolerates +OK, -ERR and INFO from a client;
`from_client` is true only for those of them that natsproxy passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final


class Direction(IntEnum):
    """The direction of a frame: `C2S` from the client to the server, `S2C` from the server to the client."""

    C2S = 0
    S2C = 1

    @property
    def opposite(self) -> Direction:
        """The other direction."""
        return Direction(1 - self)

    @property
    def label(self) -> str:
        """`"c2s"` or `"s2c"`, as in logs, captures and rules."""
        return "s2c" if self else "c2s"


C2S: Final = Direction.C2S
S2C: Final = Direction.S2C


class Op(IntEnum):
    """A protocol operation.  The numbers are part of the capture format (op bitmasks): never reuse one."""

    PUB = 0
    HPUB = 1
    SUB = 2
    UNSUB = 3
    MSG = 4
    HMSG = 5
    INFO = 6
    CONNECT = 7
    PING = 8
    PONG = 9
    OK = 10
    ERR = 11

    @property
    def label(self) -> str:
        """The op as it is written on the wire: `"PUB"`, `"+OK"`, `"-ERR"`."""
        return LABELS[self]

    @property
    def bit(self) -> int:
        """This op's bit in an op bitmask."""
        return 1 << self


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One row of the op table.

    forms: the fields of the control line by their number, in wire order.
    payload: the frame carries `size` bytes and CRLF after its control line.
    headers: its payload begins with `header_size` bytes of header block.
    gap: the rule between op and arguments: "blank" (one space or TAB at least), "any" (nothing needed:
    `CONNECT{}`; the rest of the line is one argument, blanks included), "ignored" (everything up to LF is
    ignored).
    limited: `max_control_line` applies to its arguments (c2s).
    earns_ok: a verbose client gets one `+OK` for it.
    """

    op: Op
    token: bytes
    from_client: bool
    from_server: bool
    forms: dict[int, tuple[str, ...]]
    payload: bool = False
    headers: bool = False
    gap: str = "blank"
    limited: bool = True
    earns_ok: bool = False


_PUB = {2: ("subject", "size"), 3: ("subject", "reply", "size")}
_HPUB = {3: ("subject", "header_size", "size"), 4: ("subject", "reply", "header_size", "size")}
_SUB = {2: ("subject", "sid"), 3: ("subject", "queue", "sid")}
_MSG = {3: ("subject", "sid", "size"), 4: ("subject", "sid", "reply", "size")}
_HMSG = {
    4: ("subject", "sid", "header_size", "size"),
    5: ("subject", "sid", "reply", "header_size", "size"),
}

OPS: Final[tuple[OpSpec, ...]] = (
    OpSpec(Op.PUB, b"PUB", True, False, _PUB, payload=True, earns_ok=True),
    OpSpec(Op.HPUB, b"HPUB", True, False, _HPUB, payload=True, headers=True, earns_ok=True),
    OpSpec(Op.SUB, b"SUB", True, False, _SUB, earns_ok=True),
    OpSpec(Op.UNSUB, b"UNSUB", True, False, {1: ("sid",), 2: ("sid", "args")}, earns_ok=True),
    OpSpec(Op.MSG, b"MSG", False, True, _MSG, payload=True),
    OpSpec(Op.HMSG, b"HMSG", False, True, _HMSG, payload=True, headers=True),
    OpSpec(Op.INFO, b"INFO", False, True, {1: ("args",)}, gap="any"),
    OpSpec(Op.CONNECT, b"CONNECT", True, False, {1: ("args",)}, gap="any", earns_ok=True),
    OpSpec(Op.PING, b"PING", True, True, {0: ()}, gap="ignored", limited=False),
    OpSpec(Op.PONG, b"PONG", True, True, {0: ()}, gap="ignored", limited=False),
    OpSpec(Op.OK, b"+OK", True, True, {0: ()}, gap="ignored", limited=False),
    OpSpec(Op.ERR, b"-ERR", False, True, {1: ("args",)}, gap="any"),
)
"""The table, indexed by `Op`.

Any text may follow PING, PONG and +OK up to the LF, without a limit, and the server ignores it.
"""
LABELS: Final = tuple(spec.token.decode() for spec in OPS)
"""The ops as they are written on the wire, indexed by `Op`."""

_HEADED: Final = {Op.PUB: Op.HPUB, Op.MSG: Op.HMSG}
_BARE: Final = {headed: bare for bare, headed in _HEADED.items()}


def op_of(raw: bytes, op: Op) -> Op:
    """Return the op of a frame made from one of `op`: a message may have gained or lost its headers."""
    return _HEADED.get(op, op) if raw[:1] in (b"H", b"h") else _BARE.get(op, op)


BY_TOKEN: Final[dict[bytes, Op]] = {spec.token: spec.op for spec in OPS}
SUBSCRIPTION_OPS: Final = frozenset((Op.SUB, Op.UNSUB))
KEEP_ALIVES: Final = frozenset((Op.PING, Op.PONG, Op.OK))
MESSAGE_OPS: Final = frozenset(spec.op for spec in OPS if spec.payload)


def op_mask(*ops: Op) -> int:
    """Return the bitmask of `ops`."""
    mask = 0
    for op in ops:
        mask |= 1 << op
    return mask


ALL_OPS: Final = op_mask(*Op)
