"""`natsproxy replay`: play the clients of a capture to a server, or its server to clients."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import trio

from natsproxy.cli.diff import CouldNotRun, show
from natsproxy.config.settings import Address, ProxySettings, RecordSettings
from natsproxy.errors import ConfigError, NatsproxyError
from natsproxy.net.proxy import Proxy
from natsproxy.replay import credentials as creds
from natsproxy.replay.canonical import parse_ignore
from natsproxy.replay.cassette import CassetteServer
from natsproxy.replay.compare import compare
from natsproxy.replay.dry import examine
from natsproxy.replay.plan import events
from natsproxy.replay.player import ServerPlayer
from natsproxy.replay.to_server import ToServer

_STOPPED = 130
_DRAIN = 5.0  # seconds for the last bytes of a recorded replay
_EVERY = 0.25  # seconds between two pictures of the progress


@click.group()
def replay() -> None:
    """Play the clients of a capture to a server, or its server to clients."""


class _Speed(click.ParamType[float | None]):
    name = "FACTOR|max"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | None:
        if value == "max":
            return None
        try:
            speed = float(value)
        except ValueError:
            speed = 0
        if not 0.001 <= speed <= 10_000:
            self.fail(f"{value!r} is neither a factor (0.1, 1, 100) nor max", param, ctx)
        return speed


def parse_address(text: str, what: str) -> Address:
    """Read `nats://HOST:PORT` or `HOST:PORT`.

    Raises ConfigError with the shape that it must have.
    """
    match = re.fullmatch(r"(?:nats://)?(?:[^@/]*@)?(\[[0-9a-fA-F:.]+\]|[^:/\[\]]*)(?::(\d{1,5}))?/?", text)
    if match is None or text.startswith("tls://") or int(match[2] or 0) > 65535:
        raise ConfigError(f"{what} {text!r} is no address: nats://HOST:PORT")
    return Address(match[1].strip("[]") or "127.0.0.1", int(match[2]) if match[2] is not None else 4222)


@replay.command("to-server")
@click.argument("capture", type=click.Path(path_type=Path))
@click.option("--to", "target", help="The server: nats://HOST:PORT.")
@click.option("--speed", type=_Speed(), default="1", show_default=True, help="Factor, or max.")
@click.option("--user", help="USER:PASSWORD, or a token, to connect with.")
@click.option("--creds", type=click.Path(path_type=Path), help="A .creds file to connect with.")
@click.option("--map-user", multiple=True, metavar="RECORDED=USER:PASSWORD", help="For one recorded user.")
@click.option("--connections", default="", metavar="N[,N...]", help="Only these recorded connections.")
@click.option("--loop", default=1, show_default=True, type=click.IntRange(1), help="How many times.")
@click.option("--timeout", default=5.0, show_default=True, help="Seconds to wait for what a frame answers.")
@click.option("--dry-run", is_flag=True, help="Only look: how long, how many, what is odd.")
@click.option("--record", type=click.Path(path_type=Path), help="Record what happens, x.ncap.")
@click.option("--report", is_flag=True, help="Compare what happens with the capture.")
@click.option("--ignore", "ignored", multiple=True, metavar="WHAT", help="For --report: see capture diff.")
@click.option("--json", "as_json", is_flag=True, help="The result as one JSON object.")
@click.option("--quiet", is_flag=True, help="No progress.")
def to_server(
    capture: Path, target: str | None, dry_run: bool, as_json: bool, report: bool,
    ignored: tuple[str, ...], record: Path | None, **options: Any,
) -> None:  # fmt: skip
    """Play the clients: one live connection per recorded one.

    Nothing that answered a message is sent before that message came.  Exit code: 0 played whole (and the
    same, with --report), 1 when something was waited for in vain or differs, 2 when it could not run.

    \b
    natsproxy replay to-server traffic.ncap --to nats://127.0.0.1:4222
    natsproxy replay to-server traffic.ncap --to nats://127.0.0.1:4222 --speed max
    natsproxy replay to-server traffic.ncap --to nats://127.0.0.1:4222 --speed max --report
    natsproxy replay to-server traffic.ncap --dry-run
    """
    try:
        if dry_run:
            _show(examine(capture), as_json)
            return
        if target is None:
            raise ConfigError("say where to play to: --to nats://HOST:PORT (or --dry-run)")
        ignore = parse_ignore(ignored)
        with TemporaryDirectory() as folder:
            observed = record or (Path(folder) / "observed.ncap" if report else None)
            played = _PlayClients(capture, parse_address(target, "--to"), options, observed)
            stopped = run_stoppable(played.run)
            found = compare(capture, observed, ignore) if report and observed is not None else None
    except NatsproxyError as error:
        raise _failed(error) from None
    if found is None or not as_json:
        _show(played.facts(), as_json)
    if found is not None:
        show(found, as_json=as_json)
    for missing in played.missing[:20]:
        click.echo(str(missing), err=True)
    same = not played.missing and (found is None or found.same)
    raise SystemExit(_STOPPED if stopped else 0 if same else 1)


class _PlayClients:
    """Plays the clients of a capture, as often as asked, behind a recording proxy where it is recorded."""

    def __init__(
        self, capture: Path, address: Address, options: dict[str, Any], observed: Path | None
    ) -> None:
        self.capture, self.address, self.options, self.observed = capture, address, options, observed
        self.credentials = _credentials(options)
        self.chosen = _numbers(options["connections"])
        self.missing: list[object] = []
        self.totals = {"frames": 0, "bytes": 0, "received": 0, "connections": 0}
        self.seconds = self.lag = 0.0
        self.machine: ToServer | None = None

    async def run(self) -> None:
        """Play; what happens is recorded where that was asked for."""
        if self.observed is None:
            await self._play(self.address)
            return
        settings = ProxySettings(
            listen=(Address("127.0.0.1", 0),), upstream=self.address, record=RecordSettings(self.observed)
        )
        proxy = Proxy(settings)
        async with trio.open_nursery() as nursery:
            (address,) = await nursery.start(proxy.serve)
            await self._play(address)
            await proxy.drain(_DRAIN)  # ends `serve`, and with it the nursery, when the capture is whole

    async def _play(self, address: Address) -> None:
        for turn in range(self.options["loop"]):
            began = trio.current_time()
            machine = self.machine = ToServer(
                events(self.capture),
                speed=self.options["speed"],
                patience=int(self.options["timeout"] * 1e9),
                keep=lambda conn: not self.chosen or conn in self.chosen,
            )
            player = ServerPlayer(machine, address, self.credentials)
            try:
                title = f"{self.capture.name} -> {self.address}" + (f" ({turn + 1})" if turn else "")
                await with_progress(player.run, partial(self._picture, title), self.options["quiet"])
            finally:
                self.missing += machine.missing
                self.totals["frames"] += machine.sent
                self.totals["bytes"] += machine.sent_bytes
                self.totals["received"] += machine.received_frames
                self.totals["connections"] += player.connected
                self.seconds += trio.current_time() - began
                self.lag = max(self.lag, machine.worst_lag / 1e9)

    def _picture(self, title: str, seconds: float) -> str:
        machine = self.machine
        assert machine is not None
        rate = machine.sent / seconds if seconds else 0
        return (
            f"{title}  {seconds:.0f} s  {machine.sent:,} sent  {machine.received_frames:,} received  "
            f"{rate:,.0f} frames/s  {machine.lag / 1e6:,.1f} ms behind"
        )

    def facts(self) -> dict[str, Any]:
        return {
            **self.totals, "seconds": round(self.seconds, 3),
            "frames_per_second": round(self.totals["frames"] / self.seconds) if self.seconds else 0,
            "worst_lag_ms": round(self.lag * 1000, 3), "missing": len(self.missing),
        }  # fmt: skip


@replay.command("to-client")
@click.argument("capture", type=click.Path(path_type=Path))
@click.option("--listen", default="127.0.0.1:4222", show_default=True, metavar="HOST:PORT", help="Where.")
@click.option(
    "--unrecorded",
    type=click.Choice(["error", "ignore", "pass", "record"]),
    default="error",
    show_default=True,
    help="What to do with input that was not recorded; record: pass it on and add it to the capture.",
)
@click.option("--upstream", help="The real server for --unrecorded pass and record: nats://HOST:PORT.")
@click.option(
    "--timing",
    type=click.Choice(["answers", "recorded"]),
    default="answers",
    show_default=True,
    help="Answer at once, or at the recorded distance.",
)
@click.option("--timeout", default=60.0, show_default=True, help="Seconds without traffic to give up after.")
@click.option("--stay", is_flag=True, help="Serve until stopped, also when everything was played.")
@click.option("--quiet", is_flag=True, help="No progress.")
def to_client(
    capture: Path, listen: str, upstream: str | None, timeout: float, stay: bool, quiet: bool, **options: Any
) -> None:  # fmt: skip
    """Play the server to live clients, by matching what they say with what was recorded.

    Ends when everything was played and all clients have left.  Exit code: 0 all as recorded, 1 when clients
    sent what was not recorded or left something out, 2 when it could not run.

    \b
    natsproxy replay to-client traffic.ncap --listen 127.0.0.1:4222
    natsproxy replay to-client traffic.ncap --unrecorded record --upstream nats://127.0.0.1:4223
    """
    try:
        address = parse_address(upstream, "--upstream") if upstream else None
        server = CassetteServer(
            capture, listen=parse_address(listen, "--listen"), upstream=address, **options
        )
        stopped = run_stoppable(partial(_serve, server, None if stay else timeout, quiet))
        say_added(server.path, server.keep())
    except NatsproxyError as error:
        raise _failed(error) from None
    report_cassette(server)
    raise SystemExit(1 if server.mismatches or (server.unused() and not stopped) else 0)


async def _serve(server: CassetteServer, idle: float | None, quiet: bool) -> None:
    async with trio.open_nursery() as nursery:
        address = await nursery.start(server.serve)
        click.echo(f"playing {server.path} on nats://{address}", err=True)
        if idle is None:
            await trio.sleep_forever()

        def picture(seconds: float) -> str:
            script = server.machine.script
            return f"{seconds:.0f} s  {server.connected} connected  {script.played:,} frames played"

        failure: NatsproxyError | None = None
        try:
            await with_progress(partial(server.finished, idle), picture, quiet)
        except NatsproxyError as error:
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


def say_added(path: Path, count: int) -> None:
    """Say that a capture was added to, on stderr."""
    if count:
        click.echo(f"{path}: {count} frames were added", err=True)


def report_cassette(server: CassetteServer) -> None:
    """Print what did not fit between a cassette and its clients, to stderr."""
    for mismatch in server.mismatches[:20]:
        click.echo(str(mismatch), err=True)
    unused = server.unused()
    for exchange in unused[:20]:
        frame = exchange.frame
        line = frame.line.decode(errors="replace").strip()
        click.echo(f"recorded, but not sent by any client: {line} (connection {exchange.conn})", err=True)
    if len(unused) > 20:
        click.echo(f"... and {len(unused) - 20} more", err=True)


def run_stoppable(main: Callable[[], Awaitable[None]]) -> bool:
    """Run `main` on trio until it ends, or SIGINT or SIGTERM come; tell whether it was stopped."""

    async def run() -> bool:
        async with trio.open_nursery() as nursery:
            stop = await nursery.start(_watch_signals, nursery.cancel_scope)
            failure: NatsproxyError | None = None
            try:
                await main()
            except NatsproxyError as error:
                failure = error
            except BaseExceptionGroup as group:
                failure = _only(group)
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return bool(stop)

    return trio.run(run)


def _only(group: BaseExceptionGroup[BaseException]) -> NatsproxyError | None:
    """Return the error of ours in a group; raise the group when there is more in it."""
    ours, others = group.split(NatsproxyError)
    cancelled, rest = others.split(trio.Cancelled) if others is not None else (None, None)
    if rest is not None:
        raise group
    error: BaseException | None = ours
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if error is None and cancelled is not None:
        raise cancelled
    return error if isinstance(error, NatsproxyError) else None


async def _watch_signals(
    scope: trio.CancelScope, *, task_status: trio.TaskStatus[list[int]] = trio.TASK_STATUS_IGNORED
) -> None:
    seen: list[int] = []
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started(seen)
        async for number in signals:
            seen.append(number)
            scope.cancel()


async def with_progress(
    main: Callable[[], Awaitable[None]], picture: Callable[[float], str], quiet: bool
) -> None:
    """Run `main` under a line that shows `picture(seconds)`, on a terminal only."""
    from rich.console import Console

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        await main()
        return
    async with trio.open_nursery() as nursery:
        with console.status("starting") as status:
            nursery.start_soon(_paint, picture, status.update)
            await main()
            nursery.cancel_scope.cancel()


async def _paint(picture: Callable[[float], str], show: Callable[[str], None]) -> None:
    began = trio.current_time()
    while True:
        seconds = trio.current_time() - began
        show(picture(seconds))
        await trio.sleep(_EVERY)


def _credentials(options: dict[str, Any]) -> creds.Credentials:
    base = creds.Credentials()
    if options["creds"]:
        base = creds.from_creds(options["creds"])
    elif options["user"]:
        base = creds.from_user(options["user"])
    users = {}
    for entry in options["map_user"]:
        recorded, equals, text = entry.partition("=")
        if not equals:
            raise ConfigError(f"--map-user {recorded!r} is not RECORDED=USER:PASSWORD")
        users[recorded] = creds.from_user(text)
    return creds.Credentials(base.user, base.password, base.token, base.jwt, base.seed, users)


def _numbers(text: str) -> frozenset[int]:
    try:
        return frozenset(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ConfigError(f"--connections {text!r} is no list of connection numbers: 1,2,5") from None


def _show(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(facts))
        return
    for key, value in facts.items():
        shown = f"{value:,}" if isinstance(value, int | float) else value
        click.echo(f"{key.replace('_', ' '):>22}  {shown}")


def _failed(error: NatsproxyError) -> click.ClickException:
    return CouldNotRun(str(error))
