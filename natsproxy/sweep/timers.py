"""The timers of a program: those that its traffic shows, and the defaults of its client library.

Shown are the expiry and the heartbeat of pull requests, ack waits and idle heartbeats in the configuration of
consumers, the patience of a request that was given up (its inbox was unsubscribed, or the connection closed,
before an answer), and the intervals between a client's PINGs.
A clean run gives up nothing, so the library's own defaults count as well.  All times are in seconds.
"""

from __future__ import annotations

from typing import Final, NamedTuple

SHORT: Final = 0.6
"""The first delay of `late`: beyond the time-outs that people write for a flush or a quick request."""
LONGEST: Final = 12.0
"""Delays of `late` go to here: a longer one costs more than it tells."""
BEYOND: Final = 1.25
"""A late frame comes after the timer by this factor."""
LEAST: Final = 30.0


class Timers(NamedTuple):
    """The longest timer of each sort in seconds, 0 where there is none.

    request: the patience of a request.  pull: the expiry of a pull.  ack_wait: until a delivery comes again.
    heartbeat: the interval of idle heartbeats.  ping: the interval of PINGs times those that may stay
    unanswered, and one more.  drain: of a subscription or connection.
    """

    request: float = 0.0
    pull: float = 0.0
    ack_wait: float = 0.0
    heartbeat: float = 0.0
    ping: float = 0.0
    drain: float = 0.0

    @property
    def late(self) -> list[float]:
        """The delays of the fault `late`, the shortest first: each just beyond a timer."""
        return sorted({SHORT, *(delay for name in _ABOUT if (delay := self.beyond(name)))})

    def beyond(self, name: str) -> float:
        """Return a delay just beyond a timer, 0 where there is none or it is too long to be tried."""
        factor = 3.0 if name == "heartbeat" else BEYOND  # clients miss two heartbeats before they act
        delay = round(float(getattr(self, name)) * factor, 1)
        return delay if SHORT < delay <= LONGEST else 0.0

    def late_at(self, what: str, reply: bool) -> list[float]:
        """Return the delays that tell something at a frame.  what: its role or op.  reply: it asks."""
        concerned = [name for name, roles in _ABOUT.items() if what in roles or (reply and name == "request")]
        return sorted({SHORT, *(delay for name in concerned if (delay := self.beyond(name)))})

    def patience(self, baseline: float, *, silent: bool = False) -> float:
        """Return how long a run may take before it is called hung.

        baseline: of a clean run.  silent: the fault leaves a connection open that says nothing, which a
        client finds out by its PINGs alone; on any other link they are answered and end nothing.
        """
        own = max(self.request, self.pull, self.ack_wait, 3 * self.heartbeat, self.drain)
        return max(LEAST, own, self.ping if silent else 0.0, 10 * baseline)


UNKNOWN: Final = Timers()
"""Nothing is known of a program's timers."""
_ABOUT: Final[dict[str, tuple[str, ...]]] = {
    "request": ("MSG", "HMSG", "publish-ack", "api-reply", "PING", "PONG", "CONNECT", "INFO"),
    "pull": ("pull", "pull-reply", "delivery", "redelivery"),
    "ack_wait": ("ack", "nak", "term", "wpi", "next", "delivery"),
    "heartbeat": ("heartbeat", "flow-control", "flow-reply", "delivery"),
}
"""The roles and ops at which a timer runs."""
