"""The selector of a frame: the role or op, and the subject pattern, that names it best in a rules file.

The most specific role comes first: a redelivery is a delivery too, and an answer to a pull that is a message
is best called a delivery.  Roles with history go by the subject of the request.  Variable tokens of a
subject become `*`; an inbox becomes `_INBOX.>`, since its tokens are new in every run.  A subject that no
rules file can name (`a..b`, or bytes that are no UTF-8) is left out: a server takes any in a PUB.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from natsproxy.protocol.jetstream import ACK_PREFIX, ack_names_at
from natsproxy.protocol.subjects import is_valid_strict, matches
from natsproxy.protocol.template import template
from natsproxy.rules.model.roles import ROLES, Role
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Direction

INBOX: Final = b"_INBOX."
_BEST_FIRST: Final = (
    "ack",
    "nak",
    "term",
    "wpi",
    "next",
    "pull",
    "api",
    "flow-reply",
    "heartbeat",
    "flow-control",
    "no-responders",
    "redelivery",
    "delivery",
    "pull-reply",
    "api-reply",
    "publish-ack",
)
_ROLES: Final = tuple(ROLES[name] for name in _BEST_FIRST)


class FrameSelection(NamedTuple):
    """The frames that a selector selects on a connection; the fields are those of `Position`."""

    direction: str
    what: str
    subject: str

    def table(self) -> dict[str, Any]:
        """Return the selector's keys of a rule."""
        table: dict[str, Any] = {"direction": self.direction}
        table["role" if self.what in ROLES else "op"] = self.what
        if self.subject:
            table["subject"] = self.subject
        return table


def pattern(subject: bytes, generated: Collection[bytes] = ()) -> str:
    """Return the pattern for a subject and those like it; "" where no selector can name it.

    generated: names of streams and consumers that are new in each run.
    """
    made = template(subject, generated)
    if subject.startswith(INBOX):
        made = INBOX + b">"
    elif subject.startswith(ACK_PREFIX):
        tokens = made.split(b".")
        at = ack_names_at(len(tokens))
        made = made if at is None else b".".join([*tokens[: at + 2], b">"])
    try:
        return made.decode() if is_valid_strict(made) else ""
    except UnicodeDecodeError:
        return ""


def select(
    direction: Direction, frame: Frame, asked: Mapping[bytes, bytes], generated: Collection[bytes] = ()
) -> FrameSelection:
    """Return the best selection of a frame.

    asked: the subjects of the requests of the connection so far, by their reply subjects.  generated: see
    `pattern`.
    """
    request = asked.get(frame.subject, b"")
    for role in _ROLES:
        if role.direction == direction and role.ops >> frame.op & 1 and _has(role, frame, request):
            about = request if role.requests else frame.subject
            return FrameSelection(direction.label, role.name, pattern(about, generated))
    shown = pattern(frame.subject, generated) if frame.subject else ""
    return FrameSelection(direction.label, frame.op.label, shown)


def _has(role: Role, frame: Frame, request: bytes) -> bool:
    if role.requests is None:
        return role.admits(frame)
    opens = request and any(matches(one, request) for one in role.requests)
    return bool(opens) and not any(matches(one, request) for one in role.unless) and role.matches(frame)
