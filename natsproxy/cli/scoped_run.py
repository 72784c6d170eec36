"""`natsproxy cassette run` with scopes: the program, or its tests, choose cassettes of a folder."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess

import click
import trio

from natsproxy.cli.foreground import run_stoppable
from natsproxy.cli.scopes import ADMIN_URL_VARIABLE, ScopeOptions, Verdicts, chosen
from natsproxy.config.settings import ProxySettings
from natsproxy.errors import ConfigError, Exit
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
    scope: ScopeOptions
    command: list[str]
    limit: float
    verdicts: Verdicts = field(default_factory=Verdicts)
    code: int | None = None
    late: bool = False
    refused: int = 0

    def run(self) -> int:
        """Run the program; return the exit code of the command.  Raises ConfigError."""
        self.scope.check(self.folder)
        stopped = run_stoppable(self._run)
        wrong = bool(self.verdicts.wrong or self.refused)
        if self.refused:
            click.echo(f"{self.refused} clients connected outside of a scope, and were refused", err=True)
        if not self.verdicts.scopes and self.code == 0:
            click.echo(f"no scope of {self.folder} was used", err=True)
            wrong = True
        click.echo(self.verdicts.total(), err=True)
        if self.late:
            raise ConfigError(f"{self.command[0]} did not end within {self.limit:g} s")
        if stopped or self.code is None:
            return Exit.STOPPED
        return self.code or (Exit.FOUND_WRONG if wrong else Exit.OK)

    async def _run(self) -> None:
        async with plain_upstream(self.ends) as upstream:
            scopes = Scopes(
                partial(cassette_of, self.folder),
                partial(use, mode=self.mode, upstream=upstream, options=self.options),
                listen=inner_address(self.ends),
                by_name=self.scope.by_name,
                strict=self.strict,
                report=self.verdicts.add,
            )
            async with chosen(scopes, self.scope) as admin, client_url(self.ends, scopes.address) as url:
                more = {ADMIN_URL_VARIABLE: admin} if admin else {}
                with trio.move_on_after(self.limit) as time:
                    await self._program({**os.environ, "NATS_URL": url, **more})
                self.late = time.cancelled_caught
                await scopes.close(keep=self.code == 0)
                self.refused = scopes.refused

    async def _program(self, environment: dict[str, str]) -> None:
        try:
            done: CompletedProcess[bytes] = await trio.run_process(self.command, env=environment, check=False)
        except OSError as error:
            raise ConfigError(f"cannot run {self.command[0]}: {error.strerror or error}") from None
        # A program that a signal killed has the exit code that a shell gives it.
        self.code = done.returncode if done.returncode >= 0 else 128 - done.returncode
