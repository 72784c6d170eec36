"""Work in the foreground: to its end or until a signal stops it, under a line that shows how far it is."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable

import trio

from natsproxy.errors import NatsproxyError

_EVERY = 0.25  # seconds between two pictures of the progress


def run_stoppable(main: Callable[[], Awaitable[None]]) -> bool:
    """Run `main` on trio until it ends, or SIGINT or SIGTERM come; tell whether it was stopped.

    An error of ours comes out as it is, whatever nurseries it passed.
    """

    async def run() -> bool:
        async with trio.open_nursery() as nursery:
            stop = await nursery.start(_watch_signals, nursery.cancel_scope)
            failure: NatsproxyError | None = None
            try:
                await main()
            except NatsproxyError as error:
                failure = error
            except BaseExceptionGroup as group:
                failure = _only(group)
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return bool(stop)

    return trio.run(run)


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


async def _watch_signals(
    scope: trio.CancelScope, *, task_status: trio.TaskStatus[list[int]] = trio.TASK_STATUS_IGNORED
) -> None:
    seen: list[int] = []
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started(seen)
        async for number in signals:
            seen.append(number)
            scope.cancel()


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
