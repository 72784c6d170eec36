"""A program: it adds operations to the table before anything is loaded, and compares the twins.

XPUB is a message of the client like PUB, NOTE a line of the server with arguments.  What they need beside the
table, a row in `protocol/meaning.py` or a handler of the session, is not added: without them frames pass.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))


def add() -> None:
    """Load the table with the operations."""
    import natsproxy.wire

    spec = importlib.util.find_spec("natsproxy.wire.ops")
    assert spec is not None
    assert spec.origin is not None
    assert "natsproxy.wire.ops" not in sys.modules
    text = Path(spec.origin).read_text()
    last = max(map(int, re.findall(r"^    [A-Z]+ = (\d+)$", text, re.MULTILINE)))
    for before, rows in (
        (
            '\n    @property\n    def label(self) -> str:\n        """The op',
            f"    NOTE = {last + 1}\n    XPUB = {last + 2}\n",
        ),
        (
            ')\n"""The table, indexed by `Op`.',
            '    OpSpec(Op.NOTE, b"NOTE", False, True, {1: ("args",)}, gap="any"),\n'
            '    OpSpec(Op.XPUB, b"XPUB", True, False, _PUB, payload=True),\n',
        ),
    ):
        assert text.count(before) == 1, before
        text = text.replace(before, rows + before)
    module = importlib.util.module_from_spec(spec)
    sys.modules["natsproxy.wire.ops"] = natsproxy.wire.ops = module
    exec(compile(text, spec.origin, "exec"), module.__dict__)


def check_lines() -> None:
    """Check that what people write and read knows the line of the server from its row alone."""
    from natsproxy.admin.page.app import operations
    from natsproxy.capture.text.frames import dump_frame, load_frame
    from natsproxy.rules.engine.explain import question
    from natsproxy.wire.ops import BY_TOKEN, S2C
    from natsproxy.wire.parse import frames

    asked = question(BY_TOKEN[b"NOTE"], b"")
    assert (asked.direction, asked.frame.raw) == (S2C, b"NOTE {}\r\n")
    (frame,) = frames(b"NOTE two words\r\n", S2C)
    text = dump_frame(frame)
    assert text == ("NOTE two words", [])
    assert load_frame(*text) == frame.raw
    assert b'"NOTE"' in operations()


if __name__ == "__main__":
    add()
    from tests.kit import twins

    check_lines()
    twins.compare()
