"""A cassette for tests: the server of a capture, in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import trio

from natsproxy.config.settings import Address
from natsproxy.errors import NatsproxyError
from natsproxy.replay.sessions import Session, parse_mode, use
from natsproxy.testing.thread import TrioThread


class CassetteMismatch(AssertionError, NatsproxyError):
    """The program under test sent what was never recorded; the message names the nearest recorded frames."""


class cassette:
    """Play (or record) a capture for the time of a `with`; `url` is where clients connect.

    mode: none (default), once, new_episodes, all or rewrite; those that record need `upstream`, a NATS URL.
    At the end CassetteMismatch is raised for what was never recorded; with `strict` also for what was
    recorded and not used.  Raises CaptureError and ConfigError, in a sentence, when it cannot start.
    """

    def __init__(
        self, path: Path | str, mode: str = "none", *, upstream: str | None = None, strict: bool = False
    ) -> None:
        self.path = Path(path)
        self.mode = parse_mode(mode)
        self.strict = strict
        self.session: Session | None = None
        self._upstream = None if upstream is None else _address(upstream)
        self._thread = TrioThread(self._serve)

    @property
    def url(self) -> str:
        """The URL for clients."""
        assert self.session is not None
        return self.session.url

    def __enter__(self) -> cassette:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.stop()
        if kind is None:
            self.check()

    async def _serve(self, started: Callable[[], None], stop: trio.Event) -> None:
        async with use(self.path, self.mode, upstream=self._upstream) as session:
            self.session = session
            started()
            await stop.wait()

    def complaints(self) -> list[str]:
        """Return what went differently from the recording."""
        played = None if self.session is None else self.session.played
        if played is None:
            return []
        found = [str(mismatch) for mismatch in played.mismatches]
        if self.strict:
            found += [f"recorded, but not sent by any client: {one}" for one in self.unused()]
        return found

    def unused(self) -> list[str]:
        """Return the recorded client frames that no client sent."""
        played = None if self.session is None else self.session.played
        if played is None:
            return []
        return [one.frame.line.decode("utf-8", "replace").strip() for one in played.unused()]

    def check(self) -> None:
        """Raise CassetteMismatch if anything went differently."""
        found = self.complaints()
        if found:
            raise CassetteMismatch(f"{self.path}:\n" + "\n".join(found))


def _address(url: str) -> Address:
    host, _, port = url.removeprefix("nats://").rstrip("/").rpartition(":")
    if not port.isdigit():
        raise NatsproxyError(f"{url!r} is no NATS URL: give nats://HOST:PORT")
    return Address(host.strip("[]") or "127.0.0.1", int(port))
