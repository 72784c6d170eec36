"""The service of `natsproxy run`: a proxy with a log, signals and the rules of a file."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import trio

from natsproxy.cli.file_watch import FileWatch
from natsproxy.cli.memory import trim_memory, tune_memory
from natsproxy.cli.options import Rows
from natsproxy.cli.supervision import Supervision
from natsproxy.config.admin import AdminSettings
from natsproxy.config.files import inline_rules, read_file, rules_file
from natsproxy.config.login import read_login
from natsproxy.config.settings import ProxySettings
from natsproxy.errors import ConfigError, NatsproxyError
from natsproxy.log import EventLog, LogFile
from natsproxy.net.proxy import Proxy
from natsproxy.rules.file.parser import NONE_NAMED
from natsproxy.rules.model.rule import Rule

_TURN: Final = 0.0005  # seconds

if TYPE_CHECKING:  # it needs packages of an extra
    from natsproxy.admin.http_server import HttpServer
    from natsproxy.admin.managed import ManagedProxy


def log_proxy(log: Any, log_rate: int, managed: ManagedProxy) -> None:
    """Let a further proxy, which is about to serve, write to the log under its name."""
    settings, log = managed.proxy.settings, log.bind(proxy=managed.name)
    log.info("proxy starts", listen=str(settings.listen[0]), upstream=str(settings.upstream[0]))
    managed.proxy.subscribe(EventLog(log, log_rate))


@contextmanager
def needs_extra(option: str) -> Iterator[None]:
    """Let a block import the HTTP servers.  Raises ConfigError where a package of the extra is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("natsproxy"):
            raise
        raise ConfigError(f"{option} needs {error.name}: pip install 'natsproxy[admin]'") from None


def http_servers_of(
    settings: AdminSettings,
    proxy: Proxy,
    config: Rows,
    lost_lines: Callable[[], int],
    starts: Callable[[ManagedProxy], None],
) -> dict[str, HttpServer]:
    """Return the HTTP servers beside a proxy by their titles.  Raises ConfigError."""
    wanted = [name for name in ("monitor", "admin", "toxiproxy") if getattr(settings, name) is not None]
    if not wanted:
        return {}
    with needs_extra(wanted[0]):
        from natsproxy.admin.managed import ManagedProxy
        from natsproxy.admin.servers import http_servers
    return http_servers(settings, ManagedProxy("main", proxy), config, lost_lines, starts)


def configured_rules(rules: Path | None, config: Path | None) -> tuple[Rule, ...] | None:
    """Return the rules of a rules file, or else of a configuration file, None where neither has any.

    Raises ConfigError.
    """
    if rules is not None:
        return rules_file(rules)
    return None if config is None else inline_rules(config)


def _watchable(
    settings: ProxySettings, rules: Path | None, config: Path | None
) -> tuple[Sequence[Path], Sequence[Path], Sequence[Path]]:
    """Return the files of rules, of certificates and of the login."""
    of_rules = [file for file in (rules or config,) if file is not None]
    return of_rules, settings.certificate_files(), settings.login.files()


def check_watched(settings: ProxySettings, rules: Path | None, config: Path | None) -> None:
    """Raise ConfigError where there is no file that `watch-files` could watch."""
    if not any(_watchable(settings, rules, config)):
        raise ConfigError(
            "watch-files has nothing to watch: there is no file of rules, certificates or credentials"
        )


