"""A client of the admin API, for commands: answers, streams, files; and the options that reach it."""

from __future__ import annotations

import functools
import http.client
import json
import os
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import click
from click.shell_completion import CompletionItem

from natsproxy.cli.options import OptionType
from natsproxy.cli.paths import FilePath
from natsproxy.config.admin import ADMIN_OPTIONS, ADMIN_VARIABLE, admin_token
from natsproxy.errors import ConfigError, NatsproxyError

_TIMEOUT: Final = 30.0  # seconds without a byte; a stream has a sign of life more often
_UNIX: Final = "unix:"
_MOST: Final = 64 << 20  # bytes of an answer


class AdminError(NatsproxyError):
    """Nobody answers at the address, or the answer is an error.  status: of HTTP; 0: there is none."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class _UnixConnection(http.client.HTTPConnection):
    """HTTP on a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_TIMEOUT)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class AdminClient:
    """Asks the admin API at a URL: http://, https://, HOST:PORT or unix:PATH.

    token: "" for none.  ca: the file of the authority of an https:// server, None for the system's.
    proxy: the name of the proxy that is meant by paths without a slash in front; "" is its own.
    Raises ConfigError for a URL that is none.
    """

    def __init__(self, url: str, token: str = "", ca: Path | None = None, proxy: str = "main") -> None:
        if not url.startswith(_UNIX) and "://" not in url:
            url = f"http://{url}"
        parts = urlsplit(url)
        if not url.startswith(_UNIX) and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise ConfigError(f"the admin API is at http(s)://HOST:PORT or unix:PATH, not {url}")
        self.url = url
        self._token = token
        self._ca = ca
        self._proxy = proxy

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        accept: tuple[int, ...] = (),
    ) -> Any:
        """Return the value of the answer, None where it has none.

        accept: statuses that are no errors here.  Raises AdminError.
        """
        with self._answer(method, path, body, query, headers) as answer:
            raw = answer.read(_MOST)
        if answer.status >= 300 and answer.status not in accept:
            raise AdminError(_sentence(raw, answer), answer.status)
        return json.loads(raw) if raw else None

    def events(
        self, path: str, query: Mapping[str, Any] | None = None, after: int | None = None
    ) -> Iterator[tuple[str, Any]]:
        """Yield the events of a stream, by name and data, until it ends.

        after: the number of an event that is known, where the stream has numbers.  Raises AdminError.
        """
        headers = {"Accept": "text/event-stream"}
        if after is not None:
            headers["Last-Event-ID"] = str(after)
        with self._answer("GET", path, None, query, headers) as answer:
            if answer.status != 200:
                raise AdminError(_sentence(answer.read(_MOST), answer), answer.status)
            try:
                yield from _events(answer)
            except (OSError, http.client.HTTPException) as error:
                raise AdminError(f"{self.url}: the stream ended: {error}") from None

    def save(self, path: str, target: Path) -> int:
        """Write the content of an answer to a new file; return its bytes.  Raises AdminError."""
        with self._answer("GET", path, None, None, None) as answer:
            if answer.status != 200:
                raise AdminError(_sentence(answer.read(_MOST), answer), answer.status)
            size, expected = 0, int(answer.headers.get("Content-Length", -1))
            with target.open("xb") as file:
                while piece := answer.read(1 << 20):
                    size += file.write(piece)
        if size != expected >= 0:
            raise AdminError(f"{target}: received {size} of {expected} bytes")
        return size

    def _answer(
        self,
        method: str,
        path: str,
        body: Any,
        query: Mapping[str, Any] | None,
        headers: Mapping[str, str] | None,
    ) -> http.client.HTTPResponse:
        if not path.startswith("/"):
            path = f"/v1/proxies/{quote(self._proxy, safe='')}/{path}".rstrip("/")
        given = {name: _plain(value) for name, value in (query or {}).items() if value is not None}
        path += f"?{urlencode(given, doseq=True)}" if given else ""
        sent = {"Connection": "close", **(headers or {})}
        if self._token:
            sent["Authorization"] = f"Bearer {self._token}"
        raw = None if body is None else json.dumps(body).encode()
        if raw is not None:
            sent["Content-Type"] = "application/json"
        connection = self._connection()
        try:
            connection.request(method, path, raw, sent)
            return connection.getresponse()
        except ssl.SSLError as error:
            connection.close()
            raise AdminError(f"{self.url}: {error.reason or error}") from None
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            reason = getattr(error, "strerror", None) or error or type(error).__name__
            raise AdminError(f"nobody answers at {self.url}: {reason}") from None

    def _connection(self) -> http.client.HTTPConnection:
        if self.url.startswith(_UNIX):
            return _UnixConnection(self.url.removeprefix(_UNIX))
        parts = urlsplit(self.url)
        host, port = parts.hostname or "", parts.port
        if parts.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=_TIMEOUT)
        context = ssl.create_default_context(cafile=self._ca)
        return http.client.HTTPSConnection(host, port, timeout=_TIMEOUT, context=context)


