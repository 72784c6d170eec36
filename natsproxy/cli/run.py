"""`natsproxy run`: the proxy as a process, with signals, a log and the rules of a file.

The flags are the settings of `config/settings.py`.  click reads each value from the first of: flag,
environment, configuration file (`ctx.default_map`), default.
"""

from __future__ import annotations

import difflib
import os
import signal
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from natsproxy.addresses import mask_addresses
from natsproxy.cli.exits import FoundWrong
from natsproxy.cli.foreground import STOP, run_with_signals
from natsproxy.cli.options import Rows, setting_flag, shown_settings
from natsproxy.cli.paths import FilePath
from natsproxy.cli.service import Service, http_servers_of, log_proxy
from natsproxy.cli.start_check import TestedOption, begin_test, check_start, tested, unresolved
from natsproxy.cli.supervision import Supervision
from natsproxy.config.admin import ADMIN_VARIABLE
from natsproxy.config.files import checked_file, inline_rules
from natsproxy.config.settings import OPTIONS, run_settings
from natsproxy.errors import ConfigError, Exit
from natsproxy.log import LogFile, logger
from natsproxy.net.proxy import Proxy
from natsproxy.net.systemd import Notifier, passed_sockets

_NO_OPTIONS: Final = (
    "NATSPROXY_CONFIG",
    "NATSPROXY_PURE",
    "NATSPROXY_PLANE",
    "NATSPROXY_PLANE_THREADS",
    "NATSPROXY_ADMIN_URL",
    ADMIN_VARIABLE,
)
"""Variables that belong to no option of the table."""


class _StrictCommand(click.Command):
    """A command that refuses an option given twice, unless it is repeatable.

    click would silently drop the first value, which may be a file of rules.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given, _, order = self.make_parser(ctx).parse_args(list(args))
        for param in order:
            if isinstance(param, click.Option) and not (
                param.multiple or param.is_flag or order.count(param) == 1
            ):
                ctx.fail(f"{param.opts[0]} is given {order.count(param)} times, but takes one value")
        if given.get("test"):
            begin_test(ctx)
        return super().parse_args(ctx, args)


def _options(command: Callable[..., None]) -> Callable[..., None]:
    """Add all settings to a command."""
    for option in reversed(OPTIONS):  # `--help` lists options in reverse order of decoration
        shown = option.shown_default
        attributes: dict[str, Any] = {
            "help": option.help + (f"  [{shown}]" if shown else ""),
            "envvar": option.variable,
            "required": option.required,
            "negatable": option.default is True,
            "short": _SHORT.get(option.name, ()),
            "cls": TestedOption,
        }
        if option.default is not None:  # click counts a default of None as a value
            attributes["default"] = [option.default] if option.many else option.default
        command = setting_flag(option, **attributes)(command)
    return command


_SHORT: Final = {"listen": ["-l"], "upstream": ["-u"]}


def _load_config(ctx: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
    """Let the settings of a file replace the defaults; environment and flags still win."""
    if path is not None:
        ctx.default_map, mistakes = checked_file(path)
        noted = tested(ctx)
        if noted is None:
            mistakes.refuse()
        else:
            noted.found += mistakes.found
    return path


@click.command(cls=_StrictCommand)
@click.option(
    "--config",
    cls=TestedOption,
    type=FilePath(),
    envvar="NATSPROXY_CONFIG",
    is_eager=True,
    callback=_load_config,
    help='Settings from a TOML file: the names of these options, e.g. upstream = "nats://127.0.0.1:4223", '
    "and [[rules]].",
)
@click.option("-t", "--test", is_flag=True, help="Check that the proxy could start, and exit.")
@_options
@click.pass_context
def run(context: click.Context, /, test: bool, config: Path | None = None, **values: Any) -> None:
    """Relay between clients and a server.

    Settings come from defaults, --config, NATSPROXY_* and flags; a later one wins (see natsproxy config).
    SIGTERM and SIGINT drain, a second one stops immediately.  SIGHUP reloads rules, certificates,
    credentials and users, reopens the log and starts a new segment of the capture.  Exit code 3: the end of
    the capture could not be written.

    With --test all that would keep it from starting is said at once, with file, line and setting, and exit
    code 1: settings, rules, certificates, credentials, addresses in use, paths that cannot be written.

    \b
    natsproxy run --upstream nats://127.0.0.1:4223
    natsproxy run --upstream nats://127.0.0.1:4223 --record traffic.ncap --rules faults.toml
    natsproxy run --upstream nats://127.0.0.1:4223 --record traffic/ --record-payload '>=hash'
    natsproxy run --config natsproxy.toml --test
    """
    for text in unknown_variables(os.environ):
        click.echo(f"Warning: {text}", err=True)
    if test:
        _say_whether_it_starts(context)
        return
    if config is not None and values["rules"] is not None and inline_rules(config):
        click.echo(f"Warning: {values['rules']} replaces the [[rules]] of {config}", err=True)
    settings = run_settings(values)
    with LogFile(settings.log_file) as file:
        proxy = Proxy(settings.proxy, sockets=passed_sockets(os.environ))
        supervision = Supervision(proxy, Notifier(os.environ), settings.ready_file, settings.live_file)
        supervision.prepare()
        several = len(settings.proxy.upstream) > 1  # one that is frozen is to come last
        log = logger(file, settings.log_format, settings.log_level)
        starts = partial(log_proxy, log, settings.log_rate)
        servers = http_servers_of(settings.admin, proxy, _shown(), lambda: file.lost, starts)
        service = Service(
            proxy,
            file,
            config,
            settings.rules,
            watched=settings.watch_files,
            log_rate=settings.log_rate,
            supervision=supervision if supervision.wanted or servers or several else None,
            servers=servers,
        )
        service.load_rules()
        run_with_signals(partial(service.run, log), *STOP, signal.SIGHUP)
    if service.stopped_at_once:
        raise SystemExit(Exit.STOPPED)
    idle = proxy.unfired() if settings.rules_must_fire else []
    if idle:
        raise FoundWrong("\n".join(f"rule {one.name!r} never fired: {one.never_fired()}" for one in idle))
    if proxy.unwritten is not None:  # the log says why
        raise SystemExit(Exit.PARTLY)


def _say_whether_it_starts(context: click.Context) -> None:
    """Print that `run` could start; raises FoundWrong with all mistakes."""
    try:
        check_start(context)
    except ConfigError as error:
        raise FoundWrong(mask_addresses(str(error))) from None
    for text in unresolved(context.params.get("upstream") or ()):
        click.echo(f"Warning: {text}", err=True)
    click.echo("no mistake found: the proxy could start")


def _shown() -> Rows:
    return shown_settings(click.get_current_context(), plain_sizes=True)


def unknown_variables(environment: Iterable[str]) -> list[str]:
    """Return a sentence for each NATSPROXY_ variable that belongs to no option."""
    known = [*(option.variable for option in OPTIONS), *_NO_OPTIONS]
    warnings = []
    for name in sorted(environment):
        if name.startswith("NATSPROXY_") and name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            warnings.append(f"{name} is set, but there is no such option{hint}")
    return warnings
