"""The table of awaited replies: reply subjects of a client's requests on which no message has come yet.

The scanners of both directions of a connection share one table, in the order of the requests.
The c2s scanner notes the reply subject of a PUB or HPUB; the s2c scanner removes a subject when a MSG or HMSG
arrives on it, the server's own 503 included.  Both do so as they pass over a frame, wanted or not: no frame
is wanted on account of the table.

Subjects are compared byte for byte: the one that the client sends is noted, the one that the server sends is
removed.  They differ where a rule rewrites reply subjects, and then an entry stays;
`session/subscriptions.py` leaves such entries out.

Pulls and acknowledgements are not noted.  A pull may stay open for as long as its client likes, and its
messages come on other subjects than its reply; a JetStream domain or an import may stand before its name.

A meter may be told of each request as it is noted, and of its first answer.  The number that it gives for
the request stays in the table meanwhile.  A request on a reply subject that is awaited already, for such a
number, is the same request: a scanner may read a frame twice.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from itertools import islice
from typing import Final, Protocol

from natsproxy.wire.ops import S2C, Direction

MOST: Final = 1024
"""Subjects in one table; a full one drops its oldest, so that a client cannot fill the memory."""
FORGOTTEN: Final = MOST // 8
"""Subjects that a full table drops at once: each search for the oldest skips the slots of removed ones."""
LONGEST: Final = 256
"""The longest reply subject that is noted, in bytes; the inboxes of clients have 30 to 80."""
PULL: Final = b".CONSUMER.MSG.NEXT."
ACK: Final = b"$JS.ACK."


class Meter(Protocol):
    """Measures the requests of one connection.  now: the time of the bytes that are scanned (ns)."""

    now: int

    def requested(self, subject: bytes) -> int:
        """Take a request on a subject; return a number for its answer, 0 if that is of no interest."""
        ...

    def answered(self, ticket: int, *, no_responders: bool) -> None:
        """Take the first answer to the request of that number; no_responders: it is the server's 503."""
        ...


def update(
    awaited: MutableMapping[bytes, int],
    direction: Direction,
    subject: bytes,
    reply: bytes | None,
    meter: Meter | None = None,
    *,
    no_responders: bool = False,
) -> None:
    """Bring the table up to date with a message frame."""
    if direction == S2C:
        ticket = awaited.pop(subject, 0)
        if ticket and meter is not None:
            meter.answered(ticket, no_responders=no_responders)
    elif reply:
        note(awaited, subject, reply, meter)


def note(
    awaited: MutableMapping[bytes, int], subject: bytes, reply: bytes, meter: Meter | None = None
) -> None:
    """Note the reply subject of a request, unless it is a pull or an acknowledgement."""
    # `_walk.pxd` has these lines in C.
    if len(reply) > LONGEST or subject.startswith(ACK) or PULL in subject:
        return
    known = awaited.get(reply)
    if known is None and len(awaited) >= MOST:
        forget(awaited)
    if not known:
        awaited[reply] = 0 if meter is None else meter.requested(subject)


def forget(awaited: MutableMapping[bytes, int]) -> None:
    """Drop the oldest entries of a full table."""
    for reply in tuple(islice(awaited, FORGOTTEN)):
        del awaited[reply]
