"""Exit codes of commands: one guard turns errors, signals and closed pipes into `errors.Exit`.

Commands raise and need not catch.  The guard gives every command these guarantees
1. A `NatsproxyError` or `OSError` becomes one sentence on standard error and `COULD_NOT_RUN`.  A command that
   looks for faults (verify, check, diff) raises `FoundWrong` or exits with that code itself.
2. SIGTERM acts like Ctrl-C.  A command that serves until it is stopped catches both and exits with 0; any
   other is interrupted and exits with `STOPPED`.  Signals raise here.  Code on trio only notes them
   (`foreground.py`), because trio cannot bear an exception at an arbitrary place.
3. A closed standard output (`| head`) ends the command silently, as it ends other programs in a pipe.  A full
   disk behind standard output becomes a sentence.
4. Passwords in addresses are hidden, in every part of the command line that a message quotes.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Any

import click

from natsproxy.addresses import mask_addresses
from natsproxy.errors import Exit, NatsproxyError, Stopped
from natsproxy.printable import wants_plain


class CouldNotRun(click.ClickException):
    """The command could not do its work."""

    exit_code = Exit.COULD_NOT_RUN


class FoundWrong(click.ClickException):
    """The command checked something and found it wrong."""

    exit_code = Exit.FOUND_WRONG


class _Interrupted(click.ClickException):
    exit_code = Exit.STOPPED


class GuardedGroup(click.Group):
    """A group whose commands end with the exit codes of `errors.Exit`."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the command line under the guard: `--help` and `--version` print here."""
        with _guarded():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command under the guard."""
        if wants_plain():
            ctx.color = False
        with _guarded(), _interruptible():
            return super().invoke(ctx)


@contextmanager
def _guarded() -> Iterator[None]:
    """Turn every exception of the block into an exit code and, unless it is silent, a sentence."""
    if isinstance(sys.stdout, TextIOWrapper):  # the arrows of `capture cat` are not in every locale
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:  # flushed here: a write error at interpreter exit has no exit code
                sys.stdout.flush()
    except click.UsageError as error:
        message = error.format_message()
        if mask_addresses(message) == message:
            raise
        raise click.UsageError(mask_addresses(message), error.ctx) from None
    except (KeyboardInterrupt, NatsproxyError, OSError, BaseExceptionGroup) as error:
        errors = list(_flatten(error))
        ending = _exit_for(errors)
        if ending is None:
            raise
        if any(isinstance(one, OSError) for one in errors):
            _discard_stdout()
        raise ending from None


def _exit_for(errors: list[BaseException]) -> BaseException | None:
    """Return the exception that exits the process, None when one of the errors is a bug."""
    if any(isinstance(one, KeyboardInterrupt) for one in errors):
        return SystemExit(Exit.STOPPED)
    if any(isinstance(one, BrokenPipeError) for one in errors):
        return SystemExit(Exit.NOBODY_READS)
    expected = [one for one in errors if isinstance(one, NatsproxyError | OSError)]
    if len(expected) < len(errors):
        return None
    stopped = any(isinstance(one, Stopped) for one in expected)
    return (_Interrupted if stopped else CouldNotRun)(mask_addresses("; ".join(map(_sentence, expected))))


def _sentence(error: NatsproxyError | OSError) -> str:
    if isinstance(error, NatsproxyError):
        return str(error)
    place = error.filename or ("standard output" if error.errno in _WRITE_ERRORS else "")
    return f"{os.fsdecode(place)}: {error.strerror}" if place else str(error)


def _flatten(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, or the errors of a group and of the groups in it (nurseries raise groups)."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _flatten(inner)
    else:
        yield error


_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""The errors of a write to a file that is already open; such an error has no file name."""


def _discard_stdout() -> None:
    """Send unwritten output to /dev/null: the interpreter would write it again at exit, and complain."""
    try:
        number = sys.stdout.fileno()
    except (OSError, ValueError, AttributeError):  # closed, or replaced by a test runner
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, number)
    os.close(null)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGINT and SIGTERM raise KeyboardInterrupt in the block."""
    if threading.current_thread() is not threading.main_thread():  # Python sets handlers only there
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in before.items():
        if (number, handler) != (signal.SIGINT, signal.SIG_IGN):  # a shell's background job keeps that
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
