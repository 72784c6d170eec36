"""The check of `natsproxy run --test`: all that would keep the proxy from starting, at once.

Each part of a start is tried by the code that does it, and undone: certificates are read, addresses are
listened on, files are made beside those of the settings.  Nothing is left behind, and no server is dialled.
"""

from __future__ import annotations

import os
import re
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import trio
from click.core import ParameterSource

from natsproxy.addresses import is_ip
from natsproxy.cli.service import check_watched, configured_rules
from natsproxy.config.endpoints import HttpListener, Server
from natsproxy.config.files import line_of, read_text
from natsproxy.config.settings import OPTIONS, RunSettings, run_settings
from natsproxy.errors import ConfigError, Mistakes
from natsproxy.net.listener import open_listeners
from natsproxy.net.proxy import check_bypass
from natsproxy.net.systemd import passed_sockets
from natsproxy.net.tls_contexts import for_client_legs, for_server_legs
from natsproxy.option import read_values, settings_from
from natsproxy.rules.engine.chain import RuleChain

_KEY: Final = f"{__name__}.mistakes"


def tested(context: click.Context) -> Mistakes | None:
    """Return the mistakes of a command line that is only tested; None for one that is to be run."""
    found: Mistakes | None = context.meta.get(_KEY)
    return found


class TestedOption(click.Option):
    """An option whose mistakes are noted where the command line is only tested."""

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        """Read the option as click does, and leave one out that cannot be used."""
        mistakes = tested(ctx)
        if mistakes is None:
            return super().handle_parse_result(ctx, opts, args)
        try:
            with mistakes.noted():
                return super().handle_parse_result(ctx, opts, args)
        except click.UsageError as error:
            mistakes.found.append(error.format_message())
        return None, args


def begin_test(context: click.Context) -> None:
    """Note the mistakes of the options that are read from now on."""
    context.meta[_KEY] = Mistakes()


def check_start(context: click.Context) -> None:
    """Try what a start of `run` needs.  Raises ConfigError with all mistakes.

    context: of `run`; its options were read after `begin_test`.
    """
    mistakes, later = tested(context), Mistakes()
    assert mistakes is not None
    config = context.params.get("config")
    left_out = {option.key: option for option in OPTIONS if option.key not in context.params}
    values = {**context.params, **read_values(left_out, {})}
    with later.noted():
        run_settings(values)
    with later.noted():
        settings = settings_from(RunSettings, values)
        for part in _parts(settings, config):
            with later.noted():
                part()
    placed = [_placed(one, context, config) for one in later.found]
    mistakes.found = list(dict.fromkeys([*mistakes.found, *placed]))
    mistakes.refuse()


def unresolved(servers: Iterable[Server]) -> Iterator[str]:
    """Yield a sentence for each server whose name has no address now; a start does not wait for that."""
    for server in servers:
        address = server.address
        if not is_ip(address.host):
            try:
                socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
            except OSError as error:
                yield f"upstream {server}: {error.strerror}"


def _parts(settings: RunSettings, config: Path | None) -> Iterator[Callable[[], object]]:
    """Yield functions that each try a part of the start; they raise ConfigError."""
    proxy, admin = settings.proxy, settings.admin
    if proxy.tls.cert is not None:
        yield partial(for_client_legs, proxy.tls)
    yield partial(for_server_legs, proxy)
    yield partial(_try_rules, settings, config)
    if settings.watch_files:
        yield partial(check_watched, proxy, settings.rules, config)
    yield partial(_try_listeners, settings)
    if proxy.record is not None:
        path = proxy.record.path
        # A folder is made where there is none, and the folders above it.
        folder = path.parent if path.suffix == ".ncap" else _existing(path)
        yield partial(_try_folder, "record", path, folder)
    if admin.admin_captures is not None:
        yield partial(_try_folder, "admin-captures", admin.admin_captures, _existing(admin.admin_captures))
    for name, file in (("ready-file", settings.ready_file), ("live-file", settings.live_file)):
        if file is not None:
            yield partial(_try_folder, name, file, file.parent)
    if settings.log_file is not None:
        yield partial(_try_log, settings.log_file)
    for server in _http(settings):
        yield partial(_try_http, server)


def _try_rules(settings: RunSettings, config: Path | None) -> None:
    rules = configured_rules(settings.rules, config)
    if rules is not None:
        check_bypass(RuleChain(rules), settings.proxy.session)


def _try_listeners(settings: RunSettings) -> None:
    mistakes = Mistakes()
    with mistakes.noted():
        passed = passed_sockets(os.environ)
        if passed:
            _finished(open_listeners, settings.proxy.listen, passed)
            return
    for listener in settings.proxy.listen:  # one by one: each says for itself why it cannot be had
        with mistakes.noted():
            _finished(open_listeners, (listener,))
    mistakes.refuse()


def _finished(open_: Callable[..., Awaitable[list[tuple[socket.socket, Any]]]], *args: Any) -> None:
    """Open listeners, and close them."""
    for opened, _ in trio.run(open_, *args):
        opened.close()


def _http(settings: RunSettings) -> Iterator[HttpListener]:
    admin = settings.admin
    if admin.monitor is not None:
        yield admin.monitor
    if admin.admin is not None:
        yield HttpListener(admin.admin.address, admin.admin_tls_cert, admin.admin_tls_key)
    if admin.toxiproxy is not None:
        yield admin.toxiproxy


def _try_http(listener: HttpListener) -> None:
    from natsproxy.admin.http_server import try_to_serve  # it needs packages of an extra

    trio.run(try_to_serve, listener)


def _existing(folder: Path) -> Path:
    """Return the first of a folder and those above it that is there."""
    return next(one for one in (folder, *folder.parents, Path()) if one.exists())


def _try_folder(option: str, path: Path, folder: Path) -> None:
    try:
        # One that exists may still be read-only, for root too: a file says it.
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".natsproxy-"):
            pass
    except OSError as error:
        raise ConfigError(f"{option} {path} cannot be written: {folder}: {error.strerror}") from None


def _try_log(path: Path) -> None:
    if not path.exists():
        _try_folder("log-file", path, path.parent)
        return
    try:
        with path.open("ab"):
            pass
    except OSError as error:
        raise ConfigError(f"log-file {path} cannot be written: {error.strerror}") from None


def _placed(mistake: str, context: click.Context, config: Path | None) -> str:
    """Return the sentence of a mistake with file and line, where its first setting comes from the file."""
    if config is None or mistake.startswith(f"{config}:"):
        return mistake
    names = {option.key: option for option in OPTIONS}
    for word in re.findall(r"[a-z][a-z_-]+", mistake):
        option = names.get(word.replace("-", "_"))
        if option is not None and context.get_parameter_source(option.key) is ParameterSource.DEFAULT_MAP:
            return f"{config}:{line_of(option.name, read_text(config, 'configuration'))}: {mistake}"
    return mistake
