"""error: the client gets an `-ERR`, with the consequences that the text has on a server.

With a frame selector the `-ERR` takes the frame's place (c2s: the frame is not passed; s2c: it goes ahead of
the frame).  Without one it comes when the rule comes into force: at once, or when `between` begins.  The
connection closes if the server closes after that text, unless `close` overrides it.  Clients give up for
good on a text that they do not know, so a text that nats-server never sends needs `unknown = true`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from natsproxy.protocol.errors import OTHER, classify, err_frame
from natsproxy.rules.file import values
from natsproxy.rules.kinds.close import AT_A_FRAME, refuse_direction
from natsproxy.rules.model.rule import REQUIRED, Action, Hit, Kind, LinkAction, Setting
from natsproxy.rules.model.selector import Selector
from natsproxy.rules.model.verdicts import Answer, Close, Inject, Verdict
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, S2C, Direction


class Failing(LinkAction):
    """Sends an -ERR."""

    label = "error"

    def __init__(self, text: str, close: bool) -> None:
        self.text = text
        self.raw = err_frame(text)
        self.closing = Close(f"error: {text}", self.raw) if close else None

    def act(self, frame: Frame, hit: Hit) -> Verdict | None:
        """Put the -ERR in the frame's place."""
        if self.closing is not None:
            return self.closing
        return Answer(self.raw) if hit.direction == C2S else Inject(before=self.raw)

    def start(self, hit: Hit) -> tuple[list[tuple[Direction, bytes]], Close | None]:
        """Send the -ERR now."""
        return ([], self.closing) if self.closing is not None else ([(S2C, self.raw)], None)

    def describe(self) -> str:
        """Return the text."""
        return f"-ERR '{self.text}'{' and close' if self.closing is not None else ''}"


def make(settings: Mapping[str, Any], selector: Selector) -> Action:
    """Return the action."""
    refuse_direction(selector)
    kind = classify(settings["text"]).kind
    if kind is OTHER and not settings["unknown"]:
        raise ValueError(
            f"text {settings['text']!r} is not one that nats-server sends: clients would give up for good "
            f"(say unknown = true if that is meant)"
        )
    close = settings["close"]
    return Failing(settings["text"], kind.closes if close is None else close)


KIND = Kind(
    "error",
    f"the client gets an -ERR, {AT_A_FRAME}",
    make,
    """
[[rules]]
name = "stale after five seconds"
kind = "error"
between = ["5s"]
text = "Stale Connection"

[[rules]]
name = "one denied publish"
kind = "error"
op = "PUB"
subject = "orders.1"
limit = 1
text = 'Permissions Violation for Publish to "orders.1"'
""",
    (
        Setting("text", values.line, REQUIRED, "the text between the quotes"),
        Setting(
            "close", values.boolean, None, "whether the connection closes; the server's habit without it"
        ),
        Setting("unknown", values.boolean, False, "allow a text that nats-server does not have"),
    ),
    ops=0,
)
