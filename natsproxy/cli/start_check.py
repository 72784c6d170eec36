"""The check of `natsproxy run --test`: all that would keep the proxy from starting, at once.

Each part of a start is tried by the code that does it, and undone: certificates are read, addresses are
listened on, files and a capture are made beside those of the settings.  Nothing is left behind, and no server
is dialled.
"""

from __future__ import annotations

import os
import re
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import trio
from click.core import ParameterSource

from natsproxy.addresses import is_ip
from natsproxy.capture.write.writer import CaptureWriter, SegmentInfo
from natsproxy.cli.service import check_watched, configured_rules, needs_extra
from natsproxy.config.endpoints import HttpListener, Server
from natsproxy.config.files import line_of, read_text
from natsproxy.config.recording import RecordSettings
from natsproxy.config.settings import OPTIONS, RunSettings, run_settings
from natsproxy.errors import CaptureError, ConfigError, Mistakes
from natsproxy.net.listener import open_listeners
from natsproxy.net.proxy import Proxy, check_bypass
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
        whole = run_settings(values)
        Proxy(whole.proxy)  # it may lack a package
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
    yield partial(trio.run, _try_addresses, settings)
    if proxy.record is not None:
        yield partial(_try_capture, proxy.record)
    if admin.admin_captures is not None:
        yield partial(_try_folder, "admin-captures", admin.admin_captures)
    for name, file in (("ready-file", settings.ready_file), ("live-file", settings.live_file)):
        if file is not None:
            yield partial(_try_file, name, file)
    if settings.log_file is not None:
        yield partial(_try_file, "log-file", settings.log_file)


def _try_rules(settings: RunSettings, config: Path | None) -> None:
    rules = configured_rules(settings.rules, config)
    if rules is not None:
        check_bypass(RuleChain(rules), settings.proxy.session)


async def _try_addresses(settings: RunSettings) -> None:
    """Listen everywhere at the same time: two of the addresses may be one."""
    mistakes = Mistakes()
    async with AsyncExitStack() as opened:
        for option, server in _http(settings):
            with mistakes.noted():
                with needs_extra(option):
                    from natsproxy.admin.http_server import try_to_serve
                await opened.enter_async_context(try_to_serve(server))
        with mistakes.noted():
            passed = passed_sockets(os.environ)
            # One by one: each says for itself why it cannot be had.  Those that were passed find their own.
            listeners = [settings.proxy.listen] if passed else [(one,) for one in settings.proxy.listen]
            for some in listeners:
                with mistakes.noted():
                    for one, _ in await open_listeners(some, passed):
                        opened.enter_context(one)
    mistakes.refuse()


def _http(settings: RunSettings) -> Iterator[tuple[str, HttpListener]]:
    admin = settings.admin
    if admin.monitor is not None:
        yield "monitor", admin.monitor
    if admin.admin is not None:
        yield "admin", HttpListener(admin.admin.address, admin.admin_tls_cert, admin.admin_tls_key)
    if admin.toxiproxy is not None:
        yield "toxiproxy", admin.toxiproxy


def _try_capture(settings: RecordSettings) -> None:
    """Begin a capture beside the one that would be made, and remove it: the disk may be full."""
    path, info = settings.path, SegmentInfo(bytes(16), bytes(16), 0, 0)
    try:
        single = CaptureWriter(path, info, compression=settings.compression).single  # it makes nothing yet
        with _temporary(path.parent) if single else _scratch(path) as folder:
            writer = CaptureWriter(
                Path(folder) / f"{path.stem if single else 'test'}.ncap",
                info,
                compression=settings.compression,
            )
            writer.open_segment()
            writer.close()
    except CaptureError as error:
        reason = str(error).removeprefix(f"{error.path}: ")  # it may name the temporary folder
        raise ConfigError(f"record {path} cannot be written: {reason}") from None
    except OSError as error:
        raise _unwritable("record", path, error) from None


def _try_folder(option: str, path: Path) -> None:
    try:
        with _scratch(path):
            pass
    except OSError as error:
        raise _unwritable(option, path, error) from None


@contextmanager
def _scratch(path: Path) -> Iterator[str]:
    """Make a folder in `path`, and `path` where it is missing, for the time of the block.  Raises OSError."""
    missing = [one for one in (path, *path.parents) if not os.path.lexists(one)]
    try:
        path.mkdir(parents=True, exist_ok=True)
        with _temporary(path) as folder:
            yield folder
    finally:
        for one in missing:
            with suppress(OSError):  # it was not made, or somebody else uses it now
                one.rmdir()


def _temporary(folder: Path) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(dir=folder, prefix=".natsproxy-")


def _try_file(option: str, path: Path) -> None:
    try:
        if path.exists():
            os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK))
        else:
            # That one may make files says it better than the folder's mode, for root too.
            with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".natsproxy-"):
                pass
    except OSError as error:
        raise _unwritable(option, path, error) from None


def _unwritable(option: str, path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{option} {path} cannot be written: {error.strerror}")


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
