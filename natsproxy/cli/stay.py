"""`natsproxy replay to-client --stay`: a server for run after run, with one cassette or those of a folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click
import trio

from natsproxy.addresses import Address
from natsproxy.cli.foreground import run_stoppable
from natsproxy.cli.params import show_facts
from natsproxy.cli.paths import tell_continuation
from natsproxy.cli.receipts import ReceiptFile
from natsproxy.cli.scopes import ScopeOptions, Verdicts, chosen
from natsproxy.cli.supervision import kept_ready
from natsproxy.config.settings import ProxySettings
from natsproxy.errors import ConfigError, Exit
from natsproxy.replay.cassette.fingerprint import fingerprint
from natsproxy.replay.cassette.merge import merge
from natsproxy.replay.cassette.record_mode import CassetteUse, play
from natsproxy.replay.cassette.scopes import Scopes, cassette_of, only_one
from natsproxy.replay.observe import observe
from natsproxy.replay.server_playback.server import CassetteServer
from natsproxy.replay.transport_proxy import client_url, inner_address, plain_upstream


@dataclass
class Stay:
    """A server that plays until it is stopped.

    options: of `CassetteServer`.  record: the file to which all runs are recorded, None for none.  ready: a
    file to touch while clients are served.
    """

    capture: Path
    ends: ProxySettings
    scope: ScopeOptions
    options: dict[str, Any]
    record: Path | None
    ready: Path | None
    as_json: bool
    quiet: bool
    receipt: ReceiptFile
    verdicts: Verdicts = field(init=False)
    refused: int = 0

    def run(self) -> Exit:
        """Serve; return the exit code of the command.  Raises ConfigError and CaptureError."""
        self.scope.check(self.capture)
        if self.scope and not self.capture.is_dir():
            raise ConfigError(f"there is no folder {self.capture}")
        title = "scope " if self.scope else ""
        self.verdicts = verdicts = Verdicts(shown=not self.quiet, title=title)
        if not self.scope:
            tell_continuation(self.capture)
        run_stoppable(self._serve)
        if self.as_json:
            members = ("clients", "frames", "mismatches", "unused")
            facts = {"runs": verdicts.scopes} | {name: getattr(verdicts, name) for name in members}
            show_facts(facts, as_json=True)
        uses = tuple(verdicts.uses.values())
        failures = [f"{use.test}: {text}" for use in uses for text in use.failures]
        unmet = self.receipt.minimum.unmet(uses)
        refused = [f"{self.refused} clients connected outside of a scope"] if self.refused else []
        for sentence in unmet:
            click.echo(sentence, err=True)
        code = Exit.FOUND_WRONG if verdicts.wrong or refused or unmet else Exit.OK
        failures = [*unmet, *refused, *failures]
        saved = self.receipt.save("replay to-client", failures=failures, code=int(code), uses=uses)
        click.echo(verdicts.total("runs"), err=True)
        return code if code or saved else Exit.COULD_NOT_RUN

    async def _serve(self) -> None:
        name = self.capture.name
        scope = self.scope
        async with AsyncExitStack() as stack:
            upstream = await stack.enter_async_context(plain_upstream(self.ends))
            inner = inner_address(self.ends) if self.record is None else Address()
            scopes = Scopes(
                partial(cassette_of, self.capture) if scope else lambda _: self.capture,
                partial(self._opened, upstream),
                listen=inner,
                by_name=scope.by_name,
                rewinds=True,
                report=self.verdicts.add,
            )
            admin = await stack.enter_async_context(chosen(scopes, scope))
            first = "" if scope.first or scope.by_name else only_one(self.capture) if scope else name
            if first:
                await scopes.choose(first)
            behind = scopes.address
            if self.record is not None:
                proxy = await stack.enter_async_context(
                    observe(self.record, behind, inner_address(self.ends))
                )
                behind = proxy.listen[0]
            url = await stack.enter_async_context(client_url(self.ends, behind))
            await stack.enter_async_context(kept_ready(self.ready))
            where = f", scopes at {admin}/v1/scope" if admin else ""
            click.echo(f"playing {self.capture} on {url}{where}", err=True)
            try:
                await trio.sleep_forever()
            finally:
                self.refused = scopes.refused

    @asynccontextmanager
    async def _opened(self, upstream: Address | None, path: Path) -> AsyncIterator[CassetteUse]:
        """Play a cassette for the length of the block; what was new is added, even if that is stopped."""
        server = CassetteServer(path, upstream=upstream, **self.options)
        used: CassetteUse | None = None
        try:
            async with play(server, "none", await trio.to_thread.run_sync(fingerprint, path)) as used:
                yield used
        finally:
            added = merge(server.path, server.take_additions(), server.options.filters)
            if used is not None:
                used.added += added
