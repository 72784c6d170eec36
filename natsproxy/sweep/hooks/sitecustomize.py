"""Tells where the tasks of asyncio and trio wait, when a program in Python gets `SIGUSR2`.

Python imports a module of this name at its start.  faulthandler tells where the threads are; of a loop that
has nothing to do that is the same place always.  A `sitecustomize` that this one hides is run as well.
"""

from __future__ import annotations

import gc
import importlib.machinery
import importlib.util
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_NEXT = ("cr_await", "gi_yieldfrom", "ag_await")
_FRAMES = ("cr_frame", "gi_frame", "ag_frame")
_stderr = 2


def task_stacks(tasks: Iterable[Any]) -> str:
    """Return the place of each task that is not done, as tracebacks: the innermost call last."""
    parts = []
    for task in tasks:
        lines = [
            f'  File "{frame.f_code.co_filename}", line {frame.f_lineno}, in {frame.f_code.co_name}'
            for frame in _frames(task)
        ]
        if lines:
            parts.append("\n".join([f"Task {_name(task)} (most recent call last):", *lines, ""]))
    return "\n".join(sorted(parts))


def _name(task: Any) -> str:
    return str(task.get_name() if hasattr(task, "get_name") else task.name)


def _frames(task: Any) -> Iterator[Any]:
    """Yield the frames of the coroutines that a task is in, the outermost first; none if it is done."""
    waits = task.get_coro() if hasattr(task, "get_coro") else task.coro
    while waits is not None:
        frame = _first(waits, _FRAMES)
        if frame is not None:
            yield frame
        waits = _first(waits, _NEXT)


def _first(value: Any, names: tuple[str, ...]) -> Any:
    found = (getattr(value, name, None) for name in names)
    return next((one for one in found if one is not None), None)


def all_tasks() -> list[Any]:
    """Return the tasks of all loops of asyncio and trio in this process."""
    modules = (sys.modules.get("asyncio"), sys.modules.get("trio.lowlevel"))
    kinds = tuple(filter(None, (getattr(module, "Task", None) for module in modules)))
    return [one for one in gc.get_objects() if isinstance(one, kinds)]


def _tell(*_: Any) -> None:
    os.write(_stderr, ("\n" + task_stacks(all_tasks()) + "\n").encode(errors="replace"))


def _run_hidden() -> None:
    """Run the `sitecustomize` that Python would have imported."""
    own = Path(__file__).resolve().parent
    rest = [folder for folder in sys.path if Path(folder).resolve() != own]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if __name__ == "sitecustomize":  # imported by Python, at the start of a program
    _stderr = os.dup(2)  # a test runner may put its own file in the place of 2
    signal.signal(signal.SIGUSR2, _tell)
    _run_hidden()
