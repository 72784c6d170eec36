"""`natsproxy sweep`: run a program once for each place in its conversation and each fault there."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import click

from natsproxy.addresses import mask_addresses
from natsproxy.cli.foreground import run_stoppable
from natsproxy.cli.match_options import match_options
from natsproxy.cli.options import tls_options
from natsproxy.cli.params import URL, Seconds
from natsproxy.cli.paths import FilePath
from natsproxy.cli.sweep_progress import show_findings, showing
from natsproxy.config.endpoints import HttpListener, Listener, parse_server, read_http_listener
from natsproxy.config.settings import legs
from natsproxy.errors import ConfigError, Exit
from natsproxy.printable import printable
from natsproxy.sweep.faults import DEFAULTS, GROUPS
from natsproxy.sweep.findings import read_accepted
from natsproxy.sweep.folder import SweepFolder, find_trial
from natsproxy.sweep.kept_sweep import KeptSweep
from natsproxy.sweep.programs import Command
from natsproxy.sweep.sweeping import Sweep, SweepOptions, title
from natsproxy.sweep.values import Verdict
from natsproxy.sweep.worlds import OwnServer, Played, UserServer, World

_WORDS: Final = "natsproxy.sweep.words"
_ANY_PORT: Final = "127.0.0.1:0"  # the value of --page without one
_OWN: Final = "installed"  # the value of --server without one


class _AsTyped(click.Command):
    """A command that keeps the words that it was given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_WORDS] = list(args)
        return super().parse_args(ctx, args)


@click.command(cls=_AsTyped, context_settings={"allow_interspersed_args": False})
@click.option("--upstream", metavar=URL, help="Use this server of yours, for one run at a time.")
@click.option(
    "--server",
    is_flag=False,
    flag_value=_OWN,
    metavar="[PATH]",
    help="Start a fresh nats-server with JetStream for each run: PATH, or else the one that is installed.",
)
@click.option("--cassette", type=FilePath(), help="Play this capture: no server is needed.")
@click.option("--server-config", type=FilePath(), help="Configuration file for the servers of --server.")
@click.option(
    "--setup",
    default="",
    metavar="COMMAND",
    help="Shell command that makes streams and data; it finds the server in NATS_URL.",
)
@click.option(
    "--reset", default="", metavar="COMMAND", help="Shell command that cleans --upstream before each run."
)
@click.option(
    "--check",
    default="",
    metavar="COMMAND",
    help="Shell command that looks at the server after each run: its exit code and its output must be "
    "those of clean runs.  It has 60s, or --timeout if that is less.",
)
@click.option(
    "--faults",
    metavar="NAMES",
    help=f"Faults to try, comma-separated: {', '.join(GROUPS)}; natsproxy help sweep has why each happens.  "
    f"[all but {', '.join(group for group in GROUPS if group not in DEFAULTS)}]",
)
@click.option(
    "--subject",
    "subjects",
    multiple=True,
    metavar="PATTERN",
    help="Try only frames on these subjects.  (repeatable)",
)
@click.option("--for", "budget", type=Seconds(), help="Begin no new trial after this time.")
@click.option(
    "--all", "everything", is_flag=True, help="Try every place, and not one of those that are alike."
)
@click.option(
    "--depth",
    type=click.IntRange(1, 2),
    default=1,
    show_default=True,
    metavar="1|2",
    help="2: try faults on the connections that follow a fault too.",
)
@click.option(
    "--baseline",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    metavar="N",
    help="Clean runs at the start; places that not all of them have are left out.",
)
@click.option(
    "--confirm",
    type=click.IntRange(2, 100),
    default=5,
    show_default=True,
    metavar="N",
    help="Runs that must all fail the same way to make a finding.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1, 256),
    metavar="N",
    help="Runs side by side, but with --upstream.  [number of processors]",
)
@click.option(
    "--patience",
    type=Seconds(),
    help="Time after which a run with a fault is called hung.  [by the program's own timers, 30s at least]",
)
@click.option(
    "--timeout", type=Seconds(), default="10m", show_default=True, help="Time that a clean run may take."
)
@click.option(
    "--out",
    type=FilePath(),
    default="sweep-out",
    show_default=True,
    help="Folder for the results.  What failed in the sweep that it has comes first.",
)
@click.option(
    "--resume", is_flag=True, help="Go on with the sweep in --out, which was stopped or ran out of time."
)
@click.option("--shard", metavar="I/N", help="Try the I-th of N parts, as one of N machines.")
@click.option(
    "--only", metavar="FINDING", help="Run the trial of this finding in --out again: its number or name."
)
@click.option(
    "--accept",
    type=FilePath(),
    help="File of known findings, a name on each line: only others make the exit code 1.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the choices that rules make.")
