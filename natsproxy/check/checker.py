"""The checks by name, and the reading of captures: `check_captures` is the whole of it.

A check is a row of `CHECKS`: another one is a row and a class.  Each capture is a history of its own, and is
read once, in order.  Memory is bounded: where a check had to forget something, it says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from natsproxy.bounded import BoundedDict
from natsproxy.capture.read.reader import CaptureReader, Tell, open_capture
from natsproxy.check.base import Check
from natsproxy.check.consumers import (
    EndlessPulls,
    OrderedGaps,
    OrderedRepetitions,
    StalledConsumers,
    UnackedDeliveries,
)
from natsproxy.check.deliveries import GroupRepetitions, LostPublishes, MessagesAfterUnsub
from natsproxy.check.history import PATIENCE, History, Messages, Patience, Table
from natsproxy.check.links import DeafClients, UnansweredPings
from natsproxy.check.payloads import ChangedPayloads
from natsproxy.check.requests import StoredTwice, UnansweredRequests
from natsproxy.check.statement import Statement
from natsproxy.errors import ConfigError
from natsproxy.wire.ops import C2S, S2C, Op


class CheckRow(NamedTuple):
    """A check: a line about it, and its class."""

    line: str
    kind: type[Check]


CHECKS: Final[dict[str, CheckRow]] = {
    "request_without_answer": CheckRow("a request got neither an answer nor a 503", UnansweredRequests),
    "stored_twice": CheckRow("a publish whose ack was lost was sent and stored again", StoredTwice),
    "ordered_consumer_gap": CheckRow("an ordered consumer left messages out", OrderedGaps),
    "ordered_consumer_repetition": CheckRow("an ordered consumer repeated messages", OrderedRepetitions),
    "delivery_never_acked": CheckRow("a client acked later messages, and one never", UnackedDeliveries),
    "pull_without_end": CheckRow("a pull request had no end after its expiry", EndlessPulls),
    "consumer_stalled": CheckRow("a push consumer waits for an answer to flow control", StalledConsumers),
    "acked_publish_not_delivered": CheckRow(
        "a stored message never reached a live subscriber", LostPublishes
    ),
    "delivered_twice_in_group": CheckRow(
        "a message reached a queue group or consumer twice", GroupRepetitions
    ),
    "message_after_unsub": CheckRow("a message came after the end of its subscription", MessagesAfterUnsub),
    "payload_changed": CheckRow("a payload is not what was published", ChangedPayloads),
    "ping_without_pong": CheckRow("a PING was not answered", UnansweredPings),
    "deaf_client": CheckRow("a client with subscriptions took nothing", DeafClients),
}
"""The checks by name."""


def check_captures(
    paths: Iterable[Path | str],
    only: Iterable[str] = (),
    lost: Tell | None = None,
    patience: Patience = PATIENCE,
    opened: Callable[[Path | str, Tell | None], CaptureReader] = open_capture,
) -> list[Statement]:
    """Return the statements of all checks (or of `only` some) on captures.

    lost: called with a sentence about segments that are not read.  opened: returns the reader of a path.
    Raises ConfigError for an unknown check,
    and CaptureError for a file that is no capture or is damaged.
    """
    chosen = list(only) or list(CHECKS)
    unknown = next((name for name in chosen if name not in CHECKS), None)
    if unknown is not None:
        raise ConfigError(f"there is no check {unknown!r}; there are {', '.join(CHECKS)}")
    statements: list[Statement] = []
    captures = list(paths)
    # Of one recording the last messages are compared; of several all, or it is said that they were too many.
    messages: Messages = Table() if len(captures) > 1 else BoundedDict()
    for path in captures:
        reader = opened(path, lost)
        history = History(str(path), messages, patience, cut=reader.tail() is not None)
        checks = [CHECKS[name].kind(name, history) for name in chosen]
        interested = {
            (way, op): [check.saw for check in checks if check.looks_at(way, op)]
            for way in (C2S, S2C)
            for op in Op
        }
        for moment in history.moments(reader.items()):
            for saw in interested[moment.direction, moment.frame.op]:
                saw(moment)
        for check in checks:
            statements += check.over()
    return statements
