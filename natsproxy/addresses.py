"""Addresses of clients and servers: one parser, and a form without secrets for logs and errors.

A user writes `HOST:PORT` or `nats://HOST:PORT`, and an IPv6 address in brackets: `[::1]:4222`.  `Address` has
the parts, and its text is again `host:port`.  Any URL of a user or a peer may hold a password, so a log or an
error shows it through `mask_url`, `mask_urls` or `mask_addresses` only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

NATS_PORT: Final = 4222
MAX_PORT: Final = 65_535
WILDCARDS: Final = ("", "0.0.0.0", "::")  # noqa: S104 - only compared
"""The hosts that stand for all addresses of a machine, of both families: a listener takes IPv4 and IPv6."""
_MAPPED: Final = "::ffff:"

_ADDRESS: Final = re.compile(
    r"(?:[^@/]*@)?(?P<host>\[[0-9A-Za-z:.%_-]+\]|[^:/\[\]@,?#\s]*)(?::(?P<port>[0-9]{1,9}))?/?"
)
_HOST: Final = r"(?:\[[^\]@]*\]|[^:@/?#,]*)(?::[0-9]*)?"
# A text that surely holds no password: hosts with ports and a path, or an IPv6 address without brackets.
_PLAIN: Final = re.compile(rf"{_HOST}(?:,{_HOST})*(?:/[^:@?#]*)?|[0-9A-Fa-f.]*(?::[0-9A-Fa-f.]*){{2,}}")
# A comma parts two URLs only before a scheme: passwords may hold commas, too.
_NEXT_URL: Final = re.compile(r",\s*(?=[A-Za-z][A-Za-z0-9+.-]*://)")
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s\"'`<>]*@")
_USER: Final = re.compile(r"[^\s\"'`<>()=]+:[^\s\"'`<>]*@")


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port; to a listener, port 0 is one that the system chooses, and no host is every one."""

    host: str = "127.0.0.1"
    port: int = 0

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_host(text: str) -> bool:
    """True if a text can be a host name, or is an IP address."""
    if ":" in text:
        return is_ip(text)
    try:
        text.encode("idna")  # as look-ups and TLS do, which fail where a label is empty or too long
    except UnicodeError:
        return False
    return re.fullmatch(r"[^\s/@\[\],?#]+", text) is not None


def is_ip(host: str) -> bool:
    """True if a host is an IP address."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def address_of(host: str, port: int) -> Address:
    """Return the address of a socket, one of IPv4 in its own form.

    A socket that serves IPv6 too writes it as `::ffff:…`; rules and trusted networks compare addresses.
    """
    return Address(host.removeprefix(_MAPPED) if "." in host else host, port)


def parse_address(
    text: str,
    *,
    host: str = "",
    port: int | None = NATS_PORT,
    credentials: bool = False,
    schemes: Sequence[str] = ("nats",),
) -> Address:
    """Read `HOST:PORT` or `nats://HOST:PORT`, or another scheme.

    host, port: the parts of an address that has none; with the port None, the text must have one.
    credentials: a user and a password may stand before an `@`, and are ignored.  schemes: those that may
    stand before the host.  Raises ValueError with the end of a sentence that begins with the name of the
    setting; it never quotes a password.
    """
    shown = mask_url(text)
    forms = " or ".join(f"{scheme}://HOST:PORT" for scheme in schemes)
    scheme, slashes, rest = text.partition("://")
    if slashes and scheme not in schemes:
        raise ValueError(f"must be {forms}, not {shown!r}: {scheme}:// is not supported")
    if not slashes:
        rest = text
    if "@" in text and not credentials:
        raise ValueError(
            f"must have no credentials, not {shown!r}: clients bring their own (or see upstream_credentials)"
        )
    if "," in text.rpartition("@")[2]:
        raise ValueError(f"must be one server, not {shown!r}")
    found = _ADDRESS.fullmatch(rest)
    if found is None or not rest or not is_host(found["host"].strip("[]") or host or "localhost"):
        raise ValueError(f"must be HOST:PORT or {forms} (IPv6 as [::1]:4222), not {shown!r}")
    if found["host"].isdecimal():  # a port alone, most likely
        raise ValueError(f"must be HOST:PORT, such as 127.0.0.1:{found['host']}, not {shown!r}")
    if found["port"] is None and port is None:
        raise ValueError(f"must be HOST:PORT, such as {found['host'] or '127.0.0.1'}:4222, not {shown!r}")
    number = int(found["port"] or port or 0)
    if number > MAX_PORT:
        raise ValueError(f"must have a port up to {MAX_PORT}, not {number}")
    return Address(found["host"].strip("[]") or host, number)


def split_host_port(text: str) -> tuple[str, int]:
    """Return the parts of `host:port` as events and captures have it; the port is 0 where there is none.

    It takes any text, since captures are hostile input; a text without a port comes back as the host.
    """
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    else:
        host, colon, port = text.rpartition(":")
        if not colon:
            return text, 0
    known = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= MAX_PORT
    return host, int(port) if known else 0


def mask_url(url: str) -> str:
    """Return a URL (or several, comma-separated) with password and token hidden, for logs and errors.

    A user name before a colon stays; a lone user part may be a token and goes.  In doubt more is hidden: a
    text in the place of a port that is no number may be a password whose host is missing.
    """
    return ",".join(_mask_one(part) for part in _NEXT_URL.split(url))


def _mask_one(url: str) -> str:
    scheme, slashes, rest = url.rpartition("://") if url.count("://") == 1 else url.partition("://")
    if not slashes:
        scheme, rest = "", url
    userinfo, at, host = rest.rpartition("@")
    if at:
        user, colon, _ = userinfo.partition(":")
        return f"{scheme}{slashes}{user}:***@{host}" if colon else f"{scheme}{slashes}***@{host}"
    if _PLAIN.fullmatch(rest):
        return url
    return f"{scheme}{slashes}{re.split('[:?#]', rest)[0]}:***"


def mask_urls(text: str) -> str:
    """Return a text with the passwords and tokens of the URLs in it hidden."""
    return _URL.sub(lambda found: mask_url(found[0]), text) if "@" in text else text


def mask_addresses(text: str) -> str:
    """Return a text with the passwords of URLs and of `user:password@host` hidden."""
    return _USER.sub(lambda found: mask_url(found[0]), mask_urls(text)) if "@" in text else text
