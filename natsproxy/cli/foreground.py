"""Foreground work on trio: it runs to its end or until a signal stops it, under a line of progress.

Signals are noted from before trio starts until after it has ended, and delivered as values.  A signal handler
that raises could strike inside trio itself and leave it broken.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TypeVar

import trio

from natsproxy.errors import NatsproxyError

_REFRESH = 0.25  # seconds between two updates of the progress line
STOP = (signal.SIGINT, signal.SIGTERM)
_T = TypeVar("_T")


def run_with_signals(main: Callable[[AsyncIterator[int]], Awaitable[_T]], *numbers: int) -> _T:
    """Run `main` on trio, pass it the signals `numbers` as they arrive, and return its result.

    Signals that arrive before trio runs are delivered as soon as it does.
    """
    noted: list[int] = []

    async def run() -> _T:
        try:
            with trio.open_signal_receiver(*numbers) as signals:
                # These came before trio could receive them: sent once more, they go its way.
                for number in noted:
                    signal.raise_signal(number)
                return await main(signals)
        finally:
            # trio closes this descriptor before it unregisters it: a signal in between prints a traceback.
            signal.set_wakeup_fd(-1)

    before = {number: signal.signal(number, lambda number, _: noted.append(number)) for number in numbers}
    try:
        return trio.run(run)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_stoppable(main: Callable[[], Awaitable[None]]) -> bool:
    """Run `main` on trio until it ends or SIGINT or SIGTERM arrives; return True if a signal stopped it.

    A NatsproxyError is raised as itself, without the exception groups of the nurseries that it passed.
    """
    return run_with_signals(partial(_until_stopped, main), *STOP)


async def _until_stopped(main: Callable[[], Awaitable[None]], signals: AsyncIterator[int]) -> bool:
    stopped = False
    failure: NatsproxyError | None = None

    async def watch() -> None:
        nonlocal stopped
        async for _ in signals:
            stopped = True
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        try:
            await main()
        except NatsproxyError as error:
            failure = error
        except BaseExceptionGroup as group:
            failure = _single_error(group)
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return stopped


def _single_error(group: BaseExceptionGroup[BaseException]) -> NatsproxyError | None:
    """Return the first NatsproxyError of a group; raise the group when it holds any other error."""
    ours, others = group.split(NatsproxyError)
    cancelled, rest = others.split(trio.Cancelled) if others is not None else (None, None)
    if rest is not None:
        raise group
    error: BaseException | None = ours
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if error is None and cancelled is not None:
        raise cancelled
    return error if isinstance(error, NatsproxyError) else None


async def with_progress(
    main: Callable[[], Awaitable[None]], describe: Callable[[float], str], quiet: bool
) -> None:
    """Run `main`; on a terminal show `describe(seconds)` in a line that changes."""
    from rich.console import Console

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        await main()
        return
    async with trio.open_nursery() as nursery:
        with console.status("starting") as status:
            nursery.start_soon(_update, describe, status.update)
            await main()
            nursery.cancel_scope.cancel()


async def _update(describe: Callable[[float], str], show: Callable[[str], None]) -> None:
    started = trio.current_time()
    while True:
        show(describe(trio.current_time() - started))
        await trio.sleep(_REFRESH)
