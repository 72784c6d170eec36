"""/metrics: the statistics for Prometheus, as text or as OpenMetrics.

Labels are bounded: ops, directions, legs, causes, outcomes and statuses are enumerations, and rules are the
operator's; subjects and clients are those that `request_meter.py` tells apart.  An answer is made family by
family, so that other tasks run in between.

The buckets of request latency have exemplars in OpenMetrics: the number of the connection of the last request
in the bucket, as log, `ctl` and captures have it, with its latency and the time of its answer.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from typing import Any, Final

import trio
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from natsproxy import __version__
from natsproxy.admin.monitor.process import resident_bytes
from natsproxy.admin.monitor.server import MonitoredServer
from natsproxy.admin.slices import sliced
from natsproxy.admin.statistics import BOUNDS, Durations
from natsproxy.events import SHADOWED
from natsproxy.protocol import request_meter
from natsproxy.session.values import POINTS, Traffic
from natsproxy.units import SECOND
from natsproxy.wire.ops import OPS

_END: Final = b"# EOF\n"  # of OpenMetrics


class _FamilyCollector(Collector):
    """A collector of one family."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


def media_type(accept: str) -> str:
    """Return the media type of the answer for an `Accept` header."""
    return choose_encoder(accept)[1]


async def metrics(server: MonitoredServer, accept: str) -> AsyncGenerator[bytes, None]:
    """Yield the answer in pieces."""
    encoder, kind = choose_encoder(accept)
    traffic, subscriptions = await server.statistics.traffic()
    async with aclosing(sliced(_families(server, traffic, subscriptions))) as families:
        async for family in families:
            yield encoder(_FamilyCollector(family)).removesuffix(_END)
    if kind.startswith("application/openmetrics-text"):
        yield _END


def _families(server: MonitoredServer, traffic: Traffic, subscriptions: int) -> Iterator[Metric]:
    yield InfoMetricFamily(
        "natsproxy_build",
        "The program.",
        {"version": __version__, "upstream_version": server.proxy.connections.upstreams.info.version},
    )
    yield from _connections(server, subscriptions)
    yield from _of_traffic(traffic)
    yield from _requests(server)
    yield from _rules(server)
    yield from _own_time(server)
    yield from _recorder(server)
    yield from _failovers(server)
    yield from _others(server)
    yield from _process(server)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value)


def _counters(name: str, text: str, values: Mapping[Any, float], *labels: str) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value)


def _gauges(name: str, text: str, values: Mapping[Any, float], *labels: str) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def _histogram(name: str, text: str, durations: Durations) -> Metric:
    buckets, so_far = list[tuple[str, float]](), 0
    for bound, number in zip((*BOUNDS, None), durations.counts, strict=True):
        so_far += number
        buckets.append(("+Inf" if bound is None else repr(bound / SECOND), so_far))
    return HistogramMetricFamily(name, text, buckets, durations.total / SECOND)


def _connections(server: MonitoredServer, subscriptions: int) -> Iterator[Metric]:
    proxy, causes = server.proxy, server.statistics.causes
    yield _counter("natsproxy_connections_accepted", "Connections that were accepted.", proxy.accepted)
    yield _gauge("natsproxy_connections_open", "Connections that have not ended.", proxy.connections.open)
    arrivals = proxy.arrivals
    yield _gauge(
        "natsproxy_logins", "Clients between their accept and their first PONG.", arrivals.on_their_way
    )
    yield _gauge("natsproxy_logins_limit", "The limit of these; others wait.", int(arrivals.limit))
    yield _gauge("natsproxy_connections_waiting", "Clients that wait for that limit.", arrivals.waiting)
    yield _counter("natsproxy_connections_delayed", "Clients that had to wait.", arrivals.delayed)
    yield _counters(
        "natsproxy_connections_ended",
        "Connections that have ended, by cause.",
        {(cause,): number for cause, number in causes.items()},
        "cause",
    )
    yield _gauge("natsproxy_subscriptions", "Live subscriptions of the open connections.", subscriptions)


