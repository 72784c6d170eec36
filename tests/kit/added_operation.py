"""A program: it adds an operation to the table before anything is loaded, and compares the twins.

XPUB is a message of the client like PUB.  What a client of it needs beside the table, a row in
`protocol/meaning.py` or a handler of the session, is not added: without them its frames pass.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))


def add() -> None:
    """Load the table with the operation."""
    import natsproxy.wire

    spec = importlib.util.find_spec("natsproxy.wire.ops")
    assert spec is not None
    assert spec.origin is not None
    assert "natsproxy.wire.ops" not in sys.modules
    text = Path(spec.origin).read_text()
    for before, after in (
        ("    ERR = 11\n", "    ERR = 11\n    XPUB = 12\n"),
        (
            '    OpSpec(Op.ERR, b"-ERR",',
            '    OpSpec(Op.ERR, b"-ERR", False, True, {1: ("args",)}, gap="any"),\n'
            '    OpSpec(Op.XPUB, b"XPUB", True, False, _PUB, payload=True),\n)\n_IGNORED = (\n'
            '    OpSpec(Op.ERR, b"-ERR",',
        ),
    ):
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    module = importlib.util.module_from_spec(spec)
    sys.modules["natsproxy.wire.ops"] = natsproxy.wire.ops = module
    exec(compile(text, spec.origin, "exec"), module.__dict__)


if __name__ == "__main__":
    add()
    from tests.kit import twins

    twins.compare()
