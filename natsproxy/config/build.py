"""Configuration files to option values, and option values to `ProxySettings`.

A file is TOML.  Its keys are the names of the options, on one level or in tables (`[record] flush = "1s"` is
`record-flush`, `[record] path = ...` is `record`); `[[rules]]` stand in it too.  The message of a
mistake is one sentence with file, line, key and the nearest name.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any

from natsproxy.addresses import WILDCARDS, Address
from natsproxy.capture.filter.filters import Filters
from natsproxy.capture.filter.recording_filter import Selection
from natsproxy.config.fitting import Fitting
from natsproxy.config.identity import identity_files, read_identity
from natsproxy.config.legs import tls_settings
from natsproxy.config.options import OPTIONS
from natsproxy.config.settings import (
    Keep,
    ProxySettings,
    RecordSettings,
)
from natsproxy.errors import ConfigError
from natsproxy.rules.file.parser import ONE_TABLE, load, parse_rules
from natsproxy.rules.file.reader import Place
from natsproxy.rules.kinds import KINDS
from natsproxy.rules.model.rule import Rule

_BY_NAME = {option.name: option for option in OPTIONS}


def read_file(path: Path) -> dict[str, Any]:
    """Return the option values of a configuration file, unread, by `Option.key`.

    Raises ConfigError for a file that cannot be read, an unknown name and a value that its option refuses.
    """
    text, document = read_document(path)
    found: dict[str, Any] = {}
    if isinstance(document.get("rules"), Mapping):
        raise ConfigError(f"{path}:{line_of('rules', text)}: {ONE_TABLE}")
    for name, value in _flat(document):
        option = _BY_NAME.get(name)
        place = f"{path}:{line_of(name, text)}"
        if option is None:
            near = difflib.get_close_matches(name, _BY_NAME, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f": there are {', '.join(sorted(_BY_NAME))}"
            raise ConfigError(f"{place}: there is no setting {name!r}{hint}")
        items = value if isinstance(value, list) else [value]
        if isinstance(value, list) and not option.many:
            raise ConfigError(f"{place}: {name} takes one value")
        try:
            # Read here for the place of a mistake alone: click reads the raw value once more.
            for item in items:
                option.read(item)
        except (ValueError, ConfigError) as error:
            raise ConfigError(f"{place}: {name} {error}") from None
        found[option.key] = items if option.many else value
    return found


def inline_rules(path: Path) -> tuple[Rule, ...] | None:
    """Return the `[[rules]]` of a configuration file, None where it has no such list (`rules = []` is one).

    Raises ConfigError.
    """
    text, document = read_document(path)
    tables = document.get("rules")
    if not isinstance(tables, list):
        return None
    return parse_rules(tables, KINDS, place=Place(str(path), text), expand=Fitting(path.parent))


def rules_file(path: Path) -> tuple[Rule, ...]:
    """Return the rules of a rules file.  Raises ConfigError."""
    return rules_in(read_text(path, "rules"), path)


def rules_in(text: str, path: Path) -> tuple[Rule, ...]:
    """Return the rules in the text of a rules file.  path: for errors and relative paths.

    Raises ConfigError.
    """
    return load(text, KINDS, source=str(path), expand=Fitting(path.parent))


def read_text(path: Path, title: str) -> str:
    """Return the text of a file.  title: names the file in the error.

    Raises ConfigError for a file that cannot be read or is not UTF-8.
    """
    try:
        return path.read_text()
    except OSError as error:
        raise ConfigError(f"cannot read the {title} {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def read_document(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the text of a TOML file and what it says.  Raises ConfigError."""
    text = read_text(path, "configuration")
    try:
        return text, tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def _flat(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in document.items():
        name = key.replace("_", "-")
        if isinstance(value, Mapping):
            for inner, item in value.items():
                inner = inner.replace("_", "-")
                yield (name if inner == "path" else f"{name}-{inner}"), item
        elif name != "rules" or not isinstance(value, list):
            yield name, value


def line_of(name: str, text: str) -> int:
    """Return the line of an option in a file: of its full name, or of its last part inside a table."""
    # tomllib keeps no positions, so the line is searched for; a wrong guess only misplaces a message.
    table, _, inner = name.partition("-")
    for words in (name, inner or name, "path", table):
        key = re.escape(words).replace(r"\-", "[-_]")
        found = re.search(rf"""^\s*\[?["']?{key}\b""", text, re.MULTILINE)
        if found:
            return text.count("\n", 0, found.start()) + 1
    return 1


def proxy_settings(o: Mapping[str, Any]) -> ProxySettings:
    """Return the settings of a proxy from typed option values by `Option.key`.

    Raises ConfigError if two listeners are one, if a server is one of the proxy's own listening addresses, or
    is named twice, and for settings that would have no effect.
    """
    everywhere = [listener for listener in o["listen"] if listener.address.host in WILDCARDS]
    for first, second in combinations(everywhere, 2):
        if first.address.port == second.address.port != 0:
            raise ConfigError(f"listen {first} and {second} are one: each takes IPv4 and IPv6, name one")
    for number, server in enumerate(o["upstream"]):
        for listen in (listener.address for listener in o["listen"]):
            # Port 0 is chosen by the system, which takes none that is in use.
            address = server.address
            if listen.port and listen.port == address.port and _may_be_the_same(listen, address):
                raise ConfigError(f"upstream {address} is natsproxy's own address: name the server")
        if server in o["upstream"][:number]:
            raise ConfigError(f"upstream {server} is given twice")
    if o["record_keep"] and o["record"] is None:
        raise ConfigError("record-keep is for a recording: name its folder or file with record")
    tls, upstream_tls = tls_settings(o)
    known, users = read_identity(o)
    return ProxySettings(
        listen=tuple(o["listen"]),
        upstream=tuple(o["upstream"]),
        advertise=o["advertise"],
        upstream_hold=o["upstream_hold"],
        upstream_randomize=o["upstream_randomize"],
        upstream_discover=o["upstream_discover"],
        connect_timeout=o["connect_timeout"],
        auth_timeout=o["auth_timeout"],
        max_connections=o["max_connections"],
        max_connections_per_address=o["max_connections_per_address"],
        idle_timeout=o["idle_timeout"],
        write_deadline=o["write_deadline"],
        keepalive=o["keepalive"],
        unparsed=o["unparsed"],
        websocket_origin=tuple(o["websocket_origin"] or ()),
        max_control_line=o["max_control_line"],
        rule_buffer=o["rule_buffer"],
        queue_bytes=o["queue"],
        buffers=o["buffers"],
        drain=o["drain"],
        tls=tls,
        upstream_tls=upstream_tls,
        seed=o["seed"],
        identity=known,
        identity_files=identity_files(o),
        upstream_proxy_protocol=_VERSIONS[o["upstream_proxy_protocol"]],
        client_users=users,
        record=_record_settings(o) if o["record"] is not None else None,
    )


_VERSIONS = {None: None, "v1": 1, "v2": 2}  # of the PROXY protocol


_LOCAL = ("127.0.0.1", "::1", "localhost")


def _may_be_the_same(listen: Address, upstream: Address) -> bool:
    if listen.host in WILDCARDS:
        return upstream.host in _LOCAL
    return listen.host == upstream.host or (listen.host in _LOCAL and upstream.host == "localhost")


def capture_settings(path: Path, given: Mapping[str, Any]) -> RecordSettings:
    """Return the settings of a capture.

    given: values as users write them, by the names of their options without `record-`.  Raises ConfigError.
    """
    o: dict[str, Any] = {"record": path}
    for option in OPTIONS:
        name = option.name.removeprefix(_RECORD)
        if not option.name.startswith(_RECORD):
            continue
        value = given.get(name, option.default)
        values = value if isinstance(value, list) else [] if value is None else [value]
        try:
            read = [option.read(one) for one in values]
        except (ValueError, ConfigError) as error:
            raise ConfigError(f"{name} {error}") from None
        o[option.key] = read if option.many else read[0] if read else None
    return _record_settings(o)


_RECORD = "record-"


def _record_settings(o: Mapping[str, Any]) -> RecordSettings:
    keep = _keep(o["record_keep"])
    return RecordSettings(
        path=o["record"],
        # Whole segments are deleted: larger ones would make little of a limit.
        rotate_size=_least(o["record_rotate"], -(-keep.size // 4)),
        rotate_interval=_least(o["record_rotate_every"], -(-keep.age // 4)),
        keep=keep,
        flush=o["record_flush"],
        compression=o["record_compression"],
        frame_max=o["record_frame_max"],
        queue=o["record_queue"],
        overflow=o["record_overflow"],
        wait=o["record_wait"],
        selection=Selection(
            tuple(o["record_connection"]),
            tuple(o["record_subject"]),
            tuple(o["record_payload"]),
            Filters(
                tuple(o["record_filter_headers"]),
                tuple(o["record_filter_json"]),
                tuple(o["record_filter_bodies"]),
                tuple(o["record_filter_subjects"]),
            ),
        ),
    )


def _keep(limits: Iterable[Keep]) -> Keep:
    """Return several limits as one.  Raises ConfigError for two of a kind."""
    given: dict[str, int] = {}
    for limit in limits:
        for field, value in asdict(limit).items():
            if value and given.setdefault(field, value) != value:
                raise ConfigError(f"record-keep {limit}: there is another {field} limit, give one of each")
    return Keep(**given)


def _least(*limits: int) -> int:
    """Return the least of limits, of which 0 means none."""
    return min((limit for limit in limits if limit), default=0)
