"""`natsproxy run`: the proxy as a process."""

from __future__ import annotations

import difflib
import re
import signal
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import structlog
import trio

from natsproxy.config.settings import Address, ProxySettings, RecordSettings
from natsproxy.errors import NatsproxyError
from natsproxy.events import Closed, Event, Firing, Gap, Greeted, Notice, Opened
from natsproxy.net.proxy import Proxy
from natsproxy.rules.chain import RuleChain
from natsproxy.rules.kinds import KINDS
from natsproxy.rules.spec import load


def address(text: str) -> Address:
    """Read HOST:PORT, [::1]:PORT or :PORT."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise click.BadParameter(f"{text!r} is not HOST:PORT (IPv6 as [::1]:4222)")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise click.BadParameter(f"{text!r}: write an IPv6 address as [::1]:4222")
    return Address(host, int(port))


def upstream_address(text: str) -> Address:
    """Read nats://HOST[:PORT] or HOST:PORT."""
    if "://" not in text:
        return address(text)
    try:
        url = urlsplit(text)
        host, port = url.hostname, url.port
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is no NATS URL: {error}") from None
    if url.scheme != "nats":
        raise click.BadParameter(f"{url.scheme}:// is not supported yet: give nats://HOST:PORT")
    if not host:
        raise click.BadParameter(f"{text!r} has no host")
    return Address(host, port or 4222)


