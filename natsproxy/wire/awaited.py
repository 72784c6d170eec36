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
"""

from __future__ import annotations

from collections.abc import MutableMapping
from itertools import islice
from typing import Final

from natsproxy.wire.ops import S2C, Direction

MOST: Final = 1024
"""Subjects in one table; a full one drops its oldest, so that a client cannot fill the memory."""
FORGOTTEN: Final = MOST // 8
"""Subjects that a full table drops at once: each search for the oldest skips the slots of removed ones."""
LONGEST: Final = 256
"""The longest reply subject that is noted, in bytes; the inboxes of clients have 30 to 80."""
PULL: Final = b".CONSUMER.MSG.NEXT."
ACK: Final = b"$JS.ACK."


def update(
    awaited: MutableMapping[bytes, int], direction: Direction, subject: bytes, reply: bytes | None
) -> None:
    """Bring the table up to date with a message frame."""
    if direction == S2C:
        awaited.pop(subject, None)
    elif reply:
        note(awaited, subject, reply)


def note(awaited: MutableMapping[bytes, int], subject: bytes, reply: bytes) -> None:
    """Note the reply subject of a request, unless it is a pull or an acknowledgement."""
    # `_walk.pxd` has these lines in C.
    if len(reply) > LONGEST or subject.startswith(ACK) or PULL in subject:
        return
    if len(awaited) >= MOST and reply not in awaited:
        forget(awaited)
    awaited[reply] = 0


def forget(awaited: MutableMapping[bytes, int]) -> None:
    """Drop the oldest entries of a full table."""
    for reply in tuple(islice(awaited, FORGOTTEN)):
        del awaited[reply]