def _of_traffic(traffic: Traffic) -> Iterator[Metric]:
    labels = [(point.direction.label, point.leg) for point in POINTS]
    frames = {
        (*label, spec.token.decode()): traffic.frames(at)[spec.op]
        for at, label in enumerate(labels)
        for spec in OPS
        if (spec.from_client, spec.from_server)[POINTS[at].direction]
    }
    yield _counters(
        "natsproxy_frames",
        "Frames that came (c2s client, s2c server) and that went out (c2s server, s2c client).",
        frames,
        "direction",
        "leg",
        "op",
    )
    sizes = {label: traffic.bytes(at) for at, label in enumerate(labels)}
    yield _counters("natsproxy_bytes", "Bytes at the same four points.", sizes, "direction", "leg")


def _requests(server: MonitoredServer) -> Iterator[Metric]:
    meter = server.proxy.connections.meter
    if meter is None:
        return
    epoch = server.statistics.epoch()
    yield from _series("natsproxy_request", "subject", meter.subjects(), epoch, _subject, "subject")
    yield from _series(
        "natsproxy_client_request", "account and user", meter.clients(), epoch, _client, "account", "user"
    )


_Bucket = tuple[str, float] | tuple[str, float, Exemplar]
_OTHERS: Final = "(others)"
_MANY: Final = "; (others) are those beyond the first hundred"


def _subject(key: bytes | None) -> tuple[str, ...]:
    return (_OTHERS if key is None else key.decode("utf-8", "replace"),)


def _client(key: bytes | None) -> tuple[str, ...]:
    if key is None:
        return _OTHERS, ""
    account, _, user = key.decode("utf-8", "replace").partition("\0")
    return account, user


def _series(
    name: str,
    sort: str,
    series: list[request_meter.Series],
    epoch: int,
    values: Callable[[bytes | None], tuple[str, ...]],
    *labels: str,
) -> Iterator[Metric]:
    """Yield the families of the requests by one sort of key; values: those of the labels for a key."""
    used = [one for one in series if one.requests]
    made = {values(one.key): one.requests for one in used}
    unserved = {values(one.key): one.no_responders for one in used}
    yield _counters(f"{name}s", f"Requests by {sort}{_MANY}.", made, *labels)
    yield _counters(f"{name}s_no_responders", f"Requests that nobody serves, by {sort}.", unserved, *labels)
    text = f"Time from a request of a client to the server's answer, by {sort}."
    latency = HistogramMetricFamily(f"{name}_seconds", text, labels=labels)
    for one in used:
        latency.add_metric(values(one.key), _buckets(one, epoch), one.total / SECOND)
    yield latency


def _buckets(series: request_meter.Series, epoch: int) -> list[_Bucket]:
    found, so_far = list[_Bucket](), 0
    for bound, bucket in zip((*request_meter.BOUNDS, None), series.buckets, strict=True):
        so_far += bucket.requests
        place = "+Inf" if bound is None else repr(bound / SECOND)
        if bucket.requests:
            at = (bucket.at + epoch) / SECOND
            last = Exemplar({"connection": str(bucket.conn)}, bucket.latency / SECOND, at)
            found.append((place, so_far, last))
        else:
            found.append((place, so_far))
    return found


def _rules(server: MonitoredServer) -> Iterator[Metric]:
    statistics = server.statistics
    firings = dict(statistics.firings)
    yield _counters("natsproxy_rule_firings", "Times that a rule acted.", firings, "rule", "action")
    yield _counters(
        "natsproxy_rule_would_fire",
        "Times that a rule in shadow would have acted; the firings have them too, by what it would do.",
        {(rule,): number for (rule, action), number in firings.items() if action in SHADOWED},
        "rule",
    )
    yield _counters(
        "natsproxy_rule_firings_by_user",
        "The same, by the client's verified user and account; those beyond 1,000 are (others).",
        dict(statistics.fired_by),
        "rule",
        "action",
        "user",
        "account",
    )
    yield _histogram("natsproxy_rule_delay_seconds", "Delays that rules added to frames.", statistics.delays)


def _own_time(server: MonitoredServer) -> Iterator[Metric]:
    statistics = server.statistics
    yield _histogram(
        "natsproxy_python_step_seconds",
        "Work in Python on the bytes of one read, up to the system call that sends them.",
        statistics.steps,
    )
    yield _histogram(
        "natsproxy_loop_lag_seconds",
        "Lateness of a task that is due every 100 ms; an idle loop wakes up to a millisecond late.",
        statistics.lateness,
    )


