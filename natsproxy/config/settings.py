"""The settings of a proxy and of `natsproxy run`, typed and with their defaults: the table of all options.

Each field is written once (see `natsproxy/option.py`); groups of them stand in the modules beside this one,
and those of a session in `session/values.py`.  Durations are nanoseconds, sizes are bytes.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from natsproxy import converters
from natsproxy.addresses import WILDCARDS, Address
from natsproxy.config.admin import AdminSettings, with_token
from natsproxy.config.endpoints import LISTENER, UPSTREAM, Listener, Server
from natsproxy.config.login import LoginSettings, read_login
from natsproxy.config.recording import RECORD, RecordSettings
from natsproxy.config.request_metrics import RequestMetrics, joined, read_request_metrics
from natsproxy.config.tls import TlsSettings, UpstreamTls, wrong_tls
from natsproxy.errors import ConfigError, Mistakes
from natsproxy.option import (
    DURATION,
    FILE,
    FLAG,
    NUMBER,
    SIZE_ABOVE_ZERO,
    ValueType,
    group,
    merged,
    optional,
    optional_group,
    options_of,
    read_values,
    setting,
    settings_from,
    several,
    words,
)
from natsproxy.session.values import Identity, SessionSettings

_VERSIONS: Final = {"v1": 1, "v2": 2}  # of the PROXY protocol
_VERSION: Final = ValueType(
    lambda value: _VERSIONS[converters.one_of(*_VERSIONS)(value)], "v1|v2", lambda version: f"v{version}"
)


_MOST_THREADS: Final = 64  # as in `_plane.pyx`


def _threads(value: Any) -> int:
    """Read a number of threads; 0 for `auto`."""
    if value == "auto":
        return 0
    with suppress(ValueError):
        if 1 <= (count := converters.whole(value)) <= _MOST_THREADS:
            return count
    raise ValueError(
        f"must be a whole number of at most {_MOST_THREADS} and at least 1, or auto, not {value!r}"
    )


_THREADS: Final = ValueType(_threads, "NUMBER", lambda count: str(count) if count else "auto")


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """The settings of a proxy: the only configuration that `net` sees.

    upstream_proxy_protocol: the version of the header that servers get, None for none.  identity: the proxy's
    login at servers, None for none; client_users: bcrypt hashes by user; both are read from the files of
    `login`.
    """

    listen: tuple[Listener, ...] = several(
        LISTENER,
        "Listen address for clients, or tls://HOST:PORT. 0.0.0.0, [::] or no host: all, IPv4 and IPv6.",
        default="127.0.0.1:4222",
    )
    upstream: tuple[Server, ...] = several(UPSTREAM, "URL of a server.", required=True)
    upstream_randomize: bool = setting(
        FLAG, True, "Try the servers at random, as NATS clients do; else in their order."
    )
    upstream_discover: bool = setting(FLAG, False, "Also use the servers that the cluster names in INFO.")
    upstream_hold: int = setting(DURATION, "0s", "How long a new client waits while no server is available.")
    connect_timeout: int = setting(
        DURATION, "2s", "Timeout for connecting to a server, until its INFO arrives."
    )
    auth_timeout: int = setting(DURATION, "2s", "Timeout for a client's first bytes; 0 for none.")
    websocket_origin: tuple[str, ...] = several(
        ValueType(converters.line, "ORIGIN"),
        "ws:// listeners accept only pages of this origin; default: all.",
    )
    login: LoginSettings = group(LoginSettings)
    upstream_proxy_protocol: int | None = optional(
        _VERSION,
        "Send servers the client's address in a PROXY protocol header (nats-server: proxy_protocol).",
    )
    max_connections: int = setting(NUMBER, "0", "Maximum number of client connections; 0 for no limit.")
    max_connections_per_address: int = setting(
        NUMBER, "0", "Maximum number of connections from one client address; 0 for no limit."
    )
    idle_timeout: int = setting(
        DURATION,
        "0s",
        "Close a client that sends nothing for so long; 0 for never. Clients send PINGs every two minutes.",
    )
    write_deadline: int = setting(
        DURATION,
        "10s",
        "Close a client that takes no bytes for so long, as the server's write_deadline; 0 for never.",
    )
    keepalive: bool = setting(
        FLAG, True, "TCP keep-alive and a timeout for unacknowledged bytes, on both legs."
    )
    session: SessionSettings = group(SessionSettings)
    threads: int = setting(
        _THREADS,
        "1",
        "Threads that pass traffic on, from 2 on beside the one that does all else; auto: one for each core.",
    )
    request_metrics: RequestMetrics = merged(
        ValueType(read_request_metrics, "off|templates|SUBJECT"),
        joined,
        "Latency of requests in /metrics: off, by subject templates, or of these patterns.",
    )
    buffers: int = setting(SIZE_ABOVE_ZERO, "256MiB", "Memory limit for the traffic of all connections.")
    drain: int = setting(DURATION, "30s", "Time that connections have to end after SIGTERM.")
    tls: TlsSettings = group(TlsSettings, "tls")
    upstream_tls: UpstreamTls = group(UpstreamTls, "upstream-tls")
    seed: int | None = optional(
        NUMBER, "Seed of all random choices; default: a random one, which the log shows."
    )
    record: RecordSettings | None = optional_group(RecordSettings, RECORD)
    identity: Identity | None = None
    client_users: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    def certificate_files(self) -> list[Path]:
        """Return the files of TLS, of both legs."""
        both: tuple[TlsSettings | UpstreamTls, ...] = (self.tls, self.upstream_tls)
        return [file for one in both for file in (one.cert, one.key, one.ca) if file is not None]


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The settings of `natsproxy run`: of the proxy, of the HTTP servers beside it, and of the process."""

    proxy: ProxySettings = group(ProxySettings)
    rules: Path | None = optional(FILE, "Rules file (TOML).")
    rules_must_fire: bool = setting(
        FLAG, False, "Exit with code 1 at the end if an active rule never fired, and name it."
    )
    admin: AdminSettings = group(AdminSettings)
    watch_files: bool = setting(
        FLAG,
        False,
        "Reload rules, certificates, credentials and users when their files change, in the same segment.",
    )
    ready_file: Path | None = optional(
        FILE,
        "Touch this file every second while the upstream answers, and remove it otherwise; it holds the "
        "listening addresses.",
    )
    live_file: Path | None = optional(
        FILE,
        "Touch this file every second while the proxy works, whether or not the upstream answers.",
    )
    log_format: str = setting(
        words("auto", "console", "json"),
        "auto",
        "Form of the log: readable lines, or JSON; auto: JSON unless on a terminal.",
    )
    log_level: str = setting(
        words("debug", "info", "warning", "error"), "info", "Minimum level that is logged."
    )
    log_rate: int = setting(NUMBER, "1000", "Maximum number of events logged per second; 0 for no limit.")
    log_file: Path | None = optional(FILE, "Log to this file instead of standard error; SIGHUP reopens it.")


