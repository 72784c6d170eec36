"""Captures in their text form, in two versions that differ in a few frames: a sound one, and a wrong one."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from natsproxy.check.checker import check_captures
from natsproxy.check.statement import Statement

Version = Literal["sound", "wrong"]
HEAD = "natsproxy text 1\nrecording\n  started: 2026-11-22T09:38:51Z\n"
OPENED = """
a opened
a > CONNECT {"verbose":false,"echo":true,"headers":true,"no_responders":true,"name":"worker"}
"""


def version(text: str, which: Version) -> str:
    """Return one version of a text: a line after `sound: ` or `wrong: ` is in that one alone.

    So are the indented lines that follow a statement so marked.
    """
    kept, lines = True, []
    for line in text.splitlines():
        mark, _, rest = line.partition(": ")
        marked = mark in ("sound", "wrong")
        if marked or not line.startswith(" "):
            wanted = not marked or mark == which
            if not rest.startswith(" ") or not marked:
                kept = wanted
            if wanted and (kept or marked):
                lines.append(rest if marked else line)
        elif kept:
            lines.append(line)
    return "\n".join(lines) + "\n"


def written(path: Path, text: str, which: Version = "wrong") -> Path:
    """Write one version of a conversation of client "worker", connection `a`."""
    path.write_text(HEAD + OPENED + version(text, which))
    return path


def statements(tmp_path: Path, text: str, which: Version, *only: str) -> list[Statement]:
    """Return the statements on one version of a conversation."""
    return check_captures([written(tmp_path / f"{which}.nats.txt", text, which)], only)
