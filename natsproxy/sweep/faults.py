"""The faults of a sweep, a row each, with the reason why it can happen in life and where.

Laws of a place
1. TCP keeps the order and loses no single frame of a connection.  What is lost alone is a message: core NATS
   delivers at most once, and servers drop messages between them (routes, gateways, slow consumers).  Acks,
   answers of the API and pull requests are such messages.  INFO, CONNECT, SUB, UNSUB, PING, PONG, +OK and
   -ERR never get lost alone; they get lost with their connection, or come late.
2. JetStream repeats a delivery with another ack subject, after its ack was lost or late.  So a lost ack makes
   the redelivery, and a copy of a delivery is not tried.
3. A sender tries again what got no answer.  So publishes and requests that ask come twice, and those that
   do not ask do not.
4. One trial is one fault: a PUB and its ack are not both lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from natsproxy.rules.model.roles import ROLES
from natsproxy.sweep.positions import name
from natsproxy.sweep.selection import INBOX, FrameSelection
from natsproxy.sweep.timers import UNKNOWN, Timers
from natsproxy.sweep.values import Place, Trial

Tables = tuple[dict[str, Any], ...]
Variants = list[tuple[str, Tables]]
"""The ending of the fault's name, `""` for none, and the rules."""


class SweepFault(NamedTuple):
    """A fault, a row of `FAULTS`.

    name: unique.  group: the name that selects it with its variants.  text: why it happens in life, a
    sentence.  fits: whether it can happen at a place, and tells more there than another fault.  make: the
    rules at a place.  restart: see `Trial`.  by_state: the state of the conversation decides what it does,
    and hardly the frame.  default: it is tried where nobody names it.
    """

    name: str
    group: str
    text: str
    fits: Callable[[Place], bool]
    make: Callable[[Place, Timers], Variants]
    restart: str = ""
    by_state: bool = False
    default: bool = True


# -- where


def _anywhere(place: Place) -> bool:
    return True


def _is_message(place: Place) -> bool:
    what = place.position.what
    return what in ROLES or what in ("PUB", "HPUB", "MSG", "HMSG")


def _to_the_client(place: Place) -> bool:
    # A server that has got a part of a frame throws it away: a client cannot tell that from no part.
    return place.position.direction == "s2c"


def _brings_payload(place: Place) -> bool:
    return _to_the_client(place) and place.size > 0


def _carries_on(place: Place) -> bool:
    # Anything may be the first frame that is not heard: the login, and then a message of each state, will do.
    return place.position.what == "CONNECT" or _is_message(place)


def _is_repeated(place: Place) -> bool:
    """Tell whether senders repeat a frame: a publish or request that asks, or an answer of two responders."""
    _, _, what, subject, _ = place.position
    if what in ("MSG", "HMSG"):
        return place.reply or subject.startswith(INBOX.decode())
    return place.reply and what in ("PUB", "HPUB", "api")


def _is_of_jetstream(place: Place) -> bool:
    return place.position.what in ROLES


def _at(*whats: str) -> Callable[[Place], bool]:
    return lambda place: place.position.what in whats


def _asks(*whats: str) -> Callable[[Place], bool]:
    return lambda place: place.position.what in whats and place.reply


def _is_publish(place: Place) -> bool:
    return place.position.what in ("PUB", "HPUB") and place.reply and place.acked


# -- the rules


