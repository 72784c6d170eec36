"""A proxy before a real server, for tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

from natsproxy.addresses import Address
from natsproxy.config.settings import ProxySettings, RecordSettings
from natsproxy.errors import CaptureError
from natsproxy.testing.front import Front, server_address


class TestProxy(Front):
    """A proxy before `upstream`, in a thread of its own; `with` or `async with`.

        with TestProxy("nats://127.0.0.1:4222") as proxy:
            client = connect(proxy.url)
            with proxy.fault(latency("200ms"), subject="orders.>"):
                ...
            proxy.wait_for("orders.new", count=3)

    upstream: the server.  rules: tables as in a rules file, in force from the start.  record: a capture to
    write, `x.ncap`; where the disk does not take it, connections are closed, and leaving raises CaptureError.
    seed: of all chance.  Raises ConfigError for what cannot be used.
    """

    def __init__(
        self,
        upstream: str,
        *,
        rules: list[dict[str, Any]] | None = None,
        record: Path | str | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(rules=rules, seed=seed)
        self.upstream = server_address(upstream)
        self._settings = ProxySettings(
            listen=(Address(),),
            upstream=self.upstream,
            seed=seed,
            record=None if record is None else RecordSettings(Path(record), overflow="wait"),
        )

    async def _serve(self, started: Callable[[], None], stop: trio.Event) -> None:
        async with self._before(self._settings) as proxy:
            started()
            await stop.wait()
        if proxy.unwritten is not None:
            raise CaptureError(proxy.unwritten)

    def story(self, count: int = 20) -> str:
        """Return what a person wants to see when a test failed: faults in force, firings, the last frames."""
        return f"proxy before nats://{self.upstream}, seed {self.seed}\n{super().story(count)}"
