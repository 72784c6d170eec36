"""answer: requests are answered in the server's place and go no further.

The answer goes to the client's own subscription of the reply subject, at the request's place in the order of
replies; without a reply subject, or without such a subscription, the frame passes.  Three forms:
`status_code` (a 503, or 404, 408, 409 as a pull request gets), `error` (a JetStream API error), `body` with
or without headers.  Statuses need a client that takes headers; for another the request is lost, as on the
server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from natsproxy.protocol.headers import build
from natsproxy.protocol.subjects import matches
from natsproxy.rules.file import values
from natsproxy.rules.interface import View
from natsproxy.rules.model.roles import PUBS
from natsproxy.rules.model.rule import Action, Hit, Kind, Setting
from natsproxy.rules.model.selector import Selector
from natsproxy.rules.model.verdicts import Answer, Drop, Verdict
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S

DESCRIPTIONS: Final = {404: "No Messages", 408: "Request Timeout", 409: "Consumer Deleted"}
"""The texts of nats-server after these codes."""


class Answering(Action):
    """Answers requests.  status: the code, 0 for none."""

    label = "answer"
    alters_delivery = True
    answers = True

    def __init__(self, status: int, description: str, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.description = description
        self.headers = tuple((name.encode(), value.encode()) for name, value in headers.items())
        self.body = body

    def act(self, frame: Frame, hit: Hit) -> Verdict | None:
        """Answer on the subscription of the reply subject."""
        sid = listener(hit.view, frame.reply)
        if sid is None:
            return None
        takes_headers = hit.view.connect.headers
        if self.status and not takes_headers:
            return Drop()
        block = self._block(frame.subject) if takes_headers else b""
        # The server acknowledges a request before it delivers the answer.
        ok = encode.OK if hit.view.connect.verbose else b""
        return Answer(ok + encode.msg(frame.reply, sid, self.body, headers=block))

    def _block(self, subject: bytes) -> bytes:
        if not self.status:
            return build(self.headers) if self.headers else b""
        # A 503 of the core names the subject since 2.12; clients of older servers skip the header.
        pairs = ((b"Nats-Subject", subject), *self.headers) if self.status == 503 else self.headers
        return build(pairs, code=b"%d" % self.status, description=self.description.encode())

    def describe(self) -> str:
        """Return the answer in a few words."""
        words = (
            f"answer {self.status} {self.description}".rstrip() if self.status else "answer with a message"
        )
        return f"{words}, if its client waits for one"


def listener(view: View, reply: bytes) -> bytes | None:
    """Return the sid of the client's subscription to a reply subject."""
    if not reply:
        return None
    return next((sub.sid for sub in view.subs.values() if matches(sub.subject, reply)), None)


def make(settings: Mapping[str, Any], selector: Selector) -> Action:
    """Return the action."""
    status, error, body = settings["status_code"], settings["error"], settings["body"]
    if sum(value is not None for value in (status, error, body)) != 1:
        raise ValueError("it needs one of 'status_code', 'error' and 'body'")
    content = b""
    if error is not None:
        content = json.dumps({"error": error}, separators=(",", ":")).encode()
    elif body is not None:
        content = body.encode()
    description = settings["description"]
    if description is None:
        description = DESCRIPTIONS.get(status or 0, "")
    try:
        build(tuple((name.encode(), value.encode()) for name, value in settings["headers"].items()))
    except ValueError as problem:
        raise ValueError(f"headers is wrong: {problem}") from None
    return Answering(status or 0, description, settings["headers"], content)


def api_error(value: Any) -> dict[str, Any]:
    """Read a JetStream error: `{ code, err_code, description }`."""
    table: dict[str, Any] = values.table(lambda item: item)(value)
    if set(table) != {"code", "err_code", "description"}:
        raise ValueError("must have 'code', 'err_code' and 'description'")
    values.count(table["code"])
    values.count(table["err_code"])
    values.text(table["description"])
    return table


KIND = Kind(
    "answer",
    "requests are answered in the server's place",
    make,
    """
[[rules]]
name = "nobody listens"
kind = "answer"
subject = "billing.>"
status_code = 503

[[rules]]
name = "consumer gone"
kind = "answer"
role = "pull"
limit = 1
status_code = 409
description = "Consumer Deleted"

[[rules]]
name = "no space"
kind = "answer"
subject = "orders.>"
error = { code = 503, err_code = 10047, description = "insufficient storage resources available" }
""",
    (
        Setting("status_code", values.status, None, "a status: 503, 404, 408, 409, ..."),
        Setting(
            "description", values.line, None, "the text behind the status; nats-server's where it has one"
        ),
        Setting("error", api_error, None, "a JetStream error: { code, err_code, description }"),
        Setting("body", values.text, None, "the body of an ordinary answer"),
        Setting("headers", values.table(values.line), {}, "headers of the answer"),
    ),
    ops=PUBS,
    takes=PUBS,
    direction=C2S,
)
