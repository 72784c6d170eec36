"""`natsproxy cassette run` with scopes: the program, or its tests, choose cassettes of a folder."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import click
import trio

from natsproxy.cli.foreground import run_stoppable
from natsproxy.cli.receipts import ReceiptFile
from natsproxy.cli.scopes import ADMIN_URL_VARIABLE, ScopeOptions, Verdicts, chosen
from natsproxy.config.settings import ProxySettings
from natsproxy.errors import Exit
from natsproxy.printable import printable
from natsproxy.processes.program import run_program
from natsproxy.replay.cassette.modes import Mode
from natsproxy.replay.cassette.record_mode import use
from natsproxy.replay.cassette.scopes import Scopes, cassette_of
from natsproxy.replay.conversation.match_options import Given
from natsproxy.replay.transport_proxy import client_url, inner_address, plain_upstream


@dataclass
class ScopedRun:
    """One run of a program.

    folder: of the cassettes.  limit: seconds for the program.  code: its exit code, None if it did not end;
    late: not in time.  refused: clients that came outside of a scope.
    """

    folder: Path
    mode: Mode
    ends: ProxySettings
    options: Given
    strict: bool | None
    setup: str
    scope: ScopeOptions
    command: list[str]
    limit: float
    receipt: ReceiptFile
    verdicts: Verdicts = field(default_factory=Verdicts)
    code: int | None = None
    late: bool = False
    refused: int = 0

    def run(self) -> int:
        """Run the program; return the exit code of the command.  Raises ConfigError."""
        self.scope.check(self.folder)
        stopped = run_stoppable(self._run)
        wrong = bool(self.verdicts.wrong or self.refused)
        uses = tuple(self.verdicts.uses.values())
        failures = [f"scope {use.test}: {text}" for use in uses for text in use.failures]
        ours = (
            [f"{self.refused} clients connected outside of a scope, and were refused"] if self.refused else []
        )
        if self.code == 0:
            ours += [] if self.verdicts.scopes else [f"no scope of {self.folder} was used"]
            ours += self.receipt.minimum.unmet(uses)
        for sentence in ours:
            click.echo(printable(sentence), err=True)
        late = f"{self.command[0]} did not end within {self.limit:g} s" if self.late else ""
        ended = self.code is not None and not stopped
        own = Exit.FOUND_WRONG if wrong or ours else Exit.OK
        code = Exit.FOUND_WRONG if late else self.code or own if ended else Exit.STOPPED
        members = {"program": self.command, "exit_code": self.code, "code": int(code), "uses": uses}
        failures = [*ours, *([late] if late else []), *failures]
        saved = self.receipt.save("cassette run", failures=failures, **members)
        click.echo(self.verdicts.total(), err=True)
        if late:
            click.echo(printable(late), err=True)
        return code if code or saved else Exit.COULD_NOT_RUN

    async def _run(self) -> None:
        async with plain_upstream(self.ends) as upstream:
            scopes = Scopes(
                partial(cassette_of, self.folder),
                partial(use, mode=self.mode, upstream=upstream, options=self.options, setup=self.setup),
                listen=inner_address(self.ends),
                by_name=self.scope.by_name,
                strict=self.strict,
                report=self.verdicts.add,
            )
            async with chosen(scopes, self.scope) as admin, client_url(self.ends, scopes.address) as url:
                more = {ADMIN_URL_VARIABLE: admin} if admin else {}
                with trio.move_on_after(self.limit) as time:
                    environment = {**os.environ, "NATS_URL": url, **more}
                    self.code = await run_program(self.command, environment)
                self.late = time.cancelled_caught
                await scopes.close(keep=self.code == 0)
                self.refused = scopes.refused