def load_config(ctx: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
    """Take the settings of a TOML file: above the defaults, below environment and flags."""
    if path is None:
        return None
    try:
        text = path.read_text()
        table = tomllib.loads(text)
    except OSError as error:
        raise click.ClickException(f"cannot read the configuration {path}: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise click.ClickException(f"{path}: not valid TOML: {error}") from None
    known = {param.opts[0].removeprefix("--"): param.name for param in ctx.command.params}
    defaults: dict[str, Any] = {}
    for key, value in table.items():
        name = known.get(key.replace("_", "-"))
        if name is None or name == "config":
            near = difflib.get_close_matches(key, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f": there are {', '.join(sorted(known))}"
            raise click.ClickException(f"{path}:{_line_of(key, text)}: there is no setting {key!r}{hint}")
        if not isinstance(value, (str, int, float)):
            raise click.ClickException(f"{path}:{_line_of(key, text)}: {key} takes one value")
        defaults[name] = value
    ctx.default_map = defaults
    return path


def _line_of(key: str, text: str) -> int:
    found = re.search(rf"""^\s*\[?["']?{re.escape(key)}\b""", text, re.MULTILINE)
    return text.count("\n", 0, found.start()) + 1 if found else 1


@click.command()
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    envvar="NATSPROXY_CONFIG",
    is_eager=True,
    expose_value=False,
    callback=load_config,
    help='Settings from a TOML file: the names of these options, e.g. upstream = "nats://127.0.0.1:4223".',
)
@click.option(
    "--listen",
    "-l",
    default="127.0.0.1:4222",
    show_default=True,
    envvar="NATSPROXY_LISTEN",
    help="Where clients connect to.",
)
@click.option(
    "--upstream", "-u", required=True, envvar="NATSPROXY_UPSTREAM", help="The server: nats://HOST:PORT."
)
@click.option(
    "--record",
    type=click.Path(path_type=Path),
    envvar="NATSPROXY_RECORD",
    help="Record to this file (x.ncap) or folder.",
)
@click.option(
    "--rotate",
    type=click.IntRange(0),
    default=256,
    show_default=True,
    envvar="NATSPROXY_ROTATE",
    help="MiB after which the capture begins a new segment; 0 for never.",
)
@click.option(
    "--compression",
    type=click.Choice(["none", "zstd"]),
    default="none",
    show_default=True,
    envvar="NATSPROXY_COMPRESSION",
    help="Of the capture's blocks.",
)
@click.option(
    "--strict",
    is_flag=True,
    envvar="NATSPROXY_STRICT",
    help="Close connections rather than pass what cannot be recorded.",
)
@click.option(
    "--advertise",
    type=click.Choice(["strip", "self", "pass"]),
    default="strip",
    show_default=True,
    envvar="NATSPROXY_ADVERTISE",
    help="What becomes of the server addresses in INFO.",
)
@click.option(
    "--hold",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    envvar="NATSPROXY_HOLD",
    help="Seconds to keep a new client waiting while the upstream is down.",
)
@click.option(
    "--rules",
    "rules_file",
    type=click.Path(path_type=Path),
    envvar="NATSPROXY_RULES",
    help="Rules to apply (TOML).",
)
@click.option("--seed", type=int, envvar="NATSPROXY_SEED", help="Seed of all dice.")
@click.option(
    "--drain",
    type=float,
    default=30.0,
    show_default=True,
    envvar="NATSPROXY_DRAIN",
    help="Seconds that connections have to end on SIGTERM.",
)
@click.option(
    "--log-format",
    type=click.Choice(["auto", "console", "json"]),
    default="auto",
    envvar="NATSPROXY_LOG_FORMAT",
    help="Lines for a person or JSON.",
)
def run(
    listen: str, upstream: str, record: Path | None, rotate: int, compression: str, strict: bool,
    advertise: str, hold: float, rules_file: Path | None, seed: int | None, drain: float, log_format: str,
) -> None:  # fmt: skip
    """Relay between clients and a server.

    Settings come from defaults, --config, NATSPROXY_* and flags, in that rising order (see natsproxy config).
    SIGTERM and SIGINT drain, a second one stops at once; SIGHUP reloads the rules and rotates the capture.

    \b
    natsproxy run --upstream nats://127.0.0.1:4223
    natsproxy run --upstream nats://127.0.0.1:4223 --record traffic.ncap --rules faults.toml
    """
    settings = ProxySettings(
        listen=(address(listen),), upstream=upstream_address(upstream), seed=seed, rules_file=rules_file,
        drain=int(drain * 1e9), advertise=advertise, upstream_hold=int(hold * 1e9),
    )  # fmt: skip
    if record is not None:
        capture = RecordSettings(record, rotate_size=rotate << 20, compression=compression, strict=strict)
        settings = replace(settings, record=capture)
    log = logger(log_format)
    try:
        proxy = Proxy(settings)
        load_rules(proxy)
        trio.run(_main, proxy, log)
    except* NatsproxyError as group:
        raise click.ClickException("; ".join(str(error) for error in _leaves(group))) from None


def _leaves(group: BaseExceptionGroup[Any]) -> list[BaseException]:
    leaves: list[BaseException] = []
    for error in group.exceptions:
        leaves += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return leaves


def load_rules(proxy: Proxy) -> None:
    """Put the rules of the settings in force; a bad file changes nothing."""
    path = proxy.settings.rules_file
    if path is None:
        return
    try:
        text = path.read_text()
    except OSError as error:
        raise NatsproxyError(f"cannot read the rules {path}: {error.strerror}") from None
    rules = load(text, KINDS, source=str(path))
    before = proxy.chain if isinstance(proxy.chain, RuleChain) else None
    proxy.swap(RuleChain(rules, seed=proxy.seed, previous=before))


def logger(form: str) -> Any:
    """Return a structlog logger on standard error."""
    person = form == "console" or (form == "auto" and sys.stderr.isatty())
    last: Any = structlog.dev.ConsoleRenderer() if person else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[structlog.processors.add_log_level, structlog.processors.TimeStamper(fmt="iso"), last],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    return structlog.get_logger()


async def _main(proxy: Proxy, log: Any) -> None:
    proxy.subscribe(lambda event: _log_event(log, event))
    async with trio.open_nursery() as nursery:
        await nursery.start(_signals, proxy, log, nursery.cancel_scope)
        listening = await nursery.start(proxy.serve)
        log.info(
            "listening",
            listen=[str(one) for one in listening],
            upstream=str(proxy.settings.upstream),
            seed=proxy.seed,
            record=str(proxy.recorder.file) if proxy.recorder is not None else None,
        )
        await proxy.done.wait()
        nursery.cancel_scope.cancel()


async def _signals(
    proxy: Proxy,
    log: Any,
    everything: trio.CancelScope,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        task_status.started()
        draining = False
        async with trio.open_nursery() as nursery:
            async for number in signals:
                if number == signal.SIGHUP:
                    _reload(proxy, log)
                elif draining:
                    log.warning("stopping at once")
                    everything.cancel()
                else:
                    draining = True
                    log.info("draining", connections=len(proxy.relays))
                    nursery.start_soon(proxy.drain)


def _reload(proxy: Proxy, log: Any) -> None:
    proxy.rotate()
    try:
        load_rules(proxy)
    except NatsproxyError as error:
        log.error("the rules stay as they were", reason=str(error))
    else:
        log.info("reloaded")


def _log_event(log: Any, event: Event) -> None:
    if isinstance(event, Opened):
        log.info("opened", conn=event.conn, client=event.client, upstream=event.upstream)
    elif isinstance(event, Closed):
        log.info(
            "closed", conn=event.conn, cause=event.cause, detail=event.detail or None,
            seconds=round(event.duration / 1e9, 3), c2s_bytes=event.c2s_bytes, c2s_frames=event.c2s_frames,
            s2c_bytes=event.s2c_bytes, s2c_frames=event.s2c_frames,
        )  # fmt: skip
    elif isinstance(event, Firing):
        log.info("fired", rule=event.rule, action=event.action, conn=event.conn, direction=event.direction,
                 subject=event.subject, m=event.m, ordinal=event.ordinal)  # fmt: skip
    elif isinstance(event, Gap):
        log.error("capture gap", reason=event.reason)
    elif isinstance(event, Notice):
        getattr(log, event.level)(event.text, conn=event.conn)
    else:
        assert isinstance(event, Greeted)
        log.debug("greeted", conn=event.conn, name=event.name, key=event.key)