@click.option(
    "--page",
    is_flag=False,
    flag_value=_ANY_PORT,
    metavar="[HOST:PORT]",
    help="Show the sweep in a browser while it runs, on this machine alone; the URL is printed.",
)
@click.option("--quiet", is_flag=True, help="Show no progress on stderr.")
@match_options
@tls_options(listen=False)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def sweep(command: tuple[str, ...], **given: Any) -> None:
    """Find the frame whose loss, delay, repetition or cut breaks a program.

    COMMAND gets in NATS_URL the address of a proxy before the server.  It must do its work, end by itself and
    say by its exit code whether it succeeded.  It is run a few times without a fault; then once for each
    class of places in its conversation and each fault that can happen there.  A run that ends as it should,
    or that fails and says so, is well.  One that hangs, stays connected and takes nothing, or succeeds with
    wrong messages is repeated; if it does the same every time, it is a finding.

    Each finding has a folder in --out: rules that reproduce it, the capture, the stack, a sentence.
    report.html has all of it, and shows a sweep that is running, as --page does; junit.xml is for CI.
    The options from --config to --filter-subjects go with --cassette: see natsproxy cassette run.

    Exit code: 0 no finding, 1 findings (those of --accept aside), 2 could not run.  With --only: 0 it did not
    fail, 1 it failed, if only at times, 2 its place did not come.

    \b
    natsproxy sweep --server -- python worker.py
    natsproxy sweep --upstream nats://127.0.0.1:4222 --reset ./clean.sh -- ./worker
    natsproxy sweep --server --faults cut,drop,late --subject 'orders.>' --for 5m -- node worker.js
    natsproxy sweep --cassette worker.ncap -- go test ./...
    natsproxy sweep --server --only 01 -- python worker.py
    """
    words = list(command[1:] if command[0] == "--" else command)
    if not words:
        raise ConfigError("name the program to run: natsproxy sweep --server -- COMMAND")
    if words[0].startswith("-"):
        raise ConfigError(f"{words[0]} stands where COMMAND begins: put options before it")
    options = _options(given)
    world = _world(given)
    accepted = read_accepted(given["accept"]) if given["accept"] else []
    program = Command(words, os.environ)
    page = _page(given["page"]) if given["page"] else None
    if given["only"]:
        raise SystemExit(_reproduce(given, world, program, options))
    again = _again(click.get_current_context())
    kept = KeptSweep(world, program, options, given["out"], again, accepted=accepted, resume=given["resume"])
    stopped = run_stoppable(lambda: showing(kept, given["quiet"], page))
    outcome = kept.finish(signal=stopped)
    if outcome is None:
        raise SystemExit(Exit.STOPPED)
    show_findings(outcome)
    failed = outcome.could_not_run or outcome.unwritten
    code = Exit.FOUND_WRONG if outcome.new else Exit.COULD_NOT_RUN if failed else Exit.OK
    raise SystemExit(Exit.STOPPED if stopped else code)


def _again(context: click.Context) -> str:
    """Return the command that shows a finding again: the words as they were typed.

    The password of a URL is on no disk and in no log: that word is `$NATS_URL`.
    """
    words = [*context.meta[_WORDS]]
    begin = len(words) - len(context.params["command"])
    typed = [_without_password(word) if at < begin else shlex.quote(word) for at, word in enumerate(words)]
    return " ".join(["natsproxy sweep --only {number}", *typed])


