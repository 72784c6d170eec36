"""A proxy under a name, as the HTTP APIs know it."""

from __future__ import annotations

from dataclasses import dataclass

from natsproxy.net.proxy import Proxy


@dataclass(frozen=True)
class ManagedProxy:
    """A proxy with its name; the APIs add what they know of it."""

    name: str
    proxy: Proxy
