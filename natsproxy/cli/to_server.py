"""`natsproxy replay to-server`: plays the clients of a capture to a server."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from natsproxy.cli.diff import show
from natsproxy.cli.foreground import run_stoppable, with_progress
from natsproxy.cli.params import (
    URL,
    Seconds,
    Speed,
    parse_address,
    parse_connections,
    parse_credentials,
    show_facts,
)
from natsproxy.cli.paths import FilePath
from natsproxy.errors import ConfigError, Exit
from natsproxy.replay.client_playback.dry_run import examine
from natsproxy.replay.client_playback.replay_job import ReplayJob, ReplayOptions
from natsproxy.replay.diff.compare import compare
from natsproxy.replay.diff.normalize import parse_ignore


@click.command("to-server")
@click.argument("capture", type=FilePath())
@click.option("--to", "target", metavar=URL, help="The server.")
@click.option("--speed", type=Speed(), default="1", show_default=True, help="Factor, or max.")
@click.option("--user", help="USER:PASSWORD, or a token, to connect with.")
@click.option("--creds", type=FilePath(), help="A .creds file to connect with.")
@click.option("--map-user", multiple=True, metavar="RECORDED=USER:PASSWORD", help="For one recorded user.")
@click.option("--connections", default="", metavar="N[,N...]", help="Only these recorded connections.")
@click.option(
    "--loop",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="How many times; each with inboxes and nuids of its own.",
)
@click.option(
    "--timeout",
    type=Seconds(),
    default="5",
    show_default=True,
    help="How long to wait for what a frame answers, once all that may cause it was sent.",
)
@click.option("--dry-run", is_flag=True, help="Only look: how long, how many, what is odd.")
@click.option("--record", type=FilePath(), help="Record what happens, x.ncap.")
@click.option("--report", is_flag=True, help="Compare what happens with the capture.")
@click.option("--ignore", "ignored", multiple=True, metavar="WHAT", help="For --report: see capture diff.")
@click.option("--json", "as_json", is_flag=True, help="The result as one JSON object.")
@click.option("--quiet", is_flag=True, help="No progress.")
def to_server(
    capture: Path,
    target: str | None,
    dry_run: bool,
    as_json: bool,
    report: bool,
    ignored: tuple[str, ...],
    record: Path | None,
    quiet: bool,
    **options: Any,
) -> None:
    """Play the clients: one live connection per recorded one.

    Nothing that answered a message is sent before that message came.  Exit code: 0 played whole (and the
    same, with --report), 1 when something was waited for in vain or differs, 2 when it could not run, 130
    when a signal stopped it.

    \b
    natsproxy replay to-server traffic.ncap --to nats://127.0.0.1:4222
    natsproxy replay to-server traffic.ncap --to nats://127.0.0.1:4222 --speed max
    natsproxy replay to-server traffic.ncap --to nats://127.0.0.1:4222 --speed max --report
    natsproxy replay to-server traffic.ncap --dry-run
    """
    if dry_run:
        show_facts(examine(capture), as_json)
        return
    if target is None:
        raise ConfigError("say where to play to: --to nats://HOST:PORT (or --dry-run)")
    if report and options["loop"] > 1:
        raise ConfigError("--report compares one lap with the capture: leave out --loop, or --report")
    ignore = parse_ignore(ignored)
    with TemporaryDirectory() as folder:
        observed = record or (Path(folder) / "observed.ncap" if report else None)
        played = ReplayJob(capture, parse_address(target, "--to"), _terms(options), observed)
        picture = partial(_picture, f"{capture.name} -> {target}", played)
        stopped = run_stoppable(partial(with_progress, played.run, picture, quiet))
        found = compare(capture, observed, ignore) if report and observed is not None else None
    if found is None or not as_json:
        show_facts(played.facts(), as_json)
    if found is not None:
        show(found, as_json=as_json)
    for missing in played.missing[:20]:
        click.echo(str(missing), err=True)
    if stopped:
        raise SystemExit(Exit.STOPPED)
    same = not played.missing and (found is None or found.same)
    raise SystemExit(Exit.OK if same else Exit.FOUND_WRONG)


def _terms(options: dict[str, Any]) -> ReplayOptions:
    return ReplayOptions(
        options["speed"],
        int(options["timeout"] * 1e9),
        options["loop"],
        parse_connections(options["connections"]),
        parse_credentials(options),
    )


def _picture(title: str, played: ReplayJob, seconds: float) -> str:
    machine = played.machine
    if machine is None:
        return title
    iteration = f" ({played.iteration + 1})" if played.iteration else ""
    return (
        f"{title}{iteration}  {seconds:.0f} s  {machine.sent:,} sent  {machine.received_frames:,} received  "
        f"{machine.sent / (seconds or 1):,.0f} frames/s  {machine.lag.last / 1e6:,.1f} ms behind"
    )
