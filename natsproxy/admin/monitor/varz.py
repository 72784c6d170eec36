"""/varz: the proxy as a server, in nats-server's shape.

Messages and bytes are those of the clients' legs; bytes are those on the wire, control lines included.
Features that a proxy lacks (routes, a cluster) have the server's empty value.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from typing import Any, Final

from natsproxy import __version__, close_reasons
from natsproxy.addresses import Address
from natsproxy.admin.monitor.go_values import timestamp, uptime
from natsproxy.admin.monitor.process import resident_bytes
from natsproxy.admin.monitor.server import MonitoredServer
from natsproxy.session.values import FROM_CLIENT, TO_CLIENT
from natsproxy.units import SECOND

_KINDS: Final = ("clients", "routes", "gateways", "leafs")
_DISK: Final = ("waiters", "waits", "wait_time", "max_wait_time")


async def varz(server: MonitoredServer) -> dict[str, Any]:
    """Return the answer."""
    statistics, now = server.statistics, time.time_ns()
    traffic, subscriptions = await statistics.traffic()
    ended = statistics.causes
    in_msgs, in_bytes = traffic.messages(FROM_CLIENT), traffic.bytes(FROM_CLIENT)
    out_msgs, out_bytes = traffic.messages(TO_CLIENT), traffic.bytes(TO_CLIENT)
    return {
        **_settings(server),
        "start": timestamp(statistics.started),
        "now": timestamp(now),
        "uptime": uptime(now - statistics.started),
        "mem": resident_bytes(),
        "cores": os.cpu_count() or 1,
        "gomaxprocs": 1,
        "cpu": server.process.cpu(),
        "connections": len(server.proxy.relays),
        "total_connections": server.proxy.accepted,
        "routes": 0,
        "remotes": 0,
        "leafnodes": 0,
        "in_msgs": in_msgs,
        "in_bytes": in_bytes,
        "in_client_msgs": in_msgs,
        "in_client_bytes": in_bytes,
        "out_msgs": out_msgs,
        "out_bytes": out_bytes,
        "out_client_msgs": out_msgs,
        "out_client_bytes": out_bytes,
        "slow_consumers": ended[close_reasons.SLOW],
        "stale_connections": ended[close_reasons.IDLE],
        "stalled_clients": 0,
        "subscriptions": subscriptions,
        "http_req_stats": dict(server.requests),
        "config_load_time": timestamp(statistics.started),
        "config_digest": "",
        "feature_flags": {},
        "system_account": "",
        "slow_consumer_stats": _of_clients(ended[close_reasons.SLOW]),
        "stale_connection_stats": _of_clients(ended[close_reasons.IDLE]),
        "disk_io_wait_stats": dict.fromkeys(_DISK, 0),
        "natsproxy": _ours(server),
    }


def _settings(server: MonitoredServer) -> dict[str, Any]:
    proxy, info = server.proxy, server.proxy.connections.upstreams.info
    settings, host, port = proxy.settings, *_address(proxy.listen)
    monitor_host, monitor_port = _address(server.listens)
    return {
        "server_id": server.id,
        "server_name": server.name,
        "version": server.version,
        "proto": 1,
        "git_commit": "",
        "go": f"python{platform.python_version()}",
        "host": host,
        "port": port,
        **({"auth_required": True} if info.auth_required or settings.client_users else {}),
        **({"tls_required": True} if any(one.tls for one in settings.listen) else {}),
        **({"tls_verify": True} if settings.tls.ca is not None else {}),
        "max_connections": settings.max_connections,
        "ping_interval": 0,
        "ping_max": 0,
        "http_host": monitor_host,
        "http_port": monitor_port,
        "http_base_path": "",
        "https_port": 0,
        "auth_timeout": settings.auth_timeout / SECOND,
        "max_control_line": settings.session.max_control_line,
        "max_payload": info.max_payload,
        "max_pending": settings.session.queue_bytes,
        "cluster": {},
        "gateway": {},
        "leaf": {},
        "mqtt": {},
        "websocket": {},
        "jetstream": {},
        "tls_timeout": settings.tls.timeout / SECOND,
        "write_deadline": settings.write_deadline,
    }


def _address(addresses: Sequence[Address]) -> tuple[str, int]:
    return (addresses[0].host, addresses[0].port) if addresses else ("", 0)


def _of_clients(number: int) -> dict[str, int]:
    return {kind: number if kind == "clients" else 0 for kind in _KINDS}


def _ours(server: MonitoredServer) -> dict[str, Any]:
    proxy, statistics = server.proxy, server.statistics
    recorder = proxy.recorder
    return {
        "version": __version__,
        "seed": proxy.seed,
        "rules": [rule.name for rule in getattr(proxy.chain, "rules", ())],
        "firings": statistics.firings.total(),
        "upstream": [str(one) for one in proxy.settings.upstream],
        "upstream_server": proxy.connections.upstreams.info.server_name,
        "upstream_dials": dict(proxy.connections.upstreams.dials),
        "ready": proxy.unready is None,
        "unready": proxy.unready or "",
        "open": proxy.connections.open,
        "ended": {cause: number for cause, number in statistics.causes.items() if number},
        "recorder": None
        if recorder is None
        else {
            "file": str(recorder.file),
            "queue_bytes": recorder.waiting,
            "queue_limit": recorder.settings.queue,
        },
        "gaps": statistics.gaps,
        "gap_frames": statistics.gap_frames,
    }