class Service:
    """A proxy with a log and signals.

    config, rules: the files with its rules; a rules file wins.  watched: a change of these files, or of those
    of certificates and of the identity, loads them again.  supervision: tells others of the proxy.  log_rate:
    the most events that are logged in a second.
    servers: HTTP servers beside the traffic, by their titles.
    stopped_at_once: True after a second signal ended it before it was drained.
    """

    def __init__(
        self,
        proxy: Proxy,
        file: LogFile,
        config: Path | None,
        rules: Path | None,
        *,
        watched: bool = False,
        supervision: Supervision | None = None,
        log_rate: int = 0,
        servers: Mapping[str, HttpServer] | None = None,
    ) -> None:
        self._proxy = proxy
        self._file = file
        self._config = config
        self._rules = rules
        self._settings = self._read_settings()
        self._supervision = supervision
        self._servers = servers or {}
        self._watched = watched
        of_rules, of_tls, of_identity = _watchable(proxy.settings, rules, config)
        if watched:
            check_watched(proxy.settings, rules, config)
        self._rules_watch, self._tls_watch = FileWatch(*of_rules), FileWatch(*of_tls)
        self._identity_watch = FileWatch(*of_identity)
        for watch in (self._tls_watch, self._identity_watch):
            watch.reading()  # the proxy has just read them
        self._log_rate = log_rate
        self._reloading = trio.Lock()
        self.stopped_at_once = False

    def load_rules(self) -> None:
        """Let the rules of the files be the base of the proxy's rules, before it serves.

        Raises ConfigError for a bad file.
        """
        rules = self._read_rules()
        if rules is not None:
            self._proxy.rules.load(rules)

    def _read_rules(self) -> tuple[Rule, ...] | None:
        """Return the rules of the files, None where none is to have rules.

        Raises ConfigError for a bad file and for a configuration file whose rules have disappeared
        (`rules = []` clears them).
        """
        self._rules_watch.reading()
        rules = configured_rules(self._rules, self._config)
        if rules is None and self._proxy.rules.base:
            raise ConfigError(f"{self._config}: {NONE_NAMED}")
        self._rules_watch.have_named(file for rule in rules or () for file in rule.action.files)
        return rules

    async def run(self, log: Any, signals: AsyncIterator[int]) -> None:
        """Serve until drained.  signals: the numbers of the process's signals, as they arrive."""
        proxy = self._proxy
        events = EventLog(log, self._log_rate)
        proxy.subscribe(events)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._handle_signals, signals, log, nursery.cancel_scope)
            for title, server in self._servers.items():
                await nursery.start(server.serve)
                log.info(f"{title} listens", url=server.url)
            listening = await nursery.start(proxy.serve)
            log.info(
                "listening",
                listen=[
                    str(address) if scheme == "nats" else f"{scheme}://{address}"
                    for address, scheme in zip(listening, proxy.schemes, strict=True)
                ],
                upstream=[str(server) for server in proxy.settings.upstream],
                seed=proxy.seed,
                threads=proxy.threads,
                record=str(proxy.recorder.file) if proxy.recorder is not None else None,
            )
            tune_memory()
            nursery.start_soon(trim_memory)
            if proxy.settings.upstream_tls.insecure:
                log.warning("upstream-tls-insecure: server certificates are not verified")
            if self._supervision is not None:
                nursery.start_soon(self._supervision.run, log)
            if self._watched:
                nursery.start_soon(self._on_change, self._rules_watch, self._reload_rules, log)
                nursery.start_soon(self._on_change, self._tls_watch, self._reload_certificates, log)
                nursery.start_soon(self._on_change, self._identity_watch, self._reload_identity, log)
            await proxy.done.wait()
            nursery.cancel_scope.cancel()
        events.close()

    async def _handle_signals(
        self, signals: AsyncIterator[int], log: Any, everything: trio.CancelScope
    ) -> None:
        draining = False
        async with trio.open_nursery() as nursery:
            async for number in signals:
                if number == signal.SIGHUP:
                    nursery.start_soon(self._reload, log)
                elif draining:
                    log.warning("stopping immediately")
                    self.stopped_at_once = True
                    everything.cancel()
                else:
                    draining = True
                    log.info("draining", connections=len(self._proxy.relays))
                    nursery.start_soon(self._proxy.drain)
                    if self._supervision is not None:
                        self._supervision.stopping(log)

    async def _reload(self, log: Any) -> None:
        # One after the other: each says that it has begun, and that it is ready.
        async with self._reloading:
            with self._supervision.reloading() if self._supervision is not None else nullcontext():
                self._proxy.rotate()
                try:
                    self._file.reopen()
                except NatsproxyError as error:
                    log.error("log file not reopened", reason=str(error))
                await self._reload_certificates(log)
                await self._reload_identity(log)
                await self._reload_rules(log)

    async def _on_change(self, watch: FileWatch, reload: Callable[[Any], Awaitable[None]], log: Any) -> None:
        while True:
            await watch.changed()
            async with self._reloading:
                await reload(log)

    async def _reload_certificates(self, log: Any) -> None:
        self._tls_watch.reading()
        try:
            if self._proxy.load_certificates():
                log.info("certificates reloaded")
        except NatsproxyError as error:
            log.error("certificates not reloaded", reason=str(error))

    async def _reload_identity(self, log: Any) -> None:
        self._identity_watch.reading()
        try:
            if self._proxy.settings.identity is not None:
                self._proxy.load_identity(*read_login(self._proxy.settings.login))
                log.info("credentials and users reloaded")
        except NatsproxyError as error:
            log.error("credentials and users not reloaded", reason=str(error))

    async def _reload_rules(self, log: Any) -> None:
        try:
            with _beside_the_traffic():
                gone, undone = await self._proxy.rules.load_in_thread(self._read_rules)
        except NatsproxyError as error:
            log.error("rules not reloaded", reason=str(error))
            return
        await self._proxy.rules_in_force()
        waiting = await self._waiting_settings(log)
        write = log.warning if gone or undone or waiting else log.info
        write(
            "reloaded",
            rules_gone=list(gone) or None,
            changes_undone=list(undone) or None,
            need_restart=waiting or None,
        )

    async def _waiting_settings(self, log: Any) -> list[str]:
        """Return the settings that the file has changed since the start: a reload takes none of them."""
        try:
            now = await trio.to_thread.run_sync(self._read_settings, abandon_on_cancel=True)
        except NatsproxyError as error:
            log.error("configuration file invalid, the next start will fail", reason=str(error))
            return []
        before = self._settings
        return sorted(key.replace("_", "-") for key in before.keys() | now if before.get(key) != now.get(key))

    def _read_settings(self) -> dict[str, Any]:
        return {} if self._config is None else read_file(self._config)


@contextmanager
def _beside_the_traffic() -> Iterator[None]:
    """Let a thread read and compile thousands of rules while the loop serves.

    The interpreter changes between threads often: each frame waits for the turn of the other one.  Python's
    collector would look at all that is made, and serve nobody meanwhile: it stays, as at the start
    (`cli/memory.py`).
    """
    usual = sys.getswitchinterval()
    sys.setswitchinterval(_TURN)
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()
        sys.setswitchinterval(usual)
