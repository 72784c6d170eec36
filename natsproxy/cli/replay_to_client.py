"""`natsproxy replay to-client`: play the server of a capture to live clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import trio

from natsproxy.addresses import Address
from natsproxy.cli.diff import show
from natsproxy.cli.foreground import run_stoppable, with_progress
from natsproxy.cli.match_options import ignored_subjects, match_options
from natsproxy.cli.options import tls_options
from natsproxy.cli.params import URL, Seconds, report_options, show_facts
from natsproxy.cli.paths import FilePath, tell_continuation
from natsproxy.cli.receipts import ReceiptFile, receipt_options
from natsproxy.cli.scopes import ScopeOptions, scope_options
from natsproxy.cli.stay import Stay
from natsproxy.cli.supervision import kept_ready
from natsproxy.config.endpoints import parse_listener, parse_server
from natsproxy.config.settings import ProxySettings, legs
from natsproxy.errors import ConfigError, Exit, NatsproxyError
from natsproxy.printable import printable
from natsproxy.replay.cassette.cassette_used import differences, played
from natsproxy.replay.cassette.fingerprint import Fingerprint, fingerprint
from natsproxy.replay.cassette.merge import merge
from natsproxy.replay.diff.compare import compare
from natsproxy.replay.errors import Stalled
from natsproxy.replay.observe import observe
from natsproxy.replay.server_playback.mismatch import preview
from natsproxy.replay.server_playback.server import CassetteServer
from natsproxy.replay.transport_proxy import client_url, inner_address, plain_upstream

_SHOWN = 5  # lines of one kind that are printed
_Entrance = Callable[[], AbstractAsyncContextManager[str]]


@click.command("to-client")
@click.argument("capture", type=FilePath())
@click.option(
    "--listen",
    default="127.0.0.1:4222",
    show_default=True,
    metavar="HOST:PORT",
    help="Listen address for clients: HOST:PORT, or tls://HOST:PORT.",
)
@click.option(
    "--unrecorded",
    type=click.Choice(["error", "ignore", "pass", "record"]),
    default="error",
    show_default=True,
    help="What to do with input that was not recorded; record: pass it on and add it to the capture.",
)
@click.option("--upstream", metavar=URL, help="The real server for --unrecorded pass and record.")
@click.option(
    "--timing",
    type=click.Choice(["answers", "recorded"]),
    default="answers",
    show_default=True,
    help="Answer immediately, or after the recorded time.",
)
@click.option(
    "--timeout",
    type=Seconds(),
    default="60",
    show_default=True,
    help="End after this time without traffic.",
)
@click.option(
    "--stay", is_flag=True, help="Serve until stopped; begin again when all clients have left, run after run."
)
@click.option(
    "--ready-file",
    type=FilePath(),
    envvar="NATSPROXY_READY_FILE",
    help="Touch this file while clients are served, for natsproxy healthcheck.",
)
@scope_options
@receipt_options()
@match_options
@report_options
@ignored_subjects
@tls_options(listen=True)
def to_client(
    capture: Path,
    listen: str,
    upstream: str | None,
    timeout: float,
    stay: bool,
    ready_file: Path | None,
    scope: ScopeOptions,
    record: Path | None,
    report: bool,
    subjects: tuple[bytes, ...],
    as_json: bool,
    quiet: bool,
    tls: dict[str, Any],
    receipt: ReceiptFile,
    **options: Any,
) -> None:
    """Play the server to live clients, whose frames are matched with the recorded ones.

    Identifiers and times that a program makes up may differ: they are learned, and the live ones come back.

    The command ends when everything was played and all clients have left, or after --timeout without traffic.
    With --stay it begins again then, and reports each run; with a scope CAPTURE is a folder of cassettes.
    Exit code: 0 all as recorded (and the same, with --report), 1 clients sent frames that were not recorded,
    left some out, or the report differs, 2 could not run or no client connected.  CAPTURE.receipt.json tells
    what was served.

    \b
    natsproxy replay to-client traffic.ncap --listen 127.0.0.1:4222
    natsproxy replay to-client traffic.ncap --listen 127.0.0.1:4222 --report --json
    natsproxy replay to-client . --stay --listen 127.0.0.1:4222 --admin 127.0.0.1:8222
    natsproxy replay to-client traffic.ncap --match-on subject,body --ignore-json 'orders.> /ts'
    natsproxy replay to-client traffic.ncap --unrecorded record --upstream nats://127.0.0.1:4223
    """
    if stay:
        if report:
            raise ConfigError("--report compares one run with the capture: leave --stay out")
        behind = parse_server(upstream, "--upstream") if upstream else None
        ends = legs(tls, listen=parse_listener(listen, "--listen"), upstream=behind)
        receipt.begin(capture)
        stays = Stay(capture, ends, scope, options, record, ready_file, as_json, quiet, receipt)
        raise SystemExit(stays.run())
    if scope:
        raise ConfigError("cassettes of a folder are played with --stay")
    tell_continuation(capture)
    found, stalled = None, ""
    behind = parse_server(upstream, "--upstream") if upstream else None
    ends = legs(tls, listen=parse_listener(listen, "--listen"), upstream=behind)
    receipt.begin(capture)
    before = fingerprint(capture)
    with TemporaryDirectory() as folder:
        observed = record or (Path(folder) / "observed.ncap" if report else None)
        # The proxy that records takes the address for clients; the server then has any free port.
        inner = inner_address(ends) if observed is None else Address()
        plain = None if behind is None else behind.address
        server = CassetteServer(capture, listen=inner, upstream=plain, **options)
        entrance = partial(_entrance, server, observed, ends)
        try:
            stopped = run_stoppable(partial(_serve, server, entrance, timeout, ready_file, quiet))
        except Stalled as error:
            if not server.accepted:  # nobody connected: that is "could not run", not a difference
                _save(receipt, server, before, [f"no client connected: {error}"], Exit.COULD_NOT_RUN)
                raise
            stopped, stalled = False, str(error)
        if report and observed is not None:
            found = compare(capture, observed, server.options, subjects=subjects)
    changed = before.changed()
    added = merge(server.path, server.take_additions(), server.options.filters)
    say_added(server.path, added)
    if found is not None:
        show(found, as_json=as_json)
    elif as_json:
        show_facts(_facts(server), as_json)
    failures = differences(server, [] if stopped else server.unused())
    failures += [f"{capture} changed while it was played"] if changed else []
    failures += [stalled] if stalled else []
    failures += ["what was played differs from the capture"] if found is not None and not found.same else []
    code, saved = _save(receipt, server, before, failures, changed=changed, added=added, whole=not stopped)
    if stalled:
        click.echo(stalled, err=True)
    report_cassette(server)
    raise SystemExit(code if code or saved else Exit.COULD_NOT_RUN)


def _save(
    receipt: ReceiptFile,
    server: CassetteServer,
    before: Fingerprint,
    failures: list[str],
    code: Exit | None = None,
    **more: Any,
) -> tuple[Exit, bool]:
    """Write the receipt; return the exit code, and whether the file could be written.

    code: None for that of the failures.
    """
    uses = (played(server, before, mode=server.unrecorded, **more),)
    unmet = receipt.minimum.unmet(uses)
    for sentence in unmet:
        click.echo(sentence, err=True)
    code = code or (Exit.FOUND_WRONG if failures or unmet else Exit.OK)
    saved = receipt.save("replay to-client", uses=uses, failures=[*failures, *unmet], code=int(code))
    return code, saved


@asynccontextmanager
async def _entrance(server: CassetteServer, observed: Path | None, ends: ProxySettings) -> AsyncIterator[str]:
    """Yield the URL for clients: of the server itself, or of a proxy that records it."""
    async with plain_upstream(ends) as server.upstream:
        if observed is None:
            async with client_url(ends, server.address) as url:
                yield url
            return
        async with (
            observe(observed, server.address, inner_address(ends), server.options) as proxy,
            client_url(ends, proxy.listen[0]) as url,
        ):
            yield url


async def _serve(
    server: CassetteServer, entrance: _Entrance, idle: float, ready: Path | None, quiet: bool
) -> None:
    """Play until all is done or nothing happened for `idle` seconds.  ready: a file to touch."""
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve)
        failure: NatsproxyError | None = None
        async with entrance() as url, kept_ready(ready):
            click.echo(f"playing {server.path} on {url}", err=True)

            def progress(seconds: float) -> str:
                played = server.machine.progress.played
                return f"{seconds:.0f} s  {server.connected} connected  {played:,} frames played"

            try:
                await with_progress(partial(server.finished, idle), progress, quiet)
            except NatsproxyError as error:  # raised below, outside of the nursery's exception group
                failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


def _facts(server: CassetteServer) -> dict[str, Any]:
    return {
        "clients": server.accepted,
        "frames": server.machine.progress.played,
        "mismatches": len(server.mismatches),
        "unused": len(server.unused()),
    }


def say_added(path: Path, count: int) -> None:
    """Print on stderr that frames were added to a capture, if any were."""
    if count:
        click.echo(f"{path}: {count} frames were added", err=True)


def report_cassette(server: CassetteServer) -> None:
    """Print on stderr what was learned, shared, left out and sent instead; the first cause comes last."""
    _list("learned", [str(one) for one in server.machine.identifiers.learned.values()])
    _list("shared", server.machine.handed_over)
    if server.unprepared:
        click.echo(printable(server.unprepared), err=True)
    unused = [f"{preview(one.frame)} (connection {one.conn})" for one in server.unused()]
    mismatches = server.mismatches
    _list("recorded, but not sent by any client", unused, shown=0 if mismatches else _SHOWN)
    _list("also sent, and not as recorded", [one.summary for one in mismatches[1:]])
    for first in mismatches[:1]:
        click.echo(printable(f"the first cause: {first}", keep="\n"), err=True)


def _list(title: str, lines: list[str], shown: int = _SHOWN) -> None:
    """Print the first lines of a list on stderr, and the number of the others."""
    for line in lines[:shown]:
        click.echo(printable(f"{title}: {line}"), err=True)
    if len(lines) > shown:
        click.echo(f"{title}: {len(lines) - shown} {'more' if shown else 'frames'}", err=True)
