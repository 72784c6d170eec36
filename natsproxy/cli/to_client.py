"""`natsproxy replay to-client`: plays the server of a capture to live clients."""

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
from natsproxy.cli.params import URL, Seconds, parse_address, show_facts
from natsproxy.cli.paths import FilePath
from natsproxy.errors import Exit, NatsproxyError
from natsproxy.printable import printable
from natsproxy.replay.cassette.merge import merge
from natsproxy.replay.diff.compare import compare
from natsproxy.replay.diff.normalize import parse_ignore
from natsproxy.replay.errors import Stalled
from natsproxy.replay.observe import observe
from natsproxy.replay.server_playback.server import CassetteServer

_SHOWN = 20
_Front = Callable[[], AbstractAsyncContextManager[Address]]


@click.command("to-client")
@click.argument("capture", type=FilePath())
@click.option("--listen", default="127.0.0.1:4222", show_default=True, metavar="HOST:PORT", help="Where.")
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
    help="Answer at once, or at the recorded distance.",
)
@click.option(
    "--timeout",
    type=Seconds(),
    default="60",
    show_default=True,
    help="How long without traffic to end after.",
)
@click.option("--stay", is_flag=True, help="Serve until stopped, also when everything was played.")
@click.option("--record", type=FilePath(), help="Record what happens, x.ncap.")
@click.option("--report", is_flag=True, help="Compare what happens with the capture.")
@click.option("--ignore", "ignored", multiple=True, metavar="WHAT", help="For --report: see capture diff.")
@click.option("--json", "as_json", is_flag=True, help="The result as one JSON object.")
@click.option("--quiet", is_flag=True, help="No progress.")
def to_client(
    capture: Path,
    listen: str,
    upstream: str | None,
    timeout: float,
    stay: bool,
    record: Path | None,
    report: bool,
    ignored: tuple[str, ...],
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Play the server to live clients.

    What they say is matched with what was recorded.

    Ends when everything was played and all clients have left, or when nothing has happened for --timeout.
    Exit code: 0 all as recorded (and the same, with --report), 1 when clients sent what was not recorded,
    left something out, or the report differs, 2 when it could not run or nobody came.

    \b
    natsproxy replay to-client traffic.ncap --listen 127.0.0.1:4222
    natsproxy replay to-client traffic.ncap --listen 127.0.0.1:4222 --report --json
    natsproxy replay to-client traffic.ncap --unrecorded record --upstream nats://127.0.0.1:4223
    """
    found, stalled = None, ""
    ignore, address = parse_ignore(ignored), parse_address(listen, "--listen")
    behind = parse_address(upstream, "--upstream") if upstream else None
    with TemporaryDirectory() as folder:
        observed = record or (Path(folder) / "observed.ncap" if report else None)
        inner = address if observed is None else Address()
        server = CassetteServer(capture, listen=inner, upstream=behind, **options)
        front = partial(_front, server, observed, address)
        try:
            stopped = run_stoppable(partial(_serve, server, front, None if stay else timeout, quiet))
        except Stalled as error:
            if not server.accepted:
                raise
            stopped, stalled = False, str(error)
        if report and observed is not None:
            found = compare(capture, observed, ignore)
    say_added(server.path, merge(server.path, server.take_additions()))
    if found is not None:
        show(found, as_json=as_json)
    elif as_json:
        show_facts(_facts(server), as_json)
    if stalled:
        click.echo(stalled, err=True)
    report_cassette(server)
    differs = found is not None and not found.same
    wrong = server.mismatches or (server.unused() and not stopped) or stalled or differs
    raise SystemExit(Exit.FOUND_WRONG if wrong else Exit.OK)


@asynccontextmanager
async def _front(server: CassetteServer, observed: Path | None, listen: Address) -> AsyncIterator[Address]:
    """Yield where clients connect: the server itself, or what records it."""
    if observed is None:
        yield server.address
        return
    async with observe(observed, server.address, listen) as proxy:
        yield proxy.listen[0]


async def _serve(server: CassetteServer, front: _Front, idle: float | None, quiet: bool) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve)
        failure: NatsproxyError | None = None
        async with front() as address:
            click.echo(f"playing {server.path} on nats://{address}", err=True)
            if idle is None:
                await trio.sleep_forever()

            def picture(seconds: float) -> str:
                script = server.machine.conversation
                return f"{seconds:.0f} s  {server.connected} connected  {script.played:,} frames played"

            try:
                await with_progress(partial(server.finished, idle), picture, quiet)
            except NatsproxyError as error:
                failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


def _facts(server: CassetteServer) -> dict[str, Any]:
    return {
        "clients": server.accepted,
        "frames": server.machine.conversation.played,
        "mismatches": len(server.mismatches),
        "unused": len(server.unused()),
    }


def say_added(path: Path, count: int) -> None:
    """Say that a capture was added to, on stderr."""
    if count:
        click.echo(f"{path}: {count} frames were added", err=True)


def report_cassette(server: CassetteServer) -> None:
    """Print what did not fit between a cassette and its clients, to stderr."""
    for mismatch in server.mismatches[:_SHOWN]:
        click.echo(printable(str(mismatch), keep="\n"), err=True)
    unused = server.unused()
    for exchange in unused[:_SHOWN]:
        frame = exchange.frame
        line = printable(frame.line.strip())
        click.echo(f"recorded, but not sent by any client: {line} (connection {exchange.conn})", err=True)
    if len(unused) > _SHOWN:
        click.echo(f"... and {len(unused) - _SHOWN} more", err=True)