def _rule(place: Place, kind: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the rule of a kind that acts at a place and nowhere else."""
    connection, direction, what, subject, n = place.position
    return {
        "name": f"{kind} at {name(place)}",
        "kind": kind,
        **FrameSelection(direction, what, subject).table(),
        "only": {f"{direction} {connection}": [n]},
        **settings,
    }


def _one(kind: str, **settings: Any) -> Callable[[Place, Timers], Variants]:
    return lambda place, timers: [("", (_rule(place, kind, settings),))]


def _late(place: Place, timers: Timers) -> Variants:
    delays = timers.late_at(place.position.what)
    texts = [f"{round(delay * 1000)}ms" for delay in delays]
    return [(text, (_rule(place, "latency", {"delay": text}),)) for text in texts]


def _denied(place: Place, timers: Timers) -> Variants:
    # A denial has no role and no direction; its gate counts what it denies, the same frames.
    rule = _rule(place, "deny", {})
    del rule["direction"]
    return [("", (rule,))]


def _unavailable(code: int, err_code: int, description: str) -> Callable[[Place, Timers], Variants]:
    return _one("answer", error={"code": code, "err_code": err_code, "description": description})


FAULTS: Final = (
    SweepFault(
        "cut",
        "cut",
        "a server stops, or a load balancer ends the connection, just before the frame",
        _anywhere,
        _one("close"),
    ),
    SweepFault(
        "cut-head",
        "cut",
        "a connection ends inside a control line: TCP knows no frames, and what had arrived stays",
        _to_the_client,
        _one("close", at="head"),
        by_state=True,
    ),
    SweepFault(
        "cut-payload",
        "cut",
        "a connection ends inside a payload, the larger the payload the likelier",
        _brings_payload,
        _one("close", at="payload"),
    ),
    SweepFault(
        "drop",
        "drop",
        "a message is lost between servers or to a slow consumer: core NATS delivers at most once, and acks "
        "and answers are core messages",
        _is_message,
        _one("drop"),
    ),
    SweepFault(
        "late",
        "late",
        "a network or a server stalls for longer than a time-out of the program, and goes on",
        _anywhere,
        _late,
    ),
    SweepFault(
        "duplicate",
        "duplicate",
        "a sender repeats what got no answer in time, or two responders answer the same request",
        _is_repeated,
        _one("duplicate"),
    ),
    SweepFault(
        "pause",
        "pause",
        "a host vanishes or a network splits: neither end hears anything, not even the end of the other",
        _carries_on,
        _one("pause", both=True),
        by_state=True,
    ),
    SweepFault(
        "reset",
        "reset",
        "a host crashes or a firewall forgets the connection: both ends get RST, and bytes on their way are "
        "lost",
        _anywhere,
        _one("reset"),
        by_state=True,
    ),
    SweepFault(
        "reset-head",
        "reset",
        "a host crashes while it sends: its peer has a part of a control line, and then an error",
        _to_the_client,
        _one("reset", at="head"),
        by_state=True,
    ),
    SweepFault(
        "reset-payload",
        "reset",
        "a host crashes while it sends a payload, the larger the payload the likelier",
        _brings_payload,
        _one("reset", at="payload"),
        by_state=True,
    ),
    SweepFault(
        "error-409",
        "error",
        "somebody deletes the consumer, or its inactivity threshold does, while a pull waits",
        _asks("pull"),
        _one("answer", status_code=409, description="Consumer Deleted"),
    ),
    SweepFault(
        "error-408",
        "error",
        "a pull finds nothing until it expires",
        _asks("pull"),
        _one("answer", status_code=408, description="Request Timeout"),
    ),
    SweepFault(
        "error-503",
        "error",
        "nobody answers: the service, the stream's leader or JetStream itself is being restarted",
        _asks("pull", "api", "PUB", "HPUB"),
        _one("answer", status_code=503),
    ),
    SweepFault(
        "error-10008",
        "error",
        "a cluster has no leader for a moment: JetStream answers that it is temporarily unavailable",
        _asks("api"),
        _unavailable(503, 10008, "JetStream system temporarily unavailable"),
    ),
    SweepFault(
        "error-10077",
        "error",
        "a stream that discards new messages is full",
        _is_publish,
        _unavailable(503, 10077, "maximum messages exceeded"),
    ),
    SweepFault(
        "error-denied",
        "error",
        "an operator takes a permission away while the program runs: a reload, or a new account JWT",
        _at("PUB", "HPUB", "SUB"),
        _denied,
    ),
    SweepFault(
        "error-login",
        "error",
        "credentials are rotated, or the authentication service is away",
        _at("CONNECT"),
        _one("error", text="Authorization Violation"),
    ),
    SweepFault(
        "error-full",
        "error",
        "a server has no connections left",
        _at("CONNECT"),
        _one("error", text="maximum connections exceeded"),
    ),
    SweepFault(
        "overtake",
        "overtake",
        "two publishers, or one before and after a reconnect, are delivered in another order; on one "
        "connection NATS keeps the order, so this is tried only where it is named",
        _is_message,
        _one("reorder"),
        default=False,
    ),
    SweepFault(
        "restart",
        "restart",
        "a server is upgraded or crashes, and comes back with its streams",
        _anywhere,
        _one("close"),
        restart="keep",
        by_state=True,
    ),
    SweepFault(
        "restart-lose-memory",
        "restart-lose-memory",
        "a server comes back without any stream and consumer: its disk is new, or they were in memory; few "
        "programs make their streams anew, so this is tried only where it is named",
        _is_of_jetstream,
        _one("close"),
        restart="lose",
        default=False,
        by_state=True,
    ),
)
GROUPS: Final = tuple(dict.fromkeys(fault.group for fault in FAULTS))
DEFAULTS: Final = tuple(dict.fromkeys(fault.group for fault in FAULTS if fault.default))


def chosen(names: Iterable[str]) -> list[SweepFault]:
    """Return the faults that are named, by group or by variant.  Raises ValueError for an unknown name."""
    wanted = list(names)
    known = {*GROUPS, *(fault.name for fault in FAULTS)}
    unknown = next((one for one in wanted if one not in known), None)
    if unknown is not None:
        raise ValueError(f"there is no fault {unknown!r}: {', '.join(GROUPS)}")
    return [fault for fault in FAULTS if fault.name in wanted or fault.group in wanted]


def trials(
    places: Sequence[Place],
    faults: Iterable[str] = DEFAULTS,
    timers: Timers = UNKNOWN,
    *,
    own_server: bool = False,
    after: Trial | None = None,
) -> list[Trial]:
    """Return the trials of faults at places, in the order of the places.

    faults: by group or variant.  own_server: the sweep may restart the server.  after: another fault that
    comes first; these are faults in the recovery from it.  Raises ValueError for an unknown fault.
    """
    rows = [fault for fault in chosen(faults) if own_server or not fault.restart]
    return [
        _trial(place, fault, ending, tables, after)
        for place in places
        for fault in rows
        if fault.fits(place)
        for ending, tables in fault.make(place, timers)
    ]


def _trial(place: Place, fault: SweepFault, ending: str, tables: Tables, after: Trial | None) -> Trial:
    full = f"{fault.name}-{ending}" if ending else fault.name
    if after is None:
        return Trial(full, place, tables, fault.restart)
    first = f"{after.fault} at {name(after.place)}"
    return Trial(full, place, (*tables, *after.rules), fault.restart, after.depth + 1, first)
