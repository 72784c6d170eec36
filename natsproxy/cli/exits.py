"""How commands end: one place that turns errors, signals and closed pipes into exit codes (`errors.Exit`).

Commands raise; they need not catch.  What the guard does for every one of them
1. An error of ours is one sentence on standard error and "could not run".  A command for which a finding is
   an answer (verify, check, diff) says so itself, with `FoundWrong` or an exit code.
2. SIGTERM is what Ctrl-C is.  A command that serves until it is stopped catches both and ends well; any other
   is broken off, and says so in its exit code.  What runs on trio notes signals (`foreground.py`): here they
   raise, and trio cannot be raised in.
3. A reader of our output that has gone (`| head`) ends the command without a word, as of any program in a
   pipe; a full disk behind it is a sentence.
4. Passwords in addresses are hidden, whichever part of the command line a sentence quotes.
"""

from __future__ import annotations

import difflib
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
    """A command that could not do its work."""

    exit_code = Exit.COULD_NOT_RUN


class FoundWrong(click.ClickException):
    """A command that looked, and found something wrong."""

    exit_code = Exit.FOUND_WRONG


class _BrokenOff(click.ClickException):
    exit_code = Exit.STOPPED


class GuardedGroup(click.Group):
    """A group whose commands end as the table says, whatever ends them."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is named; where there is none, name the one that may be meant."""
        name = args[0]
        if self.get_command(ctx, name) is None and name[:1] != "-" and not ctx.resilient_parsing:
            known = dict(_commands(self, ctx))
            near = difflib.get_close_matches(name, known, 1)
            there = f"there are {', '.join(self.list_commands(ctx))}"
            hint = f"did you mean '{known[near[0]]}'?" if near else there
            ctx.fail(f"there is no command {name!r}; {hint}")
        return super().resolve_command(ctx, args)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Read the command line; `--help` and `--version` print here."""
        with _guarded():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was asked for."""
        if wants_plain():
            ctx.color = False
        with _guarded(), _interruptible():
            return super().invoke(ctx)


@contextmanager
def _guarded() -> Iterator[None]:
    """Turn whatever comes out into an exit code, and into a sentence where there is one to say."""
    if isinstance(sys.stdout, TextIOWrapper):  # an arrow where the locale has none is no reason to end
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except click.UsageError as error:
        said = error.format_message()
        if mask_addresses(said) == said:
            raise
        raise click.UsageError(mask_addresses(said), error.ctx) from None
    except (KeyboardInterrupt, NatsproxyError, OSError, BaseExceptionGroup) as error:
        ending = _ending(list(_leaves(error)))
        if ending is None:
            raise
        if any(isinstance(leaf, OSError) for leaf in _leaves(error)):
            _forget_stdout()
        raise ending from None


def _ending(leaves: list[BaseException]) -> BaseException | None:
    """Return how errors end a command; None where one of them is a bug."""
    if any(isinstance(leaf, KeyboardInterrupt) for leaf in leaves):
        return SystemExit(Exit.STOPPED)
    if any(isinstance(leaf, BrokenPipeError) for leaf in leaves):
        return SystemExit(Exit.NOBODY_READS)
    ours = [leaf for leaf in leaves if isinstance(leaf, NatsproxyError | OSError)]
    if len(ours) < len(leaves):
        return None
    stopped = any(isinstance(leaf, Stopped) for leaf in ours)
    return (_BrokenOff if stopped else CouldNotRun)(mask_addresses("; ".join(map(_sentence, ours))))


def _sentence(error: NatsproxyError | OSError) -> str:
    if isinstance(error, NatsproxyError):
        return str(error)
    place = error.filename or ("standard output" if error.errno in _OF_OUTPUT else "")
    return f"{os.fsdecode(place)}: {error.strerror}" if place else str(error)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors in a group of them, as nurseries raise."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _commands(group: click.Group, ctx: click.Context, before: str = "") -> Iterator[tuple[str, str]]:
    """Yield the last word of each command, and all its words; those further up come last, and win."""
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        if isinstance(command, click.Group):
            yield from _commands(command, ctx, f"{before}{name} ")
    for name in group.list_commands(ctx):
        yield name, before + name


_OF_OUTPUT = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""What writing to an open file fails with."""


def _forget_stdout() -> None:
    """Let what is still unwritten go nowhere: the interpreter would try again at its end, and complain."""
    try:
        number = sys.stdout.fileno()
    except (OSError, ValueError, AttributeError):  # no file: closed, or a test's
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, number)
    os.close(null)


@contextmanager
def _interruptible() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
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
