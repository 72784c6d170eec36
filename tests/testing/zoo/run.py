"""Runs programs of the zoo side by side in one process: `run.py shop=nats://... worker=nats://...`.

It prints one line of JSON, the output of each program and the error that ended it, by name.
"""

from __future__ import annotations

import asyncio
import builtins
import importlib
import json
import sys
import traceback
from contextvars import ContextVar
from typing import Any

# nats-py imports aiohttp where it is installed, for WebSocket; that takes longer than most of the programs.
sys.modules["aiohttp"] = None  # type: ignore[assignment]
_LIMIT = 30.0
_shown = print
_lines: ContextVar[list[str]] = ContextVar("lines")


def _print(*values: object, **options: Any) -> None:
    if options.get("file") is None:
        _lines.get().append(" ".join(map(str, values)))
    else:  # the traceback of a library
        _shown(*values, **options)


async def _run(name: str, url: str) -> tuple[str, str, str]:
    lines: list[str] = []
    _lines.set(lines)
    error = ""
    try:
        await asyncio.wait_for(importlib.import_module(f"python.{name}").main(url), _LIMIT)
    except Exception:
        error = traceback.format_exc()
    return name, "\n".join(lines), error


async def _main(programs: list[str]) -> None:
    builtins.print = _print
    ended = await asyncio.gather(*(_run(*program.split("=", 1)) for program in programs))
    _shown(json.dumps({name: [printed, error] for name, printed, error in ended}))


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1:]))
