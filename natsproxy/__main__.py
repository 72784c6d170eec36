"""The program: `natsproxy`, `python -m natsproxy`, and what `spark-submit` is given, which takes files only.

Commands say themselves how signals end them (`cli/exits.py`, `cli/foreground.py`).  Before and after them,
while modules are loaded and the interpreter ends, there is nothing to finish: a signal ends the process at
once, and says nothing.
"""

import atexit
import os
import signal
import sys
from pathlib import Path

if sys.path and sys.path[0] == str(Path(__file__).resolve().parent):
    del sys.path[0]  # run as a file: our modules are no top-level modules

from natsproxy.errors import Exit

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def start() -> None:
    """Run the command line."""
    for number in _SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: os._exit(Exit.STOPPED))
    atexit.register(_ignore)  # the first to be registered is the last to be called
    from natsproxy.cli import main

    main()


def _ignore() -> None:
    """Ignore signals: the interpreter, as it ends, would give the others their default back, which kills."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    start()
