"""The one list of intended differences between nats-server and natsproxy before it.

Each row: what the client sends, why natsproxy answers otherwise.  What is not listed must be equal.
"""

from __future__ import annotations

from typing import Final

DIFFERENCES: Final[dict[str, tuple[bytes, str]]] = {
    "embedded CR": (
        b"SUB fo\ro 1\r\n",
        "the server's own reading depends on how TCP cut the stream, so no proxy can be sure of it",
    ),
    "HMSG from a client": (
        b"HMSG a 1 0 0\r\n\r\n",
        "the server swallows the line; it is no client op and could smuggle what follows",
    ),
    "INFO from a client": (b"INFO {}\r\n", "the server ignores it; clients have no reason to send one"),
    "-ERR from a client": (
        b"-ERR 'x'\r\n",
        "the server logs it and closes silently; we say Unknown Protocol",
    ),
    "a PING tail beyond the line limit": (
        b"PING" + b"x" * 5000 + b"\r\n",
        "the server has no limit there; an endless line is not to be buffered for ever",
    ),
}

SEEN_OTHERWISE: Final[dict[str, str]] = {
    "a client that sends nothing, or a part of a line, after INFO, where the server asks for no login": (
        "the server pings it and closes after minutes; we say Authentication Timeout, as it does where it "
        "has users, since such a connection costs two sockets here"
    ),
    "a pedantic client's invalid PUB that TCP cuts": (
        "the server complains twice, as it reads the arguments again; through the proxy frames arrive whole, "
        "and it complains once"
    ),
    "a reply subject that a client uses before it has got the message that allows it": (
        "the server opens the reply as it delivers; we learn of it as the delivery passes, and deny till then"
    ),
    "a traced PUB beyond max_payload": (
        "the server traces it where TCP brought its headers with its line (and says so, if that is denied); "
        "what rules look at is refused at its line, and nothing is traced"
    ),
    "a denied trace that Nats-Trace-Origin-Account turns off": (
        "servers of today do not trace a message with that header, older ones do: we deny it on all"
    ),
    "a denied message that comes to a queue subscription": (
        "nats-server 2.12 delivers it where the filter is armed, 2.15 does not: we are as the latter on all"
    ),
    "a denied message that is pulled": (
        "the server knows that it has delivered nothing, and gives the message to the next pull, again and "
        "again; the server behind us has delivered it, and waits for its ack"
    ),
    "a 503 on a reply subject that is denied": (
        "the server's own 503s pass its filter; from here one looks like a message that somebody published, "
        "which the server would filter"
    ),
    "a 503 where all receivers were filtered": (
        "the server without the map has delivered the request: to a subscription from which we filter it"
    ),
    "a 503 where the last receiver has reached its UNSUB max": (
        "as above: under a delivery filter we keep the count, so the server still has that receiver for one "
        "round trip"
    ),
    "a sid with an UNSUB max under a delivery filter": (
        "the server frees it at its last delivery; we unsubscribe for the client there, so it is free one "
        "round trip later"
    ),
    "a CONNECT whose JSON is nested a thousand levels deep": (
        "the server reads ten thousand; Python's reader gives up earlier, and the connection ends as it does "
        "where a CONNECT is no JSON"
    ),
}
"""Differences in what a client can see that are no refusals; the generators keep clear of them."""
