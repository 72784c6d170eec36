"""Frames that a fault holds when the program ends by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.sweep.kit import python, run, trial

SELECTOR = {"name": "fault", "op": ["PUB"], "subject": "a"}


@pytest.mark.parametrize(
    ("rule", "arrives"),
    [({"kind": "latency", "delay": "1h"}, True), ({"kind": "pause"}, True), ({"kind": "drop"}, False)],
)
async def test_what_is_late_arrives_before_the_check(rule: Any, arrives: bool, tmp_path: Path) -> None:
    program = python("""
        request(b"$JS.API.STREAM.CREATE.S", b'{"name":"S","subjects":["a"]}')
        link.sendall(b"PUB a 2\\r\\nhi\\r\\n")
    """)
    check = python("""
        import json
        print(json.loads(request(b"$JS.API.STREAM.INFO.S"))["state"]["messages"])
    """)
    done = await run(program, tmp_path, trial=trial({**SELECTOR, **rule}), check=check.line)
    assert (done.code, len(done.firings)) == (0, 1)
    assert done.check_output == f"{int(arrives)}\n"
