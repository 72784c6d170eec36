"""The functions that read the values of options.

A function takes a text or a TOML value and returns the typed value.  It raises ValueError with the end of a
sentence that begins with the option's name.
"""

from __future__ import annotations

from contextlib import suppress
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any, Final

from natsproxy.addresses import NATS_PORT, is_host, parse_address
from natsproxy.capture.filter.recording_filter import PayloadPolicy
from natsproxy.config.settings import SCHEMES, Keep, Listener, Server
from natsproxy.protocol.redaction import SEED
from natsproxy.protocol.subjects import is_valid_subscribe
from natsproxy.rules.file import values
from natsproxy.units import TooLarge, bounded_duration, parse_duration, parse_size


def listen(value: Any) -> Listener:
    """Return the listener of [SCHEME://]HOST:PORT[?proxy_protocol=NETWORK,...], perhaps without a host."""
    text, question, query = values.text(value).partition("?")
    scheme = text.partition("://")[0] if "://" in text else SCHEMES[0]
    address = parse_address(text, port=None, schemes=SCHEMES)
    return Listener(address, scheme, _networks(query) if question else ())


def _networks(query: str) -> tuple[IPv4Network | IPv6Network, ...]:
    name, _, written = query.partition("=")
    try:
        networks = tuple(ip_network(one.strip()) for one in written.split(","))
    except ValueError:
        networks = ()
    if name != "proxy_protocol" or not networks:
        example = "?proxy_protocol=10.0.0.0/8,192.168.1.5"
        raise ValueError(f"may end with the networks of load balancers, as in {example}, not with {query!r}")
    return networks


_PORTS: Final = {"ws": 80, "wss": 443}
"""The port of an upstream's URL without one, where it is not `NATS_PORT`."""


def upstream(value: Any) -> Server:
    """Return the server of SCHEME://HOST[:PORT] or HOST:PORT."""
    # A bare word is a mistake more often than a host, and the proxy would wait for it in vain.
    return server(values.text(value), port=None)


def server(text: str, *, port: int | None = NATS_PORT, credentials: bool = False) -> Server:
    """Return the server of a URL.

    port: where it has neither scheme nor port.  credentials: it may have a user, which is ignored.
    """
    scheme = text.partition("://")[0] if "://" in text else None
    port = port if scheme is None else _PORTS.get(scheme, NATS_PORT)
    address = parse_address(text, host="127.0.0.1", port=port, credentials=credentials, schemes=SCHEMES)
    return Server(address, scheme or SCHEMES[0])


def host(value: Any) -> str:
    """Return a host name or an IP address."""
    text = values.line(value)
    if not is_host(text):
        raise ValueError(f"must be a host name or an IP address, not {text!r}")
    return text


def duration(value: Any) -> int:
    """Return the nanoseconds of "250ms", "1m30s" or a number of seconds."""
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        return values.duration(value)
    # `float` takes "nan" and "inf" too; "nan" fails both comparisons.
    if isinstance(value, bool) or not 0 <= seconds < float("inf"):
        raise ValueError(f'must be a duration such as "250ms" or a number of seconds, not {value!r}')
    return bounded_duration(seconds * 1e9, value)


def whole(value: Any) -> int:
    """Return a signed whole number of at most 64 bits, the most that captures can hold."""
    try:
        number = int(value) if isinstance(value, str) else value
    except ValueError:
        number = None
    if not isinstance(number, int) or isinstance(number, bool) or not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"must be a whole number of at most 64 bits, not {value!r}")
    return number


def path(value: Any) -> Path:
    """Return a path; `~` is the home folder."""
    if isinstance(value, Path):
        return value
    if not values.text(value).strip():  # an empty path would be the current folder
        raise ValueError(f"must be the name of a file, not {value!r}")
    try:
        return Path(value).expanduser()
    except RuntimeError:
        raise ValueError("begins with ~ and the name of no user") from None


def secret_file(value: Any) -> Path:
    """Return the path of a file that holds a secret; no error quotes it."""
    try:
        return path(value)
    except ValueError:
        raise ValueError("must be the name of a file") from None


def secret(value: Any) -> str:
    """Return the name of a file that holds a secret, or env:NAME of a variable; no error quotes it."""
    with suppress(ValueError):
        text = values.line(value)
        if not SEED.search(text):
            return text
    raise ValueError("must be a file or env:NAME, not the secret itself: all users of a machine can see it")


def pattern(value: Any) -> bytes:
    """Return a subject pattern as bytes."""
    raw = values.text(value).encode("utf-8", "surrogateescape")
    if not is_valid_subscribe(raw):
        raise ValueError(f"must be a valid subject pattern, not {value!r}")
    return raw


def policy(value: Any) -> PayloadPolicy:
    """Return the payload policy of SUBJECT=ACTION."""
    return PayloadPolicy.parse(values.text(value))


def keep(value: Any) -> Keep:
    """Return one limit of a recording: a size with its unit, a number of segments, or an age."""
    text = str(value).strip() if isinstance(value, int | str) and not isinstance(value, bool) else ""
    limit = Keep()
    if text.isdecimal():  # a size without a unit would be mistaken for it
        limit = Keep(count=whole(text))
    for read, field in ((parse_size, "size"), (parse_duration, "age")):
        if not limit:
            try:
                limit = Keep(**{field: read(text)})
            except TooLarge:
                raise
            except ValueError:
                continue
    if not limit:
        expected = 'a size such as "10GiB", a number of segments such as 100, or an age such as "7d"'
        raise ValueError(f"must be {expected}, not {value!r}")
    return limit
