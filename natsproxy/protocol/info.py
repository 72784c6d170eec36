"""INFO: the facts that a server announces, and edits of the copy that a client gets.

The bytes are kept: an INFO without changes is forwarded byte for byte, and a changed one differs in the named
members only (order, spacing and Go's `\\u003c` escapes stay).

A server says the same to all of its clients but for their `client_id` (and a nonce, where clients sign one).
So results are cached by the *form* of an INFO, which has a fixed number in the place of the `client_id`; the
real number is put back for each connection.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, NamedTuple

from natsproxy.protocol import gojson
from natsproxy.protocol.redaction import INFO_SECRETS, redact_object

GOSSIP: Final = ("connect_urls", "ws_connect_urls")
"""The members that would let a client bypass the proxy: addresses that it dials to reconnect."""


class Info(NamedTuple):
    """The members of an INFO that the proxy reads; absent ones are empty, zero or False.

    nonce: the INFO has one.  other_port: the kind of port where it is not one for clients ("route",
    "leafnode", "gateway"), or "".
    """

    server_id: str = ""
    server_name: str = ""
    version: str = ""
    proto: int = 0
    host: str = ""
    port: int = 0
    headers: bool = False
    max_payload: int = 0
    auth_required: bool = False
    tls_required: bool = False
    tls_verify: bool = False
    tls_available: bool = False
    client_id: int = 0
    client_ip: str = ""
    connect_urls: tuple[str, ...] = ()
    ws_connect_urls: tuple[str, ...] = ()
    ldm: bool = False
    jetstream: bool = False
    domain: str = ""
    cluster: str = ""
    api_lvl: int = 0
    connect_info: bool = False
    remote_account: str = ""
    nonce: bool = False
    other_port: str = ""


_FIELDS: Final[dict[str, type]] = {
    "server_id": str,
    "server_name": str,
    "version": str,
    "proto": int,
    "host": str,
    "port": int,
    "headers": bool,
    "max_payload": int,
    "auth_required": bool,
    "tls_required": bool,
    "tls_verify": bool,
    "tls_available": bool,
    "client_id": int,
    "client_ip": str,
    "connect_urls": list,
    "ws_connect_urls": list,
    "ldm": bool,
    "jetstream": bool,
    "domain": str,
    "cluster": str,
    "api_lvl": int,
    "connect_info": bool,
    "remote_account": str,
    "nonce": str,
}
_KEY: Final = b'"client_id":'
_CLIENT_ID: Final = re.compile(_KEY + rb"([1-9][0-9]{0,17})(?=[,}])")
_ANY_ID: Final = b"982451653982451653"  # the `client_id` in a form
_CLIENT_ID_PLACE: Final = Info._fields.index("client_id")
_FORMS: Final = 16  # cached per function: a proxy has few servers
# No client port sends these members; the first one found names the port.
_OTHER_PORTS: Final = {
    "gateway": "gateway",
    "gateway_urls": "gateway",
    "gateway_url": "gateway",
    "leafnode_urls": "leafnode",
    "info_on_connect": "leafnode",
    "route_pool_size": "route",
    "route_account": "route",
    "lnoc": "route",
    "ip": "route",
}


@lru_cache(_FORMS)  # it is read, rewritten and redacted
def _form(args: bytes) -> tuple[bytes, bytes]:
    """Return the form of an INFO and its `client_id`; the INFO and `b""` if that is elsewhere."""
    found = _CLIENT_ID.search(args)
    if found is None or args.count(_KEY) > 1 or _ANY_ID in args:
        return args, b""
    return args[: found.start(1)] + _ANY_ID + args[found.end(1) :], found[1]


def _unformed(form: bytes, number: bytes) -> bytes:
    return form.replace(_ANY_ID, number) if number else form


@lru_cache(_FORMS)  # one INFO is read several times while a connection begins
def parse_info(args: bytes) -> Info:
    """Read the arguments of an INFO.

    Raises ValueError for JSON that does not parse and for a wrong type.
    """
    form, number = _form(args)
    if number:
        with suppress(ValueError):  # raised below, with the right offset
            info = _parse(form)
            if info.client_id == int(_ANY_ID):  # otherwise the key occurs again, in another letter case
                # As `_replace` does it, which looks each member up by its name.
                return Info._make((*info[:_CLIENT_ID_PLACE], int(number), *info[_CLIENT_ID_PLACE + 1 :]))
    return _parse(args)


@lru_cache(_FORMS)
def _parse(args: bytes) -> Info:
    pairs = gojson.load_pairs(args) or ()
    found: dict[str, Any] = gojson.fill_pairs(pairs, _FIELDS)
    # A server says nearly the same to all of its clients: their connections share the texts.
    found |= {name: sys.intern(text) for name, text in found.items() if isinstance(text, str)}
    for name in GOSSIP:
        found[name] = tuple(sys.intern(url) for url in found.get(name, ()) if url)
    found["nonce"] = bool(found.get("nonce"))
    keys = {gojson.fold(key) for key, _ in pairs}
    other = next((port for key, port in _OTHER_PORTS.items() if key in keys), "")
    if not other and found.get("proto", 0) > 1:  # clients are served with proto 1
        other = "route"
    return Info(**found, other_port=other)


@lru_cache(_FORMS)  # each step of a dial asks for it
def parse_greeting(greeting: bytes) -> Info | None:
    """Return the INFO of a server's first line; None if it is another line, or does not parse."""
    line, _, _ = greeting.partition(b"\n")
    op, _, args = line.partition(b" ")
    if op.upper() != b"INFO":
        return None
    try:
        return parse_info(args.strip(b" \t\r"))  # as a frame has them: one text is parsed once
    except ValueError:
        return None


