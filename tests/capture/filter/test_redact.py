"""Secrets are taken out of records: of whole ones, of cut ones, and of what becomes of a frame."""

from __future__ import annotations

import pytest

from natsproxy.capture.filter.redact import MOST, Secrets, redact_frames
from natsproxy.capture.format.records import Flags, Frames
from natsproxy.wire.frames import Run
from natsproxy.wire.ops import C2S, S2C, Direction, Op
from natsproxy.wire.parse import frames

SECRET = b"s3cr3t"
CALLOUT = b"$SYS.REQ.USER.AUTH"


def run(direction: Direction, *raws: bytes, first: int = 0) -> Frames:
    """Return a record of neighbouring frames, as the session makes it."""
    data = b"".join(raws)
    ops = 0
    for frame in frames(data, direction):
        ops |= 1 << frame.op
    return Frames(1, direction, data, len(raws), ops, first, 1, first + 100, 1)


def cut(direction: Direction, data: bytes) -> Frames:
    """Return the record of a frame in which the connection ended."""
    return Frames(1, direction, data, 1, 0, 0, 1, 0, 1, None, Flags.CUT)


def cleaned(secrets: Secrets, *records: Frames) -> list[Frames]:
    """Return what is left of records, whose frames come one record after the other."""
    left: list[Frames] = []
    for record in records:
        data = bytes(record.data)
        secrets.look(record.direction, [Run(data, 0, len(data), record.frames, record.ops)])
        left += secrets.clean(record)
    return left


def text(records: list[Frames]) -> bytes:
    """Return the bytes of records."""
    return b"".join(bytes(record.data) for record in records)


def test_greetings_lose_their_secrets() -> None:
    """By key, in any letter case, and a CONNECT that does not parse is withheld whole; it still frames."""
    (clean,) = cleaned(Secrets(), run(C2S, b'CONNECT {"user":"u","PASS":"s3cr3t","jwt":"s3cr3t"}\r\n'))
    assert clean.flags == Flags.REDACTED
    assert clean.data == (b'CONNECT {"user":"u","PASS":"[withheld: secret]","jwt":"[withheld: secret]"}\r\n')
    (broken,) = cleaned(Secrets(), run(C2S, b'connect\t{"pass":"s3cr3t" \n'))
    assert broken.data == b'connect\t{"withheld":"a CONNECT that does not parse, 16 bytes"} \n'
    (short,) = cleaned(Secrets(), run(C2S, b"CONNECT C\r\n"))
    assert short.data == b'CONNECT {"withheld":"a CONNECT that does not parse, 1 bytes"}\r\n'
    (info,) = cleaned(Secrets(), run(S2C, b'INFO {"nonce":"s3cr3t"} \r\n'))
    assert info.data == b'INFO {"nonce":"[withheld: secret]"} \r\n'


@pytest.mark.parametrize(
    ("raw", "left"),
    [
        (b'PING {"pass":"s3cr3t"}\r\n', b'PING "[withheld: 17 bytes]"\r\n'),
        (b"pongs3cr3t\n", b'pong "[withheld: 6 bytes]"\r\n'),
        (b"+OK \r s3cr3t\r\n", b'+OK "[withheld: 6 bytes]"\r\n'),
        (b"PING  \r\n", b"PING  \r\n"),
        (b"+ok\n", b"+ok\n"),
    ],
)
def test_bytes_behind_an_op_that_takes_none(raw: bytes, left: bytes) -> None:
    """They go, neighbours stay, and what is left frames."""
    pub = b"PUB a 1\r\nx\r\n"
    kept = cleaned(Secrets(), run(C2S, pub, raw, pub))
    assert text(kept) == pub + left + pub
    assert any(record.flags & Flags.REDACTED for record in kept) == (raw != left)
    assert len(list(frames(text(kept), C2S))) == 3