def _without_password(word: str) -> str:
    if mask_addresses(word) == word:
        return shlex.quote(word)
    option, equals, _ = word.partition("=")
    return f'{option}="$NATS_URL"' if equals and option.startswith("--") else '"$NATS_URL"'


def _page(text: str) -> HttpListener:
    try:
        return read_http_listener(text)
    except ValueError as error:
        raise ConfigError(f"--page: {error}") from None


def _options(given: dict[str, Any]) -> SweepOptions:
    names = tuple(filter(None, (given["faults"] or "").replace(" ", "").split(",")))
    return SweepOptions(
        faults=names,
        subjects=given["subjects"],
        everything=given["everything"],
        shard=_shard(given["shard"]),
        baseline=given["baseline"],
        confirm=given["confirm"],
        budget=given["budget"],
        jobs=given["jobs"] or os.cpu_count() or 1,
        patience=given["patience"],
        limit=given["timeout"],
        depth=given["depth"],
        check=given["check"],
        seed=given["seed"],
    )


def _shard(text: str | None) -> tuple[int, int]:
    if text is None:
        return 1, 1
    number, slash, of = text.partition("/")
    if not (slash and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise ConfigError(f"--shard must be like 1/4, not {text}")
    return int(number), int(of)


def _world(given: dict[str, Any]) -> World:
    """Return the world that is asked for.  Raises ConfigError."""
    named = [name for name in ("upstream", "server", "cassette") if given[name] is not None]
    if len(named) != 1:
        raise ConfigError(
            "name one server: --server for a fresh one in each run, --upstream URL, or --cassette CAPTURE"
        )
    (kind,) = named
    for option, of in (("server_config", "server"), ("reset", "upstream")):
        if given[option] and of != kind:
            raise ConfigError(f"--{option.replace('_', '-')} goes with --{of}")
    if kind == "cassette":
        if given["setup"]:
            raise ConfigError("--setup needs a server: a cassette has what was recorded")
        return Played(given["cassette"], given["options"])
    if given["options"]:
        raise ConfigError("options of the comparison go with --cassette")
    if kind == "upstream":
        server = parse_server(given["upstream"], "--upstream")
        ends = legs(given["tls"], listen=Listener(), upstream=server)
        return UserServer(ends, given["setup"], given["reset"], given["upstream"])
    path = None if given["server"] == _OWN else Path(given["server"])
    return OwnServer(path, _config(given["server_config"]), given["setup"])


def _config(path: Path | None) -> str:
    """Return the text of the servers' configuration file; "" for none.  Raises ConfigError."""
    try:
        return path.read_text(encoding="utf-8") if path else ""
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is no configuration of a nats-server: it is not text in UTF-8") from None


def _reproduce(given: dict[str, Any], world: World, program: Command, options: SweepOptions) -> int:
    """Run the trial of a finding again, and print how often it did the same."""
    trial = find_trial(given["out"], given["only"])
    with TemporaryDirectory(prefix="natsproxy-sweep-") as path:
        one = Sweep(world, program, SweepFolder.begin(Path(path), {}), options)

        async def main() -> None:
            await one.reproduce(trial)

        if run_stoppable(main):
            return Exit.STOPPED
        (judged,) = one.judged
    verdict = judged.judgement.verdict
    count = f"{judged.same if judged.confirmed else judged.failed} of {judged.runs} runs"
    said = f"{verdict.value}, {count}" if judged.confirmed else f"{verdict.value}, it failed in {count}"
    click.echo(printable(f"{title(trial)}: {said}"))
    for reason in judged.judgement.reasons:
        click.echo(printable(f"  {reason}"))
    if judged.failed:  # a finding that comes and goes is not mended
        return Exit.FOUND_WRONG
    return Exit.COULD_NOT_RUN if verdict is Verdict.NOT_REACHED else Exit.OK
