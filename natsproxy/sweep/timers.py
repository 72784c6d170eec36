"""The timers of a program: those that its traffic shows, and the defaults of its client library.

Shown are the expiry and the heartbeat of pull requests, ack waits and idle heartbeats in the configuration of
consumers, the intervals of PINGs, and the patience of a request that got no answer: until the next frame of
its client.  A clean run gives up hardly anything, so the defaults of the library count as well.
All times are in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from natsproxy.capture.format.connection import ConnectionId
from natsproxy.protocol.connect import parse_connect
from natsproxy.protocol.jetstream import members, number, parse_api, pull_request
from natsproxy.sweep.traffic import Arrived, RunTraffic, traffic
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, KEEP_ALIVES, S2C, Op

SHORT: Final = 0.6
"""The first delay of `late`: beyond the time-outs that people write for a flush or a quick request."""
LONGEST: Final = 12.0
"""The longest delay of `late`: a longer one costs more than it tells."""
LEAST: Final = 30.0
"""The least patience."""
_BEYOND: Final = 1.25
"""The factor from a timer to a time when it has certainly run out."""
_MISSED: Final = 3.0
"""Clients act when they have missed two heartbeats."""
_SECOND: Final = 1e9
_ACTS: Final = 10_000_000
"""ns; a frame that follows a request sooner does not end the wait for its answer."""


class ClientDefaults(NamedTuple):
    """The defaults of a client library.

    ping: the interval of PINGs.  outstanding: those that may stay without a PONG.  request: the time-out of a
    request, 0 where the caller must give one.  api: of JetStream's API and of publishes.  drain: of a drain.
    """

    ping: float = 120
    outstanding: int = 2
    request: float = 1
    api: float = 5
    drain: float = 30


CLIENTS: Final[dict[str, ClientDefaults]] = {
    # nats-py 2.16.0: nats/aio/client.py, nats/js/client.py
    "python3": ClientDefaults(request=0.5),
    # nats.go 1.53: nats.go (DefaultPingInterval, DefaultDrainTimeout), js.go (defaultRequestWait)
    "go": ClientDefaults(request=0),
    # @nats-io/nats-core 3.4.0: lib/options.js, lib/nats.js; @nats-io/jetstream: lib/jsbaseclient_api.js
    "nats.js": ClientDefaults(request=1, drain=0),
    # jnats 2.x: Options.java (DEFAULT_PING_INTERVAL, DEFAULT_MAX_PINGS_OUT, DEFAULT_CONNECTION_TIMEOUT)
    "java": ClientDefaults(request=2, api=2),
    # async-nats: options.rs (ping_interval, request_timeout), lib.rs (MAX_PENDING_PINGS)
    "rust": ClientDefaults(ping=60, request=10, drain=0),
    # NATS.Net 2.x: NatsOpts.cs (PingInterval, MaxPingOut, RequestTimeout)
    ".NET": ClientDefaults(request=5),
    # nats.c 3.x: opts.h (NATS_OPTS_DEFAULT_PING_INTERVAL, NATS_OPTS_DEFAULT_MAX_PING_OUT)
    "C": ClientDefaults(request=0),
}
"""By `lang` of CONNECT, with the file that says so."""
OTHER: Final = ClientDefaults()


class Timers(NamedTuple):
    """The longest timer of each sort, 0 where there is none.

    request: the patience of a request.  api: of a call of JetStream's API, or of a publish that waits for its
    ack.  pull: the expiry of a pull.  ack_wait: until a delivery comes again.  heartbeat: the interval of
    idle heartbeats.  ping: until a client gives up a connection that says nothing.  drain: of a drain.
    """

    request: float = 0.0
    api: float = 0.0
    pull: float = 0.0
    ack_wait: float = 0.0
    heartbeat: float = 0.0
    ping: float = 0.0
    drain: float = 0.0

    def longest(self, other: Timers) -> Timers:
        """Return the longer timer of each sort."""
        return Timers(*map(max, self, other))

    @property
    def late(self) -> list[float]:
        """The delays of the fault `late`, the shortest first: each just beyond a timer."""
        return self._delays(_ABOUT)

    def late_at(self, what: str) -> list[float]:
        """Return the delays that tell something at a frame.  what: its role or op."""
        return self._delays(name for name, concerned in _ABOUT.items() if what in concerned)

    def _delays(self, names: Iterable[str]) -> list[float]:
        delays = {round(float(getattr(self, name)) * _FACTORS.get(name, _BEYOND), 1) for name in names}
        return sorted({SHORT, *(delay for delay in delays if SHORT < delay <= LONGEST)})

    def patience(self, baseline: float, *, silent: bool = False) -> float:
        """Return how long a run may take before it is called hung: it may meet its longest timer, and go on.

        baseline: of a clean run.  silent: the fault leaves a connection open that says nothing, which a
        client finds out by its PINGs alone; on any other link they are answered and end nothing.
        """
        beats, ping = _MISSED * self.heartbeat, self.ping if silent else 0.0
        own = max(self.request, self.api, self.pull, self.ack_wait, beats, self.drain, ping)
        return max(LEAST, _BEYOND * own + baseline, 10 * baseline)


UNKNOWN: Final = Timers()
"""Nothing is known of a program's timers."""
_ABOUT: Final[dict[str, tuple[str, ...]]] = {
    "request": ("PUB", "HPUB", "MSG", "HMSG", "PING", "PONG", "CONNECT", "INFO"),
    "api": ("PUB", "HPUB", "api", "publish-ack", "api-reply"),
    "pull": ("pull", "pull-reply", "delivery", "redelivery"),
    "ack_wait": ("ack", "nak", "term", "wpi", "next", "delivery"),
    "heartbeat": ("heartbeat", "flow-control", "flow-reply", "delivery"),
}
"""The timers that a late frame may meet, with the roles and ops at which they run."""
_FACTORS: Final = {"heartbeat": _MISSED}
_CREATES: Final = (b"CONSUMER.CREATE", b"CONSUMER.DURABLE.CREATE", b"CONSUMER.INFO")


