"""The place in a program where it hangs: the innermost call of its own code and its libraries.

A stack comes as a runtime writes it, of several tasks or threads.  Line numbers are left out, so that the
place stays the same when the program is edited elsewhere; so are the calls of the runtime itself.
Of several stacks that one counts which the program's own code is in: a task before a thread, and the main
thread, which Python writes last, before another one.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Final, NamedTuple

_PYTHON: Final = re.compile(r'^\s*File "(?P<file>[^"\n]+)", line \d+,? in (?P<call>.+)$', re.MULTILINE)
_NODE_OR_JAVA: Final = re.compile(
    r"^\s*at (?P<call>[^(\n]+?) ?\((?P<file>[^()\n]*?)(?::\d+)*\)$", re.MULTILINE
)
_GO: Final = re.compile(r"^(?P<call>[\w./*()-]+)\(.*\)\n\t(?P<file>\S+):\d+", re.MULTILINE)
_FORMS: Final = (_PYTHON, _GO, _NODE_OR_JAVA)
_BLOCK: Final = re.compile(r"^(?=Task |Thread |Current thread |goroutine \d)|\n\n(?=\S)", re.MULTILINE)
_RUNTIME: Final = re.compile(
    r"/lib(64)?/python[\d.]+/(?!site-packages|dist-packages)|^<frozen|^node:|/go/src/"
    r"|/natsproxy/sweep/hooks/|/site-packages/trio/"
)
_RUNTIME_CALL: Final = re.compile(r"^(runtime|internal|sync|syscall|java|jdk|sun)[./]")
_LIBRARY: Final = re.compile(r"/(site-packages|dist-packages|node_modules|pkg/mod)/")


class _StackFrame(NamedTuple):
    call: str
    file: str

    @property
    def is_own(self) -> bool:
        return _LIBRARY.search(self.file) is None

    def __str__(self) -> str:
        return f"{self.call} ({PurePosixPath(self.file).name})"


def stack_place(stack: str) -> str:
    """Return the innermost call in a stack's text, `call (file)`; "" where it does not tell."""
    blocks = [(block, _calls(block)) for block in _BLOCK.split(stack)]
    own = [(block, calls) for block, calls in blocks if any(one.is_own for one in calls)]
    tasks = [calls for block, calls in own if block.startswith(("Task ", "goroutine "))]
    threads = [calls for _, calls in reversed(own)]
    rest = [calls for _, calls in blocks if calls]
    return next((str(calls[0]) for calls in (*tasks, *threads, *rest)), "")


def _calls(block: str) -> list[_StackFrame]:
    """Return the calls of a stack, the innermost first, without the runtime's."""
    for form in _FORMS:
        found = [_StackFrame(one["call"].strip(), one["file"]) for one in form.finditer(block)]
        if found:
            if "most recent call last" in block:
                found.reverse()
            return [one for one in found if not _is_runtime(one)]
    return []


def _is_runtime(one: _StackFrame) -> bool:
    return _RUNTIME.search(one.file) is not None or _RUNTIME_CALL.match(one.call) is not None
