"""The key of a connection or a frame under a limit: those with the same one share the limit.

A user, a name or an account without one is a key, too: all of them share it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from hashlib import sha256
from typing import Final

from natsproxy.addresses import split_host_port
from natsproxy.protocol.template import template
from natsproxy.rules.interface import View
from natsproxy.rules.model.token_buckets import OTHERS

_SHORT: Final = 64
"""Longer keys are kept as their hash: a client chooses its name, its user and its subjects."""
_NOUNS: Final = {"template": "subject template", "client": "client name"}


def _address(view: View, subject: bytes) -> str:
    try:
        return split_host_port(view.address)[0]
    except ValueError:  # a Unix socket
        return view.address


SCOPES: Final[dict[str, Callable[[View, bytes], Hashable]]] = {
    "connection": lambda view, subject: view.conn,
    "user": lambda view, subject: view.connect.user_key,
    "client": lambda view, subject: view.connect.name,
    "account": lambda view, subject: view.info.remote_account,
    "address": _address,
    "template": lambda view, subject: template(subject),
    "proxy": lambda view, subject: "",
}


def key_of(scope: str, view: View, subject: bytes) -> Hashable:
    """Return the key of a frame on a subject; a short one."""
    key = SCOPES[scope](view, subject)
    if isinstance(key, str | bytes) and len(key) > _SHORT:
        return sha256(key if isinstance(key, bytes) else key.encode("utf-8", "surrogatepass")).digest()
    return key


def above(amount: str, scope: str) -> str:
    """Return in words that so much is exceeded by those who share a limit."""
    return f"above {amount} {'in all' if scope == 'proxy' else f'of one {_NOUNS.get(scope, scope)}'}"


def above_of(condition: str, scope: str, key: Hashable, most: int) -> str:
    """Return the same with the key that has exceeded it; most: the keys that are told apart."""
    if key == OTHERS:
        return f"{condition}: more than {most} of them, and the others share one limit"
    return condition if scope in ("connection", "proxy") else f"{condition}: {_text(key)}"


def _text(key: Hashable) -> str:
    if isinstance(key, bytes):
        hashed = len(key) == sha256().digest_size
        return f"hash {key.hex()[:16]}" if hashed else key.decode("utf-8", "replace")
    return str(key) or "those without one"