@pytest.mark.parametrize(
    ("direction", "data", "left"),
    [
        (C2S, b"", b""),
        (C2S, b"conn", b"conn"),
        (C2S, b"CONNECT", b"CONNECT"),
        (C2S, b'CONNECT {"pass":"s3cr3t', b'CONNECT "[withheld: 16 bytes]"'),
        (C2S, b'cOnNeCt{"pass":"s3cr3t"}\r', b'cOnNeCt "[withheld: 18 bytes]"'),
        (C2S, b"\tCONNECT s3cr3t", b'"[withheld: 15 bytes]"'),
        (C2S, b"PINGs3cr3t", b'PING "[withheld: 6 bytes]"'),
        (C2S, b"PUB a 5\r\nhel", b"PUB a 5\r\nhel"),
        (C2S, b"SUB a", b"SUB a"),
        (C2S, b"SUBs3cr3t", b'"[withheld: 9 bytes]"'),
        (C2S, b"PUB a 1\r\nx\r\nCONNECT s3cr3t", b'PUB a 1\r\nx\r\nCONNECT "[withheld: 7 bytes]"'),
        (C2S, b"PUB a 1\r\ns3cr3t", b'"[withheld: 15 bytes]"'),
        (C2S, b'"pass":"s3cr3t"}\r\n', b'"[withheld: 18 bytes]"'),
        (C2S, b"PING\r\nCONNECT \r s3cr3t\r\nPING\r\n", b'PING\r\n"[withheld: 24 bytes]"'),
        (S2C, b'INFO {"nonce":"s3cr3t"', b'INFO "[withheld: 18 bytes]"'),
        (S2C, b"-ERR 'Auth", b"-ERR 'Auth"),
        (S2C, b'WHAT {"nonce":"s3cr3t"', b'"[withheld: 22 bytes]"'),
    ],
)
def test_a_cut_record_keeps_only_bytes_that_are_no_secret(
    direction: Direction, data: bytes, left: bytes
) -> None:
    """It has no op: its bytes alone say what it may be."""
    (record,) = cleaned(Secrets(), cut(direction, data)) if data else (cut(direction, b""),)
    assert record.data == left
    assert bool(record.flags & Flags.REDACTED) == (left != data)
    assert redact_frames(data, direction) == left


def test_whole_frames_that_do_not_frame_are_withheld() -> None:
    """A record that is not what it claims is no reason to fail, nor to tell."""
    record = Frames(1, C2S, b"PING\r\nCONNEXT s3cr3t\r\n", 2, Op.CONNECT.bit | Op.PING.bit, 4, 1, 5, 1)
    first, rest = cleaned(Secrets(), record)
    assert (first.data, first.frames, first.in_first) == (b"PING\r\n", 1, 4)
    assert (rest.data, rest.in_first, rest.out_first, rest.extra) == (b"", 5, 6, {"size": 16})
    assert rest.flags == Flags.TRUNCATED | Flags.REDACTED


def test_a_callout_is_withheld_on_both_sides() -> None:
    """Request and answer, with headers and without, whatever inbox; and nothing else."""
    pub = b"PUB x 1\r\no\r\n"
    asks = cleaned(
        Secrets(),
        run(C2S, pub, b"PUB %s in.1 6\r\ns3cr3t\r\n" % CALLOUT, pub),
        run(C2S, b"HPUB %s in.2 12 18\r\nNATS/1.0\r\n\r\ns3cr3t\r\n" % CALLOUT, first=3),
        run(S2C, b"MSG x 1 1\r\no\r\n", b"MSG in.1 1 6\r\ns3cr3t\r\n"),
        run(S2C, b"HMSG in.2 1 12 18\r\nNATS/1.0\r\n\r\ns3cr3t\r\n", first=2),
    )
    answers = cleaned(
        Secrets(),
        run(S2C, b"HMSG %s 7 in.3 12 18\r\nNATS/1.0\r\n\r\ns3cr3t\r\n" % CALLOUT, b"MSG x 7 1\r\no\r\n"),
        run(C2S, b"PUB in.3 6\r\ns3cr3t\r\n", b"PUB $SYS._INBOX.a 6\r\ns3cr3t\r\n", pub),
    )
    assert SECRET not in text(asks) + text(answers)
    assert text(asks + answers).count(b"1\r\no\r\n") == 5
    withheld = [record for record in asks + answers if record.flags & Flags.PAYLOAD]
    assert [record.extra for record in withheld] == [{"policy": "withheld"}] * 7
    assert [record.in_first for record in withheld] == [1, 3, 1, 2, 0, 0, 1]