def _recorder(server: MonitoredServer) -> Iterator[Metric]:
    proxy, statistics = server.proxy, server.statistics
    recorder = proxy.recorder
    yield _gauge("natsproxy_recorder_active", "1 while a capture is being made.", recorder is not None)
    queued = 0 if recorder is None else recorder.waiting
    yield _gauge("natsproxy_recorder_queue_bytes", "Bytes in memory waiting to be written.", queued)
    limit = 0 if recorder is None else recorder.settings.queue
    yield _gauge("natsproxy_recorder_queue_limit_bytes", "The limit of that queue, in bytes.", limit)
    yield _counter("natsproxy_recorder_frames", "Frames that were recorded.", proxy.recorded_frames)
    yield _counter("natsproxy_recorder_gaps", "Gaps in captures.", statistics.gaps)
    yield _counter(
        "natsproxy_recorder_gap_frames", "Frames that are missing in captures.", statistics.gap_frames
    )


def _failovers(server: MonitoredServer) -> Iterator[Metric]:
    statistics = server.statistics
    yield _gauge(
        "natsproxy_clients_held", "Clients whose server was lost.", server.proxy.connections.held.count
    )
    yield _histogram(
        "natsproxy_failover_seconds",
        "Time from the loss of a server until its client went on with another one.",
        statistics.failovers,
    )
    yield _counter(
        "natsproxy_failover_requests_refused",
        "Requests of lost servers, answered by 503.",
        statistics.failover_refused,
    )


def _others(server: MonitoredServer) -> Iterator[Metric]:
    proxy = server.proxy
    dials = {(outcome,): number for outcome, number in proxy.connections.upstreams.dials.items()}
    yield _counters("natsproxy_upstream_dials", "Attempts to connect to a server.", dials, "outcome")
    servers = list(proxy.connections.upstreams.servers)
    by_server = {
        (server.name, outcome): number
        for server in servers
        for outcome, number in (("connected", server.connected), ("failed", server.failed))
    }
    yield _counters("natsproxy_server_dials", "The same, by server.", by_server, "server", "outcome")
    yield _gauges(
        "natsproxy_server_up",
        "1 where the last attempt to connect to the server did not fail.",
        {(one.name,): int(one.up) for one in servers},
        "server",
    )
    yield _gauges(
        "natsproxy_certificate_expiry_seconds",
        "When a certificate of the proxy expires, in seconds since 1970.",
        {(name,): time for name, time in _expiries(server)},
        "certificate",
    )
    yield _gauges(
        "natsproxy_server_certificate_expiry_seconds",
        "When the certificate of a server expires, in seconds since 1970.",
        {(one.name,): one.expiry for one in servers if one.expiry is not None},
        "server",
    )
    ready = proxy.unready is None
    yield _gauge("natsproxy_upstream_ready", "1 where the upstream has answered with its INFO.", ready)
    yield _counter("natsproxy_log_lines_lost", "Log lines that were dropped.", server.lost_lines())
    answers = {
        (title, str(status)): number
        for title, http in server.servers.items()
        for status, number in http.answers.items()
    }
    yield _counters("natsproxy_http_requests", "HTTP requests, by status.", answers, "server", "code")


def _expiries(server: MonitoredServer) -> Iterator[tuple[str, int]]:
    yield from server.proxy.certificate_expiries.items()
    for title, http in server.servers.items():
        if http.expiry is not None:
            yield f"{title}-tls-cert", http.expiry


def _process(server: MonitoredServer) -> Iterator[Metric]:
    yield _counter("process_cpu_seconds", "CPU time of the process.", time.process_time())
    yield _gauge("process_resident_memory_bytes", "Resident memory of the process.", resident_bytes())
    tasks = trio.lowlevel.current_statistics().tasks_living
    yield _gauge("natsproxy_tasks", "Tasks of the event loop; one at least for each open connection.", tasks)
    started = server.statistics.started / SECOND
    yield _gauge("process_start_time_seconds", "The start, in seconds since 1970.", started)