def _events(answer: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    fields: dict[str, str] = {}
    while line := answer.readline(_MOST):
        name, _, value = line.decode().rstrip("\r\n").partition(": ")
        if name:
            fields[name] = value
        elif not line.strip():
            if "data" in fields:
                yield fields.get("event", "message"), json.loads(fields["data"])
            fields = {}


def _plain(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _sentence(raw: bytes, answer: http.client.HTTPResponse) -> str:
    try:
        return str(json.loads(raw)["error"])
    except (ValueError, KeyError, TypeError):
        return f"the answer is {answer.status} {answer.reason}"


# -- options

_FIELDS: Final = ("admin", "token_file", "ca", "proxy")


def admin_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that reach an admin API to a command, which gets `client`."""

    @functools.wraps(command)
    def with_client(*args: Any, connect: Callable[[], AdminClient], **values: Any) -> Any:
        return command(*args, client=connect(), **values)

    return optional_admin(with_client)


def optional_admin(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add them to a command that may do without; it gets `connect`, which returns the client.

    `connect` raises ConfigError where no admin API is named.
    """

    @functools.wraps(command)
    def with_connect(*args: Any, **values: Any) -> Any:
        given = {name: values.pop(name) for name in _FIELDS}
        return command(*args, connect=lambda: client_of(given), **values)

    for option in reversed(_OPTIONS):
        with_connect = option(with_connect)
    return with_connect


def client_of(values: Mapping[str, Any]) -> AdminClient:
    """Return the client that the values of the options mean.  Raises ConfigError."""
    if not values["admin"]:
        raise ConfigError("name the admin API of a proxy: --admin http://HOST:PORT, or NATSPROXY_ADMIN_URL")
    token = admin_token(values["token_file"], "token-file")
    return AdminClient(values["admin"], token, values["ca"], values["proxy"])


_OPTIONS: Final = (
    click.option(
        "--admin",
        metavar="URL",
        envvar="NATSPROXY_ADMIN_URL",
        help="URL of the admin API: http://HOST:PORT, https://HOST:PORT or unix:PATH.",
    ),
    click.option(
        "--token-file",
        type=OptionType(ADMIN_OPTIONS["admin_token_file"]),
        metavar="FILE",
        envvar=f"{ADMIN_VARIABLE}_FILE",
        help=f"File with its token, or env:NAME; default: the token in {ADMIN_VARIABLE}, if set.",
    ),
    click.option("--ca", type=FilePath(), help="CA of its certificate."),
    click.option("--proxy", default="main", metavar="NAME", help="Name of the proxy, if there are several."),
)
json_option: Final = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, as the API answers it."
)
"""The option of commands that print an answer."""


def names(path: str, key: Callable[[Any], list[Any]]) -> Callable[..., list[CompletionItem]]:
    """Return a completion by the names that the running proxy knows.

    key: the names in the answer of `path`.
    """

    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        defaults = {
            "admin": os.environ.get("NATSPROXY_ADMIN_URL"),
            "token_file": os.environ.get(f"{ADMIN_VARIABLE}_FILE"),
        }
        given = {name: context.params.get(name) or defaults.get(name) for name in _FIELDS}
        given["proxy"] = given["proxy"] or "main"
        try:
            known = key(client_of(given).ask("GET", path))
        except (NatsproxyError, OSError):  # a completion says nothing
            return []
        return [CompletionItem(str(name)) for name in known if str(name).startswith(incomplete)]

    return complete
