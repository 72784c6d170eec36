"""The state of a proxy, told to those who supervise it: by two files, and to systemd.

Ready: the listeners stand and the upstream has answered the last attempt with its INFO.  Live: the loop
turns.  A file stands for each; it is touched every second while its statement holds, so that one which a
killed process left behind is told from a true one by its age (`natsproxy healthcheck`).  systemd gets the
same statements: READY=1 when the proxy is ready for the first time, and the pings of its watchdog.

The proxy asks the upstream by itself, at intervals, whether clients are connected or not: those that are idle
would not notice for minutes that their server is frozen.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from natsproxy.errors import ConfigError, place_of
from natsproxy.files import write_whole
from natsproxy.net.proxy import Proxy
from natsproxy.net.systemd import Notifier

BEAT: Final = 1.0
"""Seconds between two touches of a file, at most."""
_WHEN_READY: Final = 5.0  # seconds between two probes of the upstream
_WHEN_NOT: Final = 0.5


class Supervision:
    """Tells of a proxy while `run` runs.  ready, live: the files; None for none."""

    def __init__(self, proxy: Proxy, notifier: Notifier, ready: Path | None, live: Path | None) -> None:
        self._proxy = proxy
        self._notifier = notifier
        self._ready, self._live = ready, live
        self._said_ready = self._stopping = False
        self._owes_ready = False  # that which ends a reload
        self._status = ""
        self._failed: set[Path] = set()  # files that cannot be written, as reported

    @property
    def wanted(self) -> bool:
        """True if anybody wants to know."""
        return bool(self._notifier or self._ready or self._live)

    def prepare(self) -> None:
        """Remove what an earlier process left, and see that the files can be written.  Raises ConfigError."""
        for name, path in (("ready-file", self._ready), ("live-file", self._live)):
            if path is not None:
                try:
                    path.unlink(missing_ok=True)
                    _part(path).touch()
                    _part(path).unlink()
                except OSError as error:
                    raise ConfigError(f"cannot write the {name} {path}: {error.strerror}") from None

    async def run(self, log: Any) -> None:
        """Tell until cancelled; the files are removed then."""
        within = self._notifier.watchdog
        pause = BEAT if within is None else min(BEAT, within / 2)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._try_upstream, log)
                while True:
                    self.tell(log)
                    await trio.sleep(pause)
        finally:
            self._keep(self._ready, log, None)
            self._keep(self._live, log, None)

    async def _try_upstream(self, log: Any) -> None:
        while not self._stopping:
            try:
                await self._proxy.try_upstream()
            except Exception as error:  # a bug in one attempt must not end the proxy
                log.error(f"natsproxy failed, please report it: {place_of(error)}")
            await trio.sleep(_WHEN_NOT if self._proxy.unready is not None else _WHEN_READY)

    def tell(self, log: Any) -> None:
        """Tell the present state."""
        unready = "it drains" if self._stopping else self._proxy.unready
        self._keep(self._live, log, str(os.getpid()))
        addresses = "".join(f"{address}\n" for address in self._proxy.listen)
        self._keep(self._ready, log, addresses if unready is None else None)
        fields: dict[str, str | int] = {} if self._notifier.watchdog is None else {"WATCHDOG": 1}
        if self._owes_ready or (unready is None and not self._said_ready):
            fields["READY"] = 1
        status = "the upstream answers" if unready is None else f"not ready: {unready}"
        if status != self._status:
            fields["STATUS"] = status
        if fields and self._notifier.send(**fields):  # else all but the ping is said again
            self._status = status
            self._said_ready |= "READY" in fields
            self._owes_ready = False

    def _keep(self, path: Path | None, log: Any, text: str | None) -> None:
        """Touch a file, and write `text` where it is not there; None: remove it."""
        if path is None:
            return
        try:
            if text is None:
                path.unlink(missing_ok=True)
            elif path.exists():
                os.utime(path)
            else:
                write_whole(path, text)
            self._failed.discard(path)
        except OSError as error:
            if path not in self._failed:
                self._failed.add(path)
                log.error("state file not written", file=str(path), reason=error.strerror)

    @contextmanager
    def reloading(self) -> Iterator[None]:
        """Tell that the settings are read again, for the time of the block."""
        # A manager that still waits for the first READY=1 would take the end of a reload for it.
        told = self._said_ready
        if told:
            self._notifier.send(RELOADING=1, MONOTONIC_USEC=time.monotonic_ns() // 1000)
        try:
            yield
        finally:
            self._owes_ready |= told and not self._notifier.send(READY=1)

    def stopping(self, log: Any) -> None:
        """Tell that the proxy drains."""
        self._stopping = True
        self._notifier.send(STOPPING=1)
        self.tell(log)


@asynccontextmanager
async def kept_ready(path: Path | None) -> AsyncIterator[None]:
    """Touch a ready file while the block runs, None for none; it is removed then.  Raises ConfigError."""
    if path is None:
        yield
        return

    touch, remove = path.touch, partial(path.unlink, missing_ok=True)

    async def keep() -> None:
        while True:
            await trio.sleep(BEAT)
            with suppress(OSError):  # a full disk: the health check fails, and serving goes on
                touch()

    try:
        touch()
    except OSError as error:
        raise ConfigError(f"cannot write the ready-file {path}: {error.strerror}") from None
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep)
            yield
            nursery.cancel_scope.cancel()
    finally:
        with suppress(OSError):
            remove()


def _part(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")
