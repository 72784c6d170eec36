"""The address of a master or of a Connect server, tried before Spark tries it for minutes."""

from __future__ import annotations

import socket
from typing import Final

from natsproxy.addresses import split_host_port
from natsproxy.errors import NatsproxyError

PORTS: Final = {"spark": 7077, "sc": 15002, "k8s": 443}
"""The schemes of addresses with a host, and the port of each that has none."""
TIMEOUT: Final = 5
"""Seconds."""


def check_reachable(url: str) -> None:
    """Raise NatsproxyError where nothing listens at an address; of several, one is enough.

    Other addresses (`yarn`, `local[2]`) are left to Spark.
    """
    scheme, _, rest = url.partition("://")
    if scheme not in PORTS:
        return
    hosts = rest.rpartition("://")[2].split("/")[0].split(",")  # Kubernetes has a URL behind its scheme
    problems = []
    for each in hosts:
        host, port = split_host_port(each)
        try:
            socket.create_connection((host, port or PORTS[scheme]), TIMEOUT).close()
        except OSError as error:
            place = f"{scheme}://{host}:{port or PORTS[scheme]}"
            problems.append(f"{place} cannot be reached: {error.strerror or error}")
        else:
            return
    raise NatsproxyError("; ".join(problems))