OPTIONS: Final = options_of(RunSettings)
"""All options of `natsproxy run`, in the order of `--help`."""
TLS_OPTIONS: Final = {
    option.key: option
    for option in (
        *options_of(TlsSettings, "tls"),
        *options_of(UpstreamTls, "upstream-tls"),
    )
}
"""The options of TLS, on both legs, by the names that a configuration file has for them."""


def run_settings(values: Mapping[str, Any]) -> RunSettings:
    """Return the settings of `natsproxy run` from typed values by `Option.key`.

    Raises ConfigError with all mistakes.
    """
    given, mistakes = settings_from(RunSettings, values), Mistakes()
    with mistakes.noted():
        given = replace(given, proxy=proxy_settings(values))
    with mistakes.noted():
        given = replace(given, admin=with_token(given.admin))
    if given.proxy.request_metrics.on and given.admin.monitor is None:
        mistakes.found.append("request-metrics has no effect without monitor, which serves /metrics")
    mistakes.refuse()
    return given


def proxy_settings(values: Mapping[str, Any]) -> ProxySettings:
    """Return the settings of a proxy from typed values by `Option.key`.

    Raises ConfigError with all mistakes: if two listeners are one, if a server is one of the proxy's own
    listening addresses, or is named twice, and for settings that would have no effect.
    """
    given, mistakes = settings_from(ProxySettings, values), Mistakes()
    mistakes.found += _wrong_addresses(given)
    if values["record_keep"] and given.record is None:
        mistakes.found.append(
            "record-keep has no effect without record: give the folder or file of the recording"
        )
    mistakes.found += wrong_tls(given.tls, given.upstream_tls, given.listen, given.upstream)
    record = given.record.rotated_in_time() if given.record is not None else None
    with mistakes.noted():
        identity, users = read_login(given.login)
        if identity is not None and identity.logs_in:
            mistakes.found += _wrong_lent_login(given, identity)
        given = replace(given, record=record, identity=identity, client_users=users)
    mistakes.refuse()
    return given


