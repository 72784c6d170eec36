"""The proxy as a server: the data for all answers of the monitoring port."""

from __future__ import annotations

import base64
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping

from natsproxy import __version__
from natsproxy.addresses import Address
from natsproxy.admin.http_server import HttpServer
from natsproxy.admin.managed import ManagedProxy
from natsproxy.admin.monitor.go_values import timestamp
from natsproxy.admin.monitor.process import ProcessUsage
from natsproxy.admin.statistics import Statistics


class MonitoredServer:
    """One proxy as tools for servers see it.

    id: in the form of a server's id, new for each start.  requests: by path.  servers: those of HTTP, by
    their titles.  lost_lines: returns the number of log lines that were dropped.
    """

    def __init__(
        self,
        managed: ManagedProxy,
        statistics: Statistics,
        servers: Mapping[str, HttpServer],
        lost_lines: Callable[[], int],
    ) -> None:
        self.proxy = managed.proxy
        self.statistics = statistics
        self.process = ProcessUsage()
        self.id = "N" + base64.b32encode(os.urandom(35)).decode()[:55]
        suffix = "" if managed.name == "main" else f"-{managed.name}"
        self.name = f"natsproxy-{socket.gethostname()}{suffix}"
        self.requests: Counter[str] = Counter()
        self.servers = servers
        self.lost_lines = lost_lines

    @property
    def version(self) -> str:
        """The version of the upstream, marked as ours; our own before any server has answered."""
        version = self.proxy.connections.upstreams.info.version or __version__
        return f"{version}{'.' if '+' in version else '+'}natsproxy"

    @property
    def listens(self) -> tuple[Address, ...]:
        """The address of the monitoring port, where it is one of TCP."""
        address = self.servers["monitor"].address
        return (address,) if isinstance(address, Address) else ()

    @staticmethod
    def now() -> str:
        """Return the time, as answers have it."""
        return timestamp(time.time_ns())
