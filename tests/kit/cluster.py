"""A cluster of real nats-servers, whose members come and go, and the view that it has of its clients."""

from __future__ import annotations

import json
import random
import signal
import socket
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tests.kit.servers import NatsServer

PATIENCE = 30.0  # seconds for the members to find each other
# A short grace; the servers end their connections one a second at most.
_CONFIG = """
server_name: "n{number}"
http: "127.0.0.1:{http}"
lame_duck_grace_period: "100ms"
lame_duck_duration: "30s"
cluster {{ name: "c", listen: "127.0.0.1:{own}", routes: [{routes}], pool_size: -1 }}
"""


def free_ports(count: int) -> list[int]:
    """Return ports below those of clients, so that a server that is away finds its own free again."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(12_000, 32_000)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        if port not in found:
            found.append(port)
    return found


class Cluster:
    """Servers that know each other.  servers: by number.  monitors: their monitoring ports.

    probes: addresses of connections that this class made itself.
    """

    def __init__(self, servers: list[NatsServer], monitors: list[int]) -> None:
        self.servers = servers
        self.monitors = monitors
        self.live = set(range(len(servers)))
        self.probes: set[str] = set()

    @property
    def urls(self) -> list[str]:
        """The URLs of all servers, live or not."""
        return [server.url for server in self.servers]

    def kill(self, number: int) -> None:
        """Let a server crash."""
        self.live.discard(number)
        self.servers[number].stop(signal.SIGKILL)

    def stop(self, number: int) -> None:
        """Stop a server in order; also one in lame duck mode that has not ended yet."""
        self.live.discard(number)
        self.servers[number].stop()

    def start(self, number: int) -> None:
        """Start a server again."""
        self.servers[number].start()
        self.live.add(number)

    def lame_duck(self, number: int) -> None:
        """Begin lame duck mode: no new connections, and the end of the old ones."""
        self.live.discard(number)
        self.servers[number].signal(signal.SIGUSR2)

    def wait_whole(self) -> None:
        """Wait until each live server tells clients about as many servers as are live."""
        for number in self.live:
            with socket.create_connection(("127.0.0.1", self.servers[number].port), PATIENCE) as probe:
                self.probes.add(":".join(map(str, probe.getsockname())))
                probe.sendall(b'CONNECT {"verbose":false,"protocol":1}\r\nPING\r\n')
                deadline = time.monotonic() + PATIENCE
                with probe.makefile("rb") as lines:
                    for line in lines:
                        assert time.monotonic() < deadline, self.servers[number].log()
                        urls = _urls(line)
                        if urls is not None and len(urls) == len(self.live):
                            break

    def clients(self, number: int) -> set[str]:
        """Return the addresses of all clients that a server has or has had since its start."""
        url = f"http://127.0.0.1:{self.monitors[number]}/connz?state=any&limit=4096"
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            connections: list[dict[str, Any]] = json.load(answer)["connections"]
        return {f"{one['ip']}:{one['port']}" for one in connections} - self.probes


def _urls(line: bytes) -> list[str] | None:
    if not line.startswith(b"INFO "):
        return None
    # A server without peers names nobody, itself neither.
    urls: list[str] = json.loads(line[5:]).get("connect_urls", ["itself"])
    return urls


@contextmanager
def cluster(size: int = 3, *, jetstream: bool = False) -> Iterator[Cluster]:
    """Run a cluster, which is whole when the block begins; jetstream: its servers have stores."""
    ports = free_ports(3 * size)
    clients, routes, monitors = ports[:size], ports[size : 2 * size], ports[2 * size :]
    with ExitStack() as stack:
        servers = []
        for number in range(size):
            others = [f'"nats://127.0.0.1:{port}"' for port in routes if port != routes[number]]
            text = _CONFIG.format(
                number=number, http=monitors[number], own=routes[number], routes=", ".join(others)
            )
            servers.append(stack.enter_context(NatsServer(text, jetstream=jetstream, port=clients[number])))
        found = Cluster(servers, monitors)
        found.wait_whole()
        yield found