def timers(captures: Iterable[Path]) -> Timers:
    """Return the timers of a program, by the recordings of its clean runs.  Raises CaptureError."""
    found = UNKNOWN
    for capture in captures:
        found = found.longest(timers_of(traffic(capture)))
    return found


def timers_of(run: RunTraffic) -> Timers:
    """Return the timers of a program, by one run."""
    found = UNKNOWN
    calls: dict[tuple[ConnectionId, bytes], bytes] = {}
    for one in run.frames:
        frame = one.frame
        if one.direction == C2S and frame.reply:
            calls[one.conn, frame.reply] = frame.subject
        subject = frame.subject if one.direction == C2S else calls.get((one.conn, frame.subject), b"")
        shown = _of_connect(frame) if frame.op == Op.CONNECT else _of_call(subject, one)
        found = found.longest(shown)
    return found.longest(Timers(request=_given_up(run.frames), ping=_pinged(run.frames)))


def _of_connect(frame: Frame) -> Timers:
    try:
        lang = parse_connect(frame.args).lang
    except ValueError:
        lang = ""
    client = CLIENTS.get(lang, OTHER)
    silence = client.ping * (client.outstanding + 1)
    return Timers(client.request, client.api, ping=silence, drain=client.drain)


def _of_call(subject: bytes, one: Arrived) -> Timers:
    """Return the timers in a call of the API, or in the answer to it."""
    call = parse_api(subject) if subject.startswith(b"$JS.") else None
    if call is None:
        return UNKNOWN
    if call.verb == b"CONSUMER.MSG.NEXT":
        pull = pull_request(one.frame.body)
        if one.direction == S2C:
            return UNKNOWN
        return Timers(pull=pull.expires / _SECOND, heartbeat=pull.heartbeat / _SECOND)
    config = members(one.frame.body).get("config") if call.verb in _CREATES else None
    if not isinstance(config, dict):
        return UNKNOWN
    acked = config.get("ack_policy") != "none"
    return Timers(
        ack_wait=number(config, "ack_wait") / _SECOND if acked else 0.0,
        heartbeat=number(config, "idle_heartbeat") / _SECOND,
    )


def _given_up(frames: list[Arrived]) -> float:
    """Return the longest wait for an answer that never came, until its client did something else."""
    answered = {(one.conn, one.frame.subject) for one in frames if one.direction == S2C and one.frame.subject}
    waiting: dict[ConnectionId, int] = {}
    longest = 0
    for one in frames:
        if one.direction == S2C or one.frame.op in KEEP_ALIVES:
            continue
        asked = waiting.get(one.conn)
        if asked is not None and one.t - asked > _ACTS:
            longest = max(longest, one.t - asked)
            del waiting[one.conn]
        frame = one.frame
        if frame.reply and not frame.subject.startswith(b"$JS.") and (one.conn, frame.reply) not in answered:
            waiting.setdefault(one.conn, one.t)
    return longest / _SECOND


def _pinged(frames: list[Arrived]) -> float:
    """Return the silence after which a client gives up, by the shortest interval of its regular PINGs."""
    times: dict[ConnectionId, list[int]] = {}
    for one in frames:
        if one.direction == C2S and one.frame.op == Op.PING:
            times.setdefault(one.conn, []).append(one.t)
    longest = 0.0
    for found in times.values():
        # The first belongs to the login; two intervals of the same length are a timer's.
        gaps = [late - early for early, late in pairwise(found[1:])]
        if len(gaps) > 1 and max(gaps) < 1.2 * min(gaps):
            longest = max(longest, max(gaps) * (OTHER.outstanding + 1) / _SECOND)
    return longest
