"""The program: `natsproxy`, `python -m natsproxy`, and the file for `spark-submit`, which accepts only files.

Commands handle signals themselves (`cli/exits.py`, `cli/foreground.py`).  Before and after a command, while
modules are imported and the interpreter exits, there is no work to finish: a signal ends the process at once
and silently.  A signal that comes before the first line here finds only the interpreter's own handlers.
"""

import atexit
import os
import signal
import sys

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_STOPPED = 130  # `errors.Exit.STOPPED`: a signal may come while that is imported

for _number in _SIGNALS:
    if signal.getsignal(_number) != signal.SIG_IGN:
        signal.signal(_number, lambda *_: os._exit(_STOPPED))


def start() -> None:
    """Run the command line."""
    atexit.register(_ignore)  # registered first, so called last
    from natsproxy.cli import main

    main()


def _ignore() -> None:
    """Ignore signals: the exiting interpreter restores default handlers, which would change the exit code."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    from pathlib import Path

    if sys.path and sys.path[0] == str(Path(__file__).resolve().parent):
        del sys.path[0]  # run as a file: our modules would hide top-level ones of the same name
    start()
