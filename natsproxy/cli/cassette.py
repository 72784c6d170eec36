"""`natsproxy cassette`: run a program, in any language, against a capture in place of a server."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import click
import trio

from natsproxy.addresses import mask_addresses
from natsproxy.cli.foreground import run_stoppable
from natsproxy.cli.match_options import match_options
from natsproxy.cli.options import tls_options
from natsproxy.cli.params import URL, Seconds
from natsproxy.cli.paths import FilePath, tell_continuation
from natsproxy.cli.receipts import ReceiptFile, receipt_options
from natsproxy.cli.replay_to_client import report_cassette, say_added
from natsproxy.cli.scoped_run import ScopedRun
from natsproxy.cli.scopes import ScopeOptions, scope_options
from natsproxy.config.endpoints import parse_listener, parse_server
from natsproxy.config.settings import ProxySettings, legs
from natsproxy.errors import ConfigError, Exit
from natsproxy.printable import printable
from natsproxy.processes.program import run_program
from natsproxy.replay.cassette.modes import MODES
from natsproxy.replay.cassette.record_anew import ANY_SERVER, option_flags, shell_line
from natsproxy.replay.cassette.record_mode import CassetteUse, parse_mode, plays, use
from natsproxy.replay.conversation.match_options import Given, MatchOptions
from natsproxy.replay.receipt import Minimum
from natsproxy.replay.server_playback.mismatch import preview
from natsproxy.replay.server_playback.server import CassetteServer
from natsproxy.replay.transport_proxy import client_url, inner_address, plain_upstream


@click.group()
def cassette() -> None:
    """Run programs against captures in place of a server."""


@cassette.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--mode", default="none", show_default=True, metavar="MODE", help=f"Record mode: {', '.join(MODES)}."
)
@click.option("--upstream", metavar=URL, help="The server to record from: nats://HOST:PORT, tls://, ...")
@click.option(
    "--listen",
    default="127.0.0.1:0",
    show_default=True,
    metavar="HOST:PORT",
    help="Listen address for the program: HOST:PORT, or tls://HOST:PORT.",
)
@click.option(
    "--strict/--no-strict",
    default=None,
    help="Fail if any recorded frame was not used, or for none; default: reads and pulls may be left out.",
)
@click.option(
    "--timeout", type=Seconds(), default="600", show_default=True, help="Stop the program after this time."
)
@click.option(
    "--setup",
    default="",
    metavar="COMMAND",
    help="Prepare the server with this shell command, which gets NATS_URL, before it is recorded from.",
)
@scope_options
@receipt_options()
@match_options
@tls_options(listen=True)
@click.argument("capture", type=FilePath())
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    mode: str,
    upstream: str | None,
    listen: str,
    strict: bool | None,
    timeout: float,
    setup: str,
    capture: Path,
    command: tuple[str, ...],
    options: Given,
    scope: ScopeOptions,
    receipt: ReceiptFile,
    tls: dict[str, Any],
) -> None:
    """Run a program against a capture.

    COMMAND gets in NATS_URL the address of a server that plays CAPTURE, or records it, according to --mode.
    A CAPTURE whose name ends in .txt is recorded as a text.
    With a scope CAPTURE is a folder: a program that runs many tests plays NAME.ncap of it in each; it gets in
    NATS_CASSETTE_ADMIN the URL at which it chooses.
    Identifiers and times that it makes up may differ from run to run.  The report on stderr names them, and
    ends with the first cause of a failure.

    Exit code: that of the program; 1 if it succeeded but sent frames that were never recorded, left out
    recorded ones or asked for nothing, or did not end in time; 2 could not run.  If it fails, CAPTURE stays
    unchanged.  CAPTURE.receipt.json tells what was served.

    \b
    natsproxy cassette run orders.ncap -- pytest -q tests/
    natsproxy cassette run --mode once --upstream nats://127.0.0.1:4222 orders.ncap -- node app.js
    natsproxy cassette run --admin 127.0.0.1:0 cassettes/ -- node --test
    natsproxy cassette run --ignore-json 'orders.> /ts' --like-headers X-Id orders.ncap -- ./app
    """
    # click leaves the `--` in, where options may not be interspersed.
    command = command[1:] if command[0] == "--" else command
    if command and command[0].startswith("-"):
        raise ConfigError(
            f"{command[0]} stands after CAPTURE, where COMMAND begins: put options before CAPTURE"
        )
    if not command:
        raise ConfigError("name the program to run: natsproxy cassette run x.ncap -- COMMAND")
    outcome = _Outcome(list(command), upstream, receipt.minimum)
    server = parse_server(upstream, "--upstream") if upstream else None
    ends = legs(tls, listen=parse_listener(listen, "--listen"), upstream=None if mode == "none" else server)
    receipt.begin(capture)
    if scope:
        known = parse_mode(mode)
        scoped = ScopedRun(
            capture, known, ends, options, strict, setup, scope, list(command), timeout, receipt
        )
        raise SystemExit(scoped.run())
    if plays(capture, parse_mode(mode)):
        tell_continuation(capture)
    stopped = run_stoppable(partial(_run, outcome, capture, mode, ends, options, setup, timeout))
    # Frames that a program did not send are no cause of its own failure, nor of its end before its time.
    missed = strict if outcome.code == 0 else False
    used = None if outcome.cassette is None else outcome.cassette.summary(strict=strict, whole=not stopped)
    uses = () if used is None else (used,)
    hollow = outcome.hollow()
    unmet = receipt.minimum.unmet(uses) if outcome.code == 0 else []
    late = [f"{command[0]} did not end within {timeout:g} s"] if outcome.late else []
    signalled = ["a signal stopped the run"] if stopped else []
    failures = [*late, *signalled, *outcome.differences(missed), *hollow, *unmet]
    wrong = Exit.FOUND_WRONG if failures else Exit.OK
    ended = outcome.code is not None and not stopped
    code = outcome.code or wrong if ended or late else Exit.STOPPED
    for sentence in late:
        click.echo(printable(sentence), err=True)
    saved = receipt.save(
        "cassette run", program=command, exit_code=outcome.code, failures=failures, code=int(code), uses=uses
    )
    if outcome.cassette is not None:
        _report(capture, outcome.cassette, outcome, missed, [*hollow, *unmet])
    raise SystemExit(code if code or saved else Exit.COULD_NOT_RUN)


def _report(
    capture: Path, cassette: CassetteUse, outcome: _Outcome, strict: bool | None, others: list[str]
) -> None:
    """Print the result of a cassette on stderr.  others: reasons why the run failed."""
    if cassette.discarded and not others:
        click.echo(f"{capture}: nothing was recorded, because the program failed", err=True)
    say_added(capture, cassette.added)
    missed = cassette.missed(strict)
    if cassette.played is not None:
        if missed or cassette.mismatched:
            again = outcome.record_command(capture, cassette.options)
            click.echo(printable(f"to record it anew: {again}"), err=True)
        report_cassette(cassette.played)
    if cassette.mismatched:
        return
    if missed and not others:
        more = f", and {len(missed) - 1} more" if len(missed) > 1 else ""
        others = [f"no client sent {preview(missed[0].frame)}{more} (--no-strict allows that)"]
    if not others and outcome.code != 0 and cassette.played is not None:
        others = list(filter(None, [_awaited(cassette.played, late=outcome.late)]))
    for first in others[:1]:
        click.echo(printable(f"the first cause: {first}"), err=True)


def _awaited(server: CassetteServer, *, late: bool) -> str:
    """Return what a cassette waited for when its program failed or was ended; `""` for nothing."""
    if server.unused():
        return f"the cassette was waiting for {server.machine.waiting_for()}"
    return "all that was recorded was played, and the program did not end" if late else ""


class _Outcome:
    """The exit code of the program (None: it did not end), and the cassette that it used.

    command, upstream: as they were given.  url: of the cassette.  late: it did not end in time.
    """

    def __init__(self, command: list[str], upstream: str | None, minimum: Minimum) -> None:
        self.command = command
        self.upstream = mask_addresses(upstream or ANY_SERVER)
        self.minimum = minimum
        self.code: int | None = None
        self.late = False
        self.cassette: CassetteUse | None = None
        self.url = ""

    def hollow(self) -> list[str]:
        """Return a sentence about a program that succeeded, though its run has shown nothing."""
        if self.code != 0 or self.cassette is None:
            return []
        if self.cassette.changed:
            return [f"{self.cassette.path} changed while it was played"]
        found = self.cassette.hollow(f"NATS_URL={self.url}") if self.minimum.served != 0 else ""
        return [f"{found} (--min-served 0 allows that)"] if found else []

    def differences(self, strict: bool | None) -> list[str]:
        """Return sentences about frames that were sent and never recorded, and about those left out."""
        return [] if self.cassette is None else self.cassette.differences(strict)

    def record_command(self, capture: Path, options: MatchOptions) -> str:
        """Return the command that records the cassette anew."""
        mode = ["--mode", "all", "--upstream", self.upstream]
        flags = option_flags(options, {})
        return shell_line(["natsproxy", "cassette", "run", *mode, *flags, str(capture), "--", *self.command])


async def _run(
    outcome: _Outcome,
    capture: Path,
    mode: str,
    ends: ProxySettings,
    options: Given,
    setup: str,
    limit: float,
) -> None:
    known, inner = parse_mode(mode), inner_address(ends)
    async with (
        plain_upstream(ends, now=not plays(capture, known)) as upstream,
        use(capture, known, upstream=upstream, options=options, listen=inner, setup=setup) as cassette,
    ):
        outcome.cassette = cassette
        async with client_url(ends, cassette.address) as outcome.url:
            environment = {**os.environ, "NATS_URL": outcome.url}
            with trio.move_on_after(limit) as scope:
                outcome.code = await run_program(outcome.command, environment)
        outcome.late = scope.cancelled_caught
        await cassette.wait_for_clients()
        if mode != "none" and (outcome.code != 0 or outcome.hollow()):
            cassette.discard()
