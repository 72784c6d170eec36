"""`natsproxy healthcheck`: the state of a running proxy, from the files that it touches."""

from __future__ import annotations

import time
from pathlib import Path
from stat import S_ISREG

import click

from natsproxy.cli.exits import FoundWrong
from natsproxy.cli.paths import FilePath

_OLD = 10.0  # seconds; the files are touched every second


@click.command()
@click.option("--live", is_flag=True, help="Check only that the proxy works, not that its upstream answers.")
@click.option(
    "--ready-file",
    type=FilePath(),
    envvar="NATSPROXY_READY_FILE",
    help="The file that natsproxy run touches.",
)
@click.option(
    "--live-file", type=FilePath(), envvar="NATSPROXY_LIVE_FILE", help="The file that natsproxy run touches."
)
def healthcheck(live: bool, ready_file: Path | None, live_file: Path | None) -> None:
    """Check whether a proxy is ready, by the exit code.

    It is, if natsproxy run, or replay to-client, with the same --ready-file has touched that file within 10
    seconds.  With --live the file is that of --live-file.  Exit code: 0 yes, 1 no, 2 there is no file to
    check.

    \b
    natsproxy healthcheck --ready-file /run/natsproxy/ready
    natsproxy healthcheck --live --live-file /run/natsproxy/live
    """
    path, name = (live_file, "live") if live else (ready_file, "ready")
    if path is None:
        raise click.UsageError(f"name the file: --{name}-file, or NATSPROXY_{name.upper()}_FILE")
    try:
        found = path.stat()
    except FileNotFoundError:
        raise FoundWrong(f"not {name}: there is no {path}") from None
    if not S_ISREG(found.st_mode):
        raise FoundWrong(f"not {name}: {path} is not a regular file")
    age = time.time() - found.st_mtime
    if age < -_OLD:
        raise FoundWrong(
            f"not {name}: {path} is from the future: the clock was set back, or the proxy has ended"
        )
    if age > _OLD:
        raise FoundWrong(f"not {name}: {path} was touched {age:.0f} s ago, the proxy has ended or is stuck")
    click.echo(name)
