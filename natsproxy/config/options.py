"""The options of a proxy: one table for flags, environment, configuration file and `natsproxy config`.

A row holds the option's name, the function that reads its value, its default and its help.  The name gives
the flag `--name`, the variable `NATSPROXY_NAME` and the key `name` in a file; `record-flush` may also be
`flush` in a `[record]` table.  A new option is a row here, a field in
`config/settings.py` and a line in `config/build.py`; `config/option.py` has the functions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from natsproxy.config.admin import ADMIN_OPTIONS
from natsproxy.config.filter_options import FILTER_OPTIONS
from natsproxy.config.option import (
    duration,
    keep,
    listen,
    path,
    pattern,
    policy,
    secret,
    secret_file,
    upstream,
    whole,
)
from natsproxy.config.row import Option
from natsproxy.config.tls_options import TLS_OPTIONS
from natsproxy.rules.file import values

_size = values.above_zero(values.size)

OPTIONS: Final = (
    Option(
        "listen",
        listen,
        "127.0.0.1:4222",
        "The address for clients, or tls://HOST:PORT. 0.0.0.0, [::] or no host: all, of IPv4 and IPv6.",
        many=True,
        metavar="HOST:PORT",
    ),
    Option("upstream", upstream, None, "A server.", many=True, required=True, metavar="nats://HOST:PORT"),
    Option(
        "advertise",
        values.one_of("strip", "self", "pass"),
        "strip",
        "Treatment of the server addresses in INFO.",
        metavar="strip|self|pass",
    ),
    Option(
        "upstream-randomize",
        values.boolean,
        True,
        "Try the servers at random, as NATS clients do; else in their order.",
    ),
    Option(
        "upstream-discover",
        values.boolean,
        False,
        "Also use the servers that the cluster names in INFO.",
    ),
    Option(
        "upstream-hold",
        duration,
        "0s",
        "The longest wait of a new client while no server can be used.",
        metavar="DURATION",
    ),
    Option(
        "connect-timeout", duration, "2s", "The longest wait for the upstream's INFO.", metavar="DURATION"
    ),
    Option(
        "auth-timeout",
        duration,
        "2s",
        "The longest wait for a client's first bytes; 0 for no limit.",
        metavar="DURATION",
    ),
    Option(
        "websocket-origin",
        values.line,
        None,
        "For ws:// listeners: only pages of this origin; without it, all.",
        many=True,
        metavar="ORIGIN",
    ),
    Option(
        "upstream-credentials",
        secret,
        None,
        "The proxy's own login: a .creds file, an nkey seed, or TOML with user and password, or token; "
        "env:NAME for a variable with that text.",
        metavar="FILE",
        secret=True,
    ),
    Option(
        "client-users",
        secret_file,
        None,
        "With upstream-credentials: the users that may use it (TOML), with bcrypt hashes, or by certificate: "
        "its e-mail, DNS name, URI or subject.",
        metavar="FILE",
        secret=True,
    ),
    Option(
        "client-auth",
        values.one_of("users", "certificate", "none"),
        None,
        "With upstream-credentials: how clients prove who they are.",
        metavar="users|certificate|none",
    ),
    Option(
        "proxy-key",
        secret,
        None,
        "The nkey seed of a proxy in the server's proxies.trusted; env:NAME for a variable.",
        metavar="FILE",
        secret=True,
    ),
    Option(
        "upstream-proxy-protocol",
        values.one_of("v1", "v2"),
        None,
        "Tell servers the client's address by this header (nats-server: proxy_protocol).",
        metavar="v1|v2",
    ),
    Option(
        "max-connections", whole, "0", "The most connections of clients; 0 for no limit.", metavar="NUMBER"
    ),
    Option(
        "max-connections-per-address",
        whole,
        "0",
        "The most connections of one client address; 0 for no limit.",
        metavar="NUMBER",
    ),
    Option(
        "idle-timeout",
        duration,
        "0s",
        "The longest silence of a client; 0 for no limit. Clients send PINGs every two minutes.",
        metavar="DURATION",
    ),
    Option(
        "write-deadline",
        duration,
        "10s",
        "The longest time in which a client takes no bytes, as the server's write_deadline; 0 for no limit.",
        metavar="DURATION",
    ),
    Option(
        "keepalive",
        values.boolean,
        True,
        "TCP keep-alive and a limit for unacknowledged bytes, on both legs.",
    ),
    Option(
        "unparsed",
        values.one_of("close", "pass"),
        "close",
        "Treatment of bytes from a client that are not NATS.",
        metavar="close|pass",
    ),
    Option(
        "max-control-line",
        _size,
        "4KiB",
        "The server's max_control_line (it is not in INFO).",
        metavar="SIZE",
    ),
    Option("rule-buffer", _size, "8MiB", "The largest payload that rules can see.", metavar="SIZE"),
    Option(
        "queue",
        _size,
        "8MiB",
        "The most delayed traffic for each direction of a connection.",
        metavar="SIZE",
    ),
    Option("buffers", _size, "256MiB", "The most memory for the traffic of all connections.", metavar="SIZE"),
    Option("drain", duration, "30s", "The time for connections to end after SIGTERM.", metavar="DURATION"),
    *TLS_OPTIONS,
    Option("rules", path, None, "The file of rules (TOML).", metavar="FILE"),
    Option(
        "rules-must-fire",
        values.boolean,
        False,
        "At the end: fail (exit code 1) if a rule in force has never acted, and name it.",
    ),
    Option("seed", whole, None, "The seed of all random choices; the log names it.", metavar="NUMBER"),
    Option("record", path, None, "Record to this file (x.ncap) or folder.", metavar="PATH"),
    Option(
        "record-rotate",
        values.size,
        "256MiB",
        "The size at which a new segment starts, sooner where its blocks are very many; 0 for never. A burst "
        "may make a segment larger.",
        metavar="SIZE",
    ),
    Option(
        "record-rotate-every",
        duration,
        "0s",
        "The age at which a new segment starts; 0 for never.",
        metavar="DURATION",
    ),
    Option(
        "record-keep",
        keep,
        None,
        "Keep this much (10GiB), this many segments (100) or those of this age (7d); delete the oldest; a "
        "new segment starts at a quarter of a size or an age.",
        many=True,
        metavar="LIMIT",
    ),
    Option(
        "record-flush", duration, "250ms", "The longest time before a frame is written.", metavar="DURATION"
    ),
    Option(
        "record-compression",
        values.one_of("none", "zstd"),
        "none",
        "Compression of the capture's blocks.",
        metavar="none|zstd",
    ),
    Option("record-frame-max", _size, "8MiB", "The most bytes kept of one frame.", metavar="SIZE"),
    Option("record-queue", _size, "64MiB", "The most bytes that wait for the disk.", metavar="SIZE"),
    Option(
        "record-overflow",
        values.one_of("gap", "wait", "close"),
        "gap",
        "If the disk is too slow or full: leave a gap in the capture, hold traffic back, or close "
        "connections.",
        metavar="gap|wait|close",
    ),
    Option(
        "record-wait",
        duration,
        "10s",
        "For wait: the longest time before connections are closed.",
        metavar="DURATION",
    ),
    Option(
        "record-connection",
        values.line,
        None,
        "Only clients of this name (*, ?), or user:PATTERN, address:PATTERN.",
        many=True,
        metavar="PATTERN",
    ),
    Option("record-subject", pattern, None, "Only these subjects.", many=True, metavar="SUBJECT"),
    Option(
        "record-payload",
        policy,
        None,
        "Treatment of payloads: keep, hash, drop or truncate:BYTES.",
        many=True,
        metavar="SUBJECT=ACTION",
    ),
    *(replace(option, name=f"record-{option.name}") for option in FILTER_OPTIONS),
    *ADMIN_OPTIONS,
    Option(
        "watch-files",
        values.boolean,
        False,
        "Reload rules, certificates, credentials and users when their files change, in the same segment.",
    ),
    Option(
        "ready-file",
        path,
        None,
        "A file that is there, and touched every second, while the upstream answers; it has the listening "
        "addresses.",
        metavar="FILE",
    ),
    Option(
        "live-file",
        path,
        None,
        "A file that is touched every second while the proxy works, whether or not the upstream answers.",
        metavar="FILE",
    ),
    Option(
        "log-format",
        values.one_of("auto", "console", "json"),
        "auto",
        "Readable lines or JSON; auto: JSON unless on a terminal.",
        metavar="auto|console|json",
    ),
    Option(
        "log-level",
        values.one_of("debug", "info", "warning", "error"),
        "info",
        "The lowest level that is logged.",
        metavar="debug|info|warning|error",
    ),
    Option(
        "log-rate",
        whole,
        "1000",
        "The most events that are logged in a second; 0 for no limit.",
        metavar="NUMBER",
    ),
    Option("log-file", path, None, "A file instead of standard error; SIGHUP reopens it.", metavar="FILE"),
)
"""All options, in the order of `--help`."""
