"""A proxy before a real server, for tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio

from natsproxy.config.endpoints import parse_listener, parse_server
from natsproxy.config.recording import RecordSettings
from natsproxy.config.settings import legs
from natsproxy.errors import CaptureError
from natsproxy.testing.harness import ANY_PORT, SERVER, ProxyHarness


class TestProxy(ProxyHarness):
    """A proxy before `upstream`, in a separate thread; `with` or `async with`.

        with TestProxy("nats://127.0.0.1:4222") as proxy:
            client = connect(proxy.url)
            with proxy.fault(latency("200ms"), subject="orders.>"):
                ...
            proxy.wait_for("orders.new", count=3)

    upstream: the URL of the server: nats://, tls://, ws:// or wss://.  listen: the address for clients, with
    a scheme.  rules: tables as in a rules file, in force from the start.  record: a capture to write,
    `x.ncap`; if the disk fails, connections are closed and the end of the `with` raises CaptureError.  seed:
    the seed of all random choices.  tls: options of TLS, as flags of `natsproxy run`:
    `upstream_tls_ca="ca.pem"`.  Raises ConfigError for an invalid argument.
    """

    def __init__(
        self,
        upstream: str,
        *,
        listen: str = ANY_PORT,
        rules: list[dict[str, Any]] | None = None,
        record: Path | str | None = None,
        seed: int = 0,
        **tls: Any,
    ) -> None:
        super().__init__(rules=rules, seed=seed)
        self.upstream = parse_server(upstream, SERVER)
        self._settings = replace(
            legs(tls, listen=parse_listener(listen, "listen"), upstream=self.upstream),
            seed=seed,
            # "wait": the recording of a passing test never has gaps.
            record=None if record is None else RecordSettings(Path(record), overflow="wait"),
        )

    async def _serve(self, started: Callable[[], None], stop: trio.Event) -> None:
        async with self._run_proxy(self._settings) as proxy:
            started()
            await stop.wait()
        if proxy.unwritten is not None:
            raise CaptureError(proxy.unwritten)

    def failure_report(self, count: int = 20) -> str:
        """Return the report for a failed test: server, faults in force, firings, the last frames."""
        return f"proxy before {self.upstream}, seed {self.seed}\n{super().failure_report(count)}"
