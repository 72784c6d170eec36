"""Neighbouring SUBs and UNSUBs are dealt with together, as they are one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.session.playbook import Playbook

LINES = st.sampled_from(
    [
        b"SUB a.b 1",
        b"SUB a q 2",
        b"sub  x\t3 ",
        b"SUB a..b 4",
        b"SUB $SYS.x 5",
        b"UNSUB 1",
        b"UNSUB 2",
        b"UNSUB 1 2",
        b"UNSUB 9",
        b"SUB c 1",
        b"PING",
        b"PUB a 0\r\n",
    ]
)


@given(st.lists(LINES, min_size=1, max_size=12), st.sampled_from([b"\r\n", b"\n"]))
def test_together_is_one_by_one(lines: list[bytes], end: bytes) -> None:
    together, alone = Playbook().greeted(), Playbook().greeted()
    together.client(b"".join(line + end for line in lines))
    for line in lines:
        alone.client(line + end)
    assert together.to_server == alone.to_server
    assert dict(together.session.subs) == dict(alone.session.subs)
    assert together.session.counts() == alone.session.counts()
    assert together.session.snapshot() == alone.session.snapshot()