def test_a_callout_that_a_rule_renames_is_withheld_on_both_legs() -> None:
    """A frame is secret in all its forms, and so is what answers any of them."""
    secrets = Secrets()
    came, went = b"PUB ask in.1 6\r\ns3cr3t\r\n", b"PUB %s in.2 6\r\ns3cr3t\r\n" % CALLOUT
    assert secrets.changed(C2S, (came, went))
    assert not secrets.changed(C2S, (b"PUB a 1\r\nx\r\n", b"PUB b 1\r\nx\r\n"))
    kept = [*secrets.clean(run(C2S, came), secret=True), *secrets.clean(run(C2S, went), secret=True)]
    kept += cleaned(secrets, run(S2C, b"MSG in.1 1 6\r\ns3cr3t\r\n", b"MSG in.2 1 6\r\ns3cr3t\r\n"))
    assert SECRET not in text(kept)
    assert [bool(record.flags & Flags.PAYLOAD) for record in kept] == [True] * 4


@pytest.mark.parametrize("flag", [Flags.CUT, Flags.TRUNCATED])
def test_a_callout_that_is_not_whole_is_withheld(flag: Flags) -> None:
    """The control line is enough to know it by."""
    data = b"PUB %s 900\r\ns3cr3t" % CALLOUT
    for ops in (0, Op.PUB.bit):
        (record,) = cleaned(Secrets(), cut(C2S, data)._replace(ops=ops, flags=flag, extra={"size": 940}))
        assert record.data == b"PUB %s 900\r\n" % CALLOUT
        assert record.flags == flag | Flags.PAYLOAD
        assert record.extra == {"size": 940, "policy": "withheld"}
    behind = cut(C2S, b"PUB a 1\r\nx\r\n" + data)
    assert SECRET not in text(cleaned(Secrets(), behind))


def asked(secrets: Secrets, number: int) -> None:
    """Let a callout come."""
    cleaned(secrets, run(C2S, b"PUB %s in.%d 6\r\ns3cr3t\r\n" % (CALLOUT, number)))


def answer(secrets: Secrets, number: int) -> bytes:
    """Return what is recorded of the answer to a callout."""
    return text(cleaned(secrets, run(S2C, b"MSG in.%d 1 6\r\ns3cr3t\r\n" % number)))


def test_the_memory_for_secrets_is_bounded() -> None:
    """Subjects are hostile: with more callouts than can be known, every payload may be a secret."""
    secrets = Secrets()
    for number in range(MOST):
        asked(secrets, number)
    (plain,) = cleaned(secrets, run(C2S, b"PUB a 1\r\nx\r\n"))
    assert plain.data == b"PUB a 1\r\nx\r\n"
    for number in range(MOST, MOST + 100):
        asked(secrets, number)
    assert len(secrets._answers) == MOST
    assert all(SECRET not in answer(secrets, number) for number in (0, MOST, MOST + 99))
    secrets.forget_answered()
    kept = cleaned(secrets, run(C2S, b"PUB a 1\r\nx\r\n", b"PING\r\n", b"PUB b r 1\r\nx\r\n"))
    assert text(kept) == b"PUB a 1\r\nPING\r\nPUB b r 1\r\n"


def test_callouts_that_were_answered_are_forgotten() -> None:
    """A service may have any number of them, as long as it answers; a second answer is a secret too."""
    secrets = Secrets()
    asked(secrets, -1)
    for number in range(3 * MOST):
        asked(secrets, number)
        assert SECRET not in answer(secrets, number) + answer(secrets, number)
        secrets.forget_answered()
        assert len(secrets._answers) <= MOST // 2 + 1
    assert SECRET not in answer(secrets, -1)
    assert text(cleaned(secrets, run(C2S, b"PUB a 1\r\nx\r\n"))) == b"PUB a 1\r\nx\r\n"