def why_unusable(info: Info) -> str | None:
    """Return why a server with this INFO cannot be proxied, as a sentence; None if it can."""
    if info.other_port:
        return f"the upstream is a {info.other_port} port, not a client port: give the server's client port"
    return None


def rewrite_info(args: bytes, *, remove: Collection[str] = (), set: Mapping[str, Any] | None = None) -> bytes:
    """Return the arguments of an INFO without the members `remove` and with those of `set`.

    As `gojson.rewrite` does it.  Raises ValueError when `args` is not a JSON object.
    """
    return edited_info(args, InfoEdit.of(remove, set or {}))


class InfoEdit(NamedTuple):
    """An edit of INFO that is made once.  remove: members to leave out.  put: those to set, as JSON."""

    remove: frozenset[str]
    put: bytes

    @classmethod
    def of(cls, remove: Collection[str], put: Mapping[str, Any]) -> InfoEdit:
        """Return the edit that removes members and sets others."""
        return cls(frozenset(remove), gojson.dumps(put))


def edited_info(args: bytes, edit: InfoEdit) -> bytes:
    """Return the arguments of an INFO after an edit.  Raises ValueError as `rewrite_info`."""
    if args.strip() == b"null":
        raise ValueError("an INFO of null")
    remove, put = edit
    form, number = _form(args) if _ANY_ID not in put else (args, b"")
    changed = _rewrite(form, remove, put)
    return args if changed == form else _unformed(changed, number)


@lru_cache(_FORMS)
def _rewrite(form: bytes, remove: frozenset[str], put: bytes) -> bytes:
    return gojson.rewrite(form, remove=remove, set=gojson.loads(put))


def redact_info(args: bytes) -> bytes:
    """Return the arguments of an INFO with the nonce withheld and every other byte kept.

    An INFO that does not parse is withheld whole.
    """
    form, number = _form(args)
    redacted = _redact(form)
    if redacted is None:
        return gojson.dumps({"withheld": f"an INFO that does not parse, {len(args)} bytes"})
    return args if redacted == form else _unformed(redacted, number)


@lru_cache(_FORMS)
def _redact(form: bytes) -> bytes | None:
    return redact_object(form, INFO_SECRETS)
