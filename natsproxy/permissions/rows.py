"""The rows of the table `permissions`, which Spark makes of captures of any size: the uses of each client.

A row has a template, its tokens' marks as digits, and the evidence.  Generated tokens are `*` in it, and so
is a variable token of which its client used `FOLDED` values or more.  Words, and fewer values, stay: rows of
several clients, or captures, become the same lines as the uses themselves (`needs.needs_of_rows`).

`shape` and `facts` are called by Spark's tasks.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, Final, NamedTuple

from natsproxy.capture.format.records import Preamble
from natsproxy.errors import ProtocolError
from natsproxy.permissions.marks import Mark, MarkedToken, marked
from natsproxy.permissions.templates import Evidence, shared_queue
from natsproxy.permissions.uses import ClientDetails, introduced, merged, recorded
from natsproxy.protocol.headers import trace_subject
from natsproxy.protocol.subjects import STAR
from natsproxy.replay.conversation.steps import preamble_frames
from natsproxy.wire.ops import OPS, Op

FOLDED: Final = 20
"""Values of a variable token from which on the table has `*` for it."""
RESPOND: Final = "respond"
"""The verb of the row with a client's responses."""
_OPS: Final = {spec.op.label: spec.op for spec in OPS}


class PermissionRow(NamedTuple):
    """A row; None for facts that are not known.  The columns are explained in `deploy/tables.md`."""

    user: str | None
    name: str | None
    account: str | None
    lang: str | None
    verb: str | None
    queue: str | None
    template: str | None
    marks: str | None
    frames: int
    denied: int
    first_ns: int | None
    last_ns: int | None
    flow_control: bool
    values: list[list[str] | None] | None
    most: int | None
    longest_ns: int | None

    @property
    def client(self) -> ClientDetails:
        """The facts about the client."""
        return ClientDetails(self.user or "", self.name or "", self.account or "", self.lang or "")

    def tokens(self) -> list[MarkedToken]:
        """Return the tokens of the template."""
        texts = (self.template or "").encode().split(b".")
        return [
            MarkedToken(text, Mark(int(mark))) for text, mark in zip(texts, self.marks or "", strict=True)
        ]

    def evidence(self) -> Evidence:
        """Return the uses behind the row."""
        found = Evidence(denied=self.denied, flow_control=self.flow_control)
        if self.frames and self.first_ns is not None and self.last_ns is not None:
            found.frames, found.first, found.last = self.frames, self.first_ns, self.last_ns
        for position, values in enumerate(self.values or ()):
            if values is not None:
                found.note(position, {value.encode() for value in values})
        return found


def shape(subject: str, queue: str) -> tuple[str, str, str, list[str | None]]:
    """Return what a use adds to a row.

    These are its queue group; the template with `*` for generated and variable tokens; the marks; and these
    tokens, None in the places of the others.
    """
    tokens = marked(subject.encode())
    open_ones = (Mark.VARIABLE, Mark.GENERATED)
    shown = b".".join(STAR if token.mark in open_ones else token.text for token in tokens)
    return (
        _text(shared_queue(queue.encode())),
        _text(shown),
        "".join(str(int(token.mark)) for token in tokens),
        [_text(token.text) if token.mark in open_ones else None for token in tokens],
    )


def traced(headers: str) -> str:
    """Return the subject to which the server sends traces of a message, "" for none."""
    return _text(trace_subject(headers.encode()))


def facts(kind: str, text: str) -> tuple[str, str, str, str, list[tuple[str, str]]]:
    """Return the user, name, account and library of a connection, and its subscriptions with their queues.

    kind: `CONNECT` or `INFO` with the arguments of that frame, or the kind of an item with its JSON.
    """
    subs: list[tuple[str, str]] = []
    client = ClientDetails()
    if kind in _OPS:
        client = introduced(_OPS[kind], text.encode())
    elif kind == "preamble":
        with suppress(ProtocolError, TypeError, ValueError):  # it is not readable
            info = json.loads(text)
            info["connect"] = str(info.get("connect") or "").encode()
            for frame in preamble_frames(Preamble(0, 0, info)):
                client = merged(client, introduced(frame.op, frame.args))
                if frame.op == Op.SUB:
                    subs.append((_text(frame.subject), _text(frame.queue)))
    else:
        client = recorded(_object(text))
    user, name, account, lang = (one.encode(errors="replace").decode() for one in client)
    return user, name, account, lang, subs


def _object(text: str) -> dict[str, Any]:
    found = json.loads(text)
    return found if isinstance(found, dict) else {}


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")
