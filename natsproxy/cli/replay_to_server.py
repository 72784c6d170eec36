"""`natsproxy replay to-server`: play the clients of a capture to a server."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from natsproxy.addresses import mask_url
from natsproxy.cli.diff import show
from natsproxy.cli.exits import CouldNotRun
from natsproxy.cli.filters import check_runs
from natsproxy.cli.foreground import run_stoppable, with_progress
from natsproxy.cli.match_options import ignored_subjects, match_options
from natsproxy.cli.options import tls_options
from natsproxy.cli.params import (
    URL,
    Seconds,
    Speed,
    parse_connections,
    parse_credentials,
    report_options,
    show_facts,
)
from natsproxy.cli.paths import FilePath, tell_continuation
from natsproxy.cli.receipts import ReceiptFile, receipt_options
from natsproxy.config.endpoints import parse_server
from natsproxy.config.settings import ProxySettings, legs
from natsproxy.errors import ConfigError, Exit
from natsproxy.replay.cassette.fingerprint import fingerprint
from natsproxy.replay.client_playback.dry_run import examine
from natsproxy.replay.client_playback.replay_job import ReplayJob, ReplayOptions
from natsproxy.replay.conversation.match_options import Given, MatchOptions, combine
from natsproxy.replay.conversation.steps import stored_options
from natsproxy.replay.diff.compare import compare
from natsproxy.replay.transport_proxy import plain_upstream

_SHOWN = 20  # missing messages that are printed


@click.command("to-server")
@click.argument("capture", type=FilePath())
@click.option(
    "--to", "target", metavar=URL, help="Server to play to: nats://HOST:PORT, tls://, ws:// or wss://."
)
@click.option(
    "--speed", type=Speed(), default="1", show_default=True, help="Factor of the recorded speed, or max."
)
@click.option("--user", help="USER:PASSWORD, or a token, to connect with.")
@click.option(
    "--creds", type=FilePath(), help="A .creds file to connect with; env:NAME for a variable with its text."
)
@click.option(
    "--map-user", multiple=True, metavar="RECORDED=USER:PASSWORD", help="Credentials for one recorded user."
)
@click.option(
    "--connections",
    default="",
    metavar="[RUN:]N[,...]",
    help="Only these recorded connections, in each run of the recorder or in one.",
)
@click.option(
    "--loop",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Number of iterations, each with its own inboxes and nuids.",
)
@click.option(
    "--timeout",
    type=Seconds(),
    default="5",
    show_default=True,
    help="Timeout for a message that a frame depends on, after all its causes were sent.",
)
@click.option("--dry-run", is_flag=True, help="Send nothing; show duration, counts and warnings.")
@receipt_options(minimum=False)
@report_options
@match_options
@ignored_subjects
@tls_options(listen=False)
def to_server(
    capture: Path,
    target: str | None,
    dry_run: bool,
    as_json: bool,
    report: bool,
    options: Given,
    subjects: tuple[bytes, ...],
    record: Path | None,
    quiet: bool,
    tls: dict[str, Any],
    receipt: ReceiptFile,
    **replay: Any,
) -> None:
    """Play the clients: one live connection per recorded one.

    A frame that answered a message is sent only after that message arrived.  Exit code: 0 all was played
    (and is the same, with --report), 1 a message never arrived or differs, 2 could not run, 130 a signal
    stopped it.  CAPTURE.receipt.json tells what was played.

    \b
    natsproxy replay to-server traffic.ncap --to nats://127.0.0.1:4222
    natsproxy replay to-server traffic.ncap --to nats://127.0.0.1:4222 --speed max
    natsproxy replay to-server traffic.ncap --to nats://127.0.0.1:4222 --speed max --report
    natsproxy replay to-server traffic.ncap --dry-run
    """
    tell_continuation(capture)
    if dry_run:
        show_facts(examine(capture), as_json)
        return
    if target is None:
        raise ConfigError("name the server: --to nats://HOST:PORT (or use --dry-run)")
    if report and replay["loop"] > 1:
        raise ConfigError("--report compares one iteration with the capture: leave out --loop or --report")
    check_runs(parse_connections(replay["connections"]), capture)
    receipt.begin(capture)
    sha256 = fingerprint(capture).sha256 if receipt.path is not None else ""
    with TemporaryDirectory() as folder:
        observed = record or (Path(folder) / "observed.ncap" if report else None)
        job = ReplayJob(capture, _replay_options(replay), observed)
        ends = legs(tls, upstream=parse_server(target, "--to"))
        progress = partial(_progress, f"{capture.name} -> {target}", job)
        stopped = run_stoppable(partial(with_progress, partial(_run, job, ends), progress, quiet))
        found = None
        if report and observed is not None:
            counted = MatchOptions(**combine(stored_options(capture), options))
            found = compare(capture, observed, counted, subjects=subjects)
    if found is None or not as_json:
        show_facts(job.facts(), as_json)
    if found is not None:
        show(found, as_json=as_json)
    for missing in job.missing[:_SHOWN]:
        click.echo(str(missing), err=True)
    unknown = f"{capture} has no connection {', '.join(job.unknown)} (`natsproxy capture info`)"
    failures = [f"{job.missing.total} messages never arrived"] if job.missing else []
    failures += ["what was played differs from the capture"] if found is not None and not found.same else []
    failures += [unknown] if job.unknown else []
    wrong = Exit.COULD_NOT_RUN if job.unknown else Exit.FOUND_WRONG if failures else Exit.OK
    code = Exit.STOPPED if stopped else wrong
    saved = receipt.save(
        "replay to-server",
        failures=failures,
        code=int(code),
        real_server=True,
        more={
            "server": mask_url(target),
            "replay": {"capture": str(capture), "sha256": sha256, **job.facts()},
        },
    )
    if code == Exit.COULD_NOT_RUN:
        raise CouldNotRun(unknown)
    raise SystemExit(code if code or saved else Exit.COULD_NOT_RUN)


async def _run(job: ReplayJob, ends: ProxySettings) -> None:
    async with plain_upstream(ends, now=True) as server:
        assert server is not None
        await job.run(server)


def _replay_options(options: dict[str, Any]) -> ReplayOptions:
    return ReplayOptions(
        options["speed"],
        int(options["timeout"] * 1e9),
        options["loop"],
        parse_connections(options["connections"]),
        parse_credentials(options),
    )


def _progress(title: str, job: ReplayJob, seconds: float) -> str:
    """Return the line of progress after `seconds`."""
    machine = job.machine
    if machine is None:  # the capture is still read
        return title
    iteration = f" ({job.iteration + 1})" if job.iteration else ""
    return (
        f"{title}{iteration}  {seconds:.0f} s  {machine.sent:,} sent  {machine.received_frames:,} received  "
        f"{machine.sent / (seconds or 1):,.0f} frames/s  {machine.lag.last / 1e6:,.1f} ms behind"
    )