def _wrong_addresses(given: ProxySettings) -> Iterator[str]:
    everywhere = [listener for listener in given.listen if listener.address.host in WILDCARDS]
    for first, second in combinations(everywhere, 2):
        if first.address.port == second.address.port != 0:
            yield f"listen {first} and {second} are the same address: each takes IPv4 and IPv6, leave out one"
    for number, server in enumerate(given.upstream):
        for listen in (listener.address for listener in given.listen):
            # Port 0 is chosen by the system, which takes none that is in use.
            address = server.address
            if listen.port and listen.port == address.port and _may_be_the_same(listen, address):
                yield f"upstream {address} is natsproxy's own address: name the server"
        if server in given.upstream[:number]:
            yield f"upstream {server} is given twice"


_LOCAL = ("127.0.0.1", "::1", "localhost")


def _may_be_the_same(listen: Address, upstream: Address) -> bool:
    if listen.host in WILDCARDS:
        return upstream.host in _LOCAL
    return listen.host == upstream.host or (listen.host in _LOCAL and upstream.host == "localhost")


def _wrong_lent_login(given: ProxySettings, identity: Identity) -> Iterator[str]:
    """Yield a sentence for each setting that lets clients use the proxy's login unseen."""
    if identity.clients == "certificate" and (
        given.tls.ca is None or not all(one.tls for one in given.listen)
    ):
        yield 'client_auth = "certificate" needs tls_ca, and tls:// or wss:// on all listeners'
    if given.session.unparsed == "pass":
        yield 'unparsed = "pass" bypasses upstream_credentials: set it to "close"'


def legs(
    given: Mapping[str, Any], *, listen: Listener | None = None, upstream: Server | None = None
) -> ProxySettings:
    """Return the settings of a proxy with these legs, and defaults for the rest: for playbacks and tests.

    given: options of TLS as in a configuration file, unread: `upstream_tls_ca = "ca.pem"`.  upstream: None
    for a proxy whose server is known later.  Raises ConfigError that names the option.
    """
    for key in given:
        if key not in TLS_OPTIONS:
            near = difflib.get_close_matches(key, TLS_OPTIONS, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f": there are {', '.join(sorted(TLS_OPTIONS))}"
            raise ConfigError(f"there is no option {key!r}{hint}")
    values = read_values(TLS_OPTIONS, given)
    tls = settings_from(TlsSettings, values, "tls")
    upstream_tls = settings_from(UpstreamTls, values, "upstream-tls")
    listeners, servers = (listen or Listener(),), () if upstream is None else (upstream,)
    wrong = tuple(wrong_tls(tls, upstream_tls, listeners, servers))
    if wrong:
        raise ConfigError(*wrong)
    return ProxySettings(listen=listeners, upstream=servers, tls=tls, upstream_tls=upstream_tls)
