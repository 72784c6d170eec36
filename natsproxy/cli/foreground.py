"""Work in the foreground: to its end or until a signal stops it, under a line that shows how far it is."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TypeVar

import trio

from natsproxy.errors import NatsproxyError

_EVERY = 0.25  # seconds between two pictures of the progress


STOP = (signal.SIGINT, signal.SIGTERM)
_T = TypeVar("_T")


def run_with_signals(main: Callable[[AsyncIterator[int]], Awaitable[_T]], *numbers: int) -> _T:
    """Run `main` on trio and give it the signals that come, those that came before trio stood included.

    From before trio begins until it has ended signals are noted and nothing else: a handler that raises
    breaks trio wherever it stands.
    """
    noted: list[int] = []

    async def run() -> _T:
        try:
            with trio.open_signal_receiver(*numbers) as signals:
                for number in noted:
                    signal.raise_signal(number)
                return await main(signals)
        finally:
            signal.set_wakeup_fd(
                -1
            )  # trio closes it before it lets go of it: a signal would print a traceback

    before = {number: signal.signal(number, lambda number, _: noted.append(number)) for number in numbers}
    try:
        return trio.run(run)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_stoppable(main: Callable[[], Awaitable[None]]) -> bool:
    """Run `main` on trio until it ends, or SIGINT or SIGTERM come; tell whether it was stopped.

    An error of ours comes out as it is, whatever nurseries it passed.
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
            failure = _only(group)
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return stopped


def _only(group: BaseExceptionGroup[BaseException]) -> NatsproxyError | None:
    """Return the error of ours in a group; raise the group when there is more in it."""
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
    main: Callable[[], Awaitable[None]], picture: Callable[[float], str], quiet: bool
) -> None:
    """Run `main` under a line that shows `picture(seconds)`, on a terminal only."""
    from rich.console import Console

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        await main()
        return
    async with trio.open_nursery() as nursery:
        with console.status("starting") as status:
            nursery.start_soon(_paint, picture, status.update)
            await main()
            nursery.cancel_scope.cancel()


async def _paint(picture: Callable[[float], str], show: Callable[[str], None]) -> None:
    began = trio.current_time()
    while True:
        seconds = trio.current_time() - began
        show(picture(seconds))
        await trio.sleep(_EVERY)
